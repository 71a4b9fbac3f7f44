//! What a graph uses, feature by feature.

use super::*;

// ---- bias: reports #81, #83 ----

/// Only what is requested is checked: a bias without dBias at S = 65 is ordinary, whatever its type.
#[test]
fn report_83_bias_without_dbias() {
    for (dtype, dbias) in [(DType::BF16, false), (DType::F32, false), (DType::F16, true), (DType::F32, true)] {
        let mut g = Graph::new(GraphOptions::default());
        let [q, k, v, o, d_o] = ["q", "k", "v", "o", "d_o"].map(|n| g.tensor(Tensor::new(n, [2, 4, 65, 32])));
        let stats = g.tensor(Tensor::new("stats", [2, 4, 65, 1]).dtype(DType::F32));
        let bias = Some(g.tensor(Tensor::new("bias", [1, 4, 65, 65]).dtype(dtype)));
        let grads = g.sdpa_backward(q, k, v, o, d_o, stats, SdpaBackward { bias, dbias, ..SdpaBackward::default() }).unwrap();
        assert_eq!(grads.dbias.is_some(), dbias);
        let f = facts(&g);
        assert_eq!(f.invalid, None);
        assert!(f.features.has(Feature::Bias) && f.features.has(Feature::BroadcastBias));
        assert_eq!(f.features.has(Feature::DBias), dbias);
        assert_eq!(f.ports.bias.unwrap().dtype, dtype);
        assert_eq!(f.ports.dbias.map(|p| p.dim), dbias.then_some([1, 4, 65, 65]));
    }
}

#[test]
fn report_83_the_message_names_the_bias_shape() {
    let mut g = Graph::new(GraphOptions::default());
    let q = g.tensor(Tensor::new("q", [2, 4, 65, 32]));
    let bias = Some(g.tensor(Tensor::new("bias", [2, 1, 1, 65])));
    g.sdpa(q, q, q, Sdpa { bias, ..Sdpa::default() }).unwrap();
    assert_eq!(facts(&g).invalid.as_deref(), Some("sdpa: bias has extents [2, 1, 1, 65], expected (1|2, 1|4, 65, 65)"));
}

// ---- features ----

/// Each feature from the one thing that asks for it.
#[test]
fn every_feature_is_found() {
    let dim = [2, 4, 16, 32];
    let f32s = |g: &mut Graph, n: &str, d: [i64; 4]| g.tensor(Tensor::new(n, d).dtype(DType::F32));
    let i32s = |g: &mut Graph, n: &str, d: [i64; 4]| g.tensor(Tensor::new(n, d).dtype(DType::I32));
    let fwd = |edit: &dyn Fn(&mut Graph, &mut Sdpa)| {
        let mut g = Graph::new(GraphOptions::default());
        let [q, k, v] = ["q", "k", "v"].map(|n| g.tensor(Tensor::new(n, dim)));
        let mut options = Sdpa::default();
        edit(&mut g, &mut options);
        let out = g.sdpa(q, k, v, options).unwrap();
        for id in [Some(out.o), out.stats, out.score_max, out.score_sum_exp, out.rng_dump].into_iter().flatten() {
            g.output(id).unwrap();
        }
        facts(&g)
    };
    let bwd = |edit: &dyn Fn(&mut Graph, &mut SdpaBackward)| {
        let mut g = Graph::new(GraphOptions::default());
        let [q, k, v, o, d_o] = ["q", "k", "v", "o", "d_o"].map(|n| g.tensor(Tensor::new(n, dim)));
        let stats = f32s(&mut g, "stats", [2, 4, 16, 1]);
        let mut options = SdpaBackward::default();
        edit(&mut g, &mut options);
        let grads = g.sdpa_backward(q, k, v, o, d_o, stats, options).unwrap();
        for id in [Some(grads.dq), Some(grads.dk), Some(grads.dv), grads.dbias, grads.dsink].into_iter().flatten() {
            g.output(id).unwrap();
        }
        facts(&g)
    };
    let shaped = |q: [i64; 4], kv: [i64; 4], d_v: i64, stride: Option<[i64; 4]>| {
        let mut g = Graph::new(GraphOptions::default());
        let q = g.tensor(Tensor::new("q", q));
        let k = g.tensor(Tensor { stride: stride.map_or(Vec::new(), Vec::from), ..Tensor::new("k", kv) });
        let v = g.tensor(Tensor::new("v", [kv[0], kv[1], kv[2], d_v]));
        let out = g.sdpa(q, k, v, Sdpa::default()).unwrap();
        g.output(out.o).unwrap();
        facts(&g)
    };
    let lens = |g: &mut Graph, n: i64| [i32s(g, "lq", [n, 1, 1, 1]), i32s(g, "lkv", [n, 1, 1, 1])].map(Some);
    for &feature in Feature::ALL {
        let found = match feature {
            // Of grouped products, not of attention.
            Feature::OutputScales
            | Feature::DiscreteColSfd
            | Feature::Amax
            | Feature::DSrelu
            | Feature::TanhClamp
            | Feature::PreactivationC
            | Feature::PooledWeights
            | Feature::WeightAddresses
            | Feature::NMajorB
            | Feature::F64Accumulate
            | Feature::StatusWord
            | Feature::GatherTokens
            | Feature::ScatterTokens => continue,
            Feature::Deterministic => bwd(&|_, o| o.deterministic = true),
            Feature::DBias => bwd(&|g, o| {
                o.bias = Some(g.tensor(Tensor::new("bias", [2, 4, 16, 16])));
                o.dbias = true;
            }),
            Feature::DSink => bwd(&|g, o| {
                o.sink = Some(f32s(g, "sink", [1, 4, 1, 1]));
                o.dsink = true;
            }),
            Feature::Bias => fwd(&|g, o| o.bias = Some(g.tensor(Tensor::new("bias", [2, 4, 16, 16])))),
            Feature::BroadcastBias => fwd(&|g, o| o.bias = Some(g.tensor(Tensor::new("bias", [1, 4, 16, 16])))),
            Feature::Dropout => fwd(&|_, o| o.dropout.probability = Some(0.1)),
            Feature::ScoreMod => fwd(&|_, o| o.score_mod = true),
            Feature::PagedKv => fwd(&|g, o| {
                [o.seq_len_q, o.seq_len_kv] = lens(g, 2);
                o.mask.padding = true;
                o.page_table_k = Some(i32s(g, "tk", [2, 1, 3, 1]));
                o.page_table_v = Some(i32s(g, "tv", [2, 1, 3, 1]));
            }),
            Feature::Alibi => fwd(&|_, o| o.mask = Mask { alibi: true, ..Mask::causal() }),
            Feature::BlockMask => fwd(&|g, o| o.block_mask = Some(g.tensor(Tensor::new("block", [2, 4, 1, 1]).dtype(DType::U8)))),
            Feature::RngDump => fwd(&|_, o| o.rng_dump = true),
            Feature::KvMask => fwd(&|g, o| o.kv_mask = Some(g.tensor(Tensor::new("kvm", [1, 1, 1, 16])))),
            Feature::ScoreMax => fwd(&|_, o| o.score_max = true),
            Feature::ScoreSumExp => fwd(&|_, o| o.score_sum_exp = true),
            Feature::DynamicScale => fwd(&|g, o| o.attn_scale = Some(AttnScale::Tensor(f32s(g, "s", [1, 1, 1, 1])))),
            Feature::ZeroScale => fwd(&|_, o| o.attn_scale = Some(AttnScale::Value(0.0))),
            Feature::PrefoldedScale => fwd(&|_, o| o.attn_scale_prefolded = true),
            Feature::SoftmaxPrecision => fwd(&|_, o| o.softmax_precision = Some(DType::F16)),
            Feature::UnfuseFma => fwd(&|_, o| o.unfuse_fma = true),
            Feature::StatsLog2 => fwd(&|_, o| o.stats_use_log2 = true),
            Feature::SeqQTrim => fwd(&|g, o| {
                [o.seq_len_q, o.seq_len_kv] = lens(g, 2);
                o.score_mod = true;
            }),
            Feature::Causal => fwd(&|_, o| o.mask = Mask::causal()),
            Feature::RightBand => fwd(&|_, o| o.mask.right_bound = Some(1)),
            Feature::BottomRight => fwd(&|_, o| o.mask = Mask::causal_bottom_right()),
            Feature::Window => fwd(&|_, o| o.mask = Mask::none().window(3)),
            Feature::Padding => fwd(&|g, o| {
                [o.seq_len_q, o.seq_len_kv] = lens(g, 2);
                o.mask.padding = true;
            }),
            Feature::CuSeqLen => fwd(&|g, o| {
                [o.cu_seq_len_q, o.cu_seq_len_kv] = lens(g, 3);
                o.mask.padding = true;
            }),
            Feature::Sink => fwd(&|g, o| o.sink = Some(f32s(g, "sink", [1, 4, 1, 1]))),
            Feature::Stats => fwd(&|_, o| o.is_inference = Some(false)),
            Feature::Thd => thd([64, 1, 4, 1], true),
            Feature::ThdPaddedStats => thd([64, 16, 1, 1], false),
            Feature::StridedStats => thd([640, 160, 10, 1], false),
            Feature::Gqa => shaped(dim, [2, 2, 16, 32], 32, None),
            Feature::Decode => shaped([2, 4, 1, 32], dim, 32, None),
            Feature::UnequalHeadDims => shaped(dim, dim, 16, None),
            Feature::StridedHeadDim => shaped(dim, dim, 32, Some([4096, 1024, 64, 2])),
            Feature::BroadcastInput => shaped(dim, dim, 32, Some([0, 512, 32, 1])),
        };
        assert!(found.features.has(feature), "{feature} not in {:?}", found.features);
        assert!(found.invalid.is_none(), "{feature}: {:?}", found.invalid);
    }
    assert_eq!(fwd(&|_, _| ()).features, FeatureSet::EMPTY);
    assert_eq!(bwd(&|_, _| ()).features, FeatureSet::EMPTY);
}

/// Outputs that nobody can see are not asked for (facts §3.1).
#[test]
fn virtual_score_outputs_do_not_count() {
    let mut g = Graph::new(GraphOptions::default());
    let q = g.tensor(Tensor::new("q", [2, 4, 16, 32]));
    g.sdpa(q, q, q, Sdpa { score_max: true, score_sum_exp: true, rng_dump: true, ..Sdpa::default() }).unwrap();
    let f = facts(&g);
    assert_eq!(f.features, FeatureSet::EMPTY);
    assert!(f.ports.score_max.is_none() && f.ports.score_sum_exp.is_none());
}

#[test]
fn paged_geometry() {
    let with = |max: Option<i64>| {
        let mut g = Graph::new(GraphOptions::default());
        let q = g.tensor(Tensor::new("q", [2, 4, 1, 32]));
        let [k, v] = [("k", 32), ("v", 16)].map(|(n, d)| g.tensor(Tensor::new(n, [9, 2, 8, d])));
        let mut ints = |n: &str, d: [i64; 4]| Some(g.tensor(Tensor::new(n, d).dtype(DType::I32)));
        let options = Sdpa {
            mask: Mask::none().padded(),
            seq_len_q: ints("lq", [2, 1, 1, 1]),
            seq_len_kv: ints("lkv", [2, 1, 1, 1]),
            page_table_k: ints("tk", [2, 1, 3, 1]),
            page_table_v: ints("tv", [2, 1, 3, 1]),
            max_seq_len_kv: max,
            ..Sdpa::default()
        };
        g.sdpa(q, k, v, options).unwrap();
        let f = facts(&g);
        assert_eq!(f.invalid, None);
        (f.b, f.h_q, f.h_kv, f.s_q, f.s_kv, f.d_qk, f.d_v, f.page_size)
    };
    assert_eq!(with(None), (2, 4, 2, 1, 24, 32, 16, Some(8)));
    assert_eq!(with(Some(20)), (2, 4, 2, 1, 20, 32, 16, Some(8)));
}
