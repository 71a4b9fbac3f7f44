//! The analyzer through the public surface: graphs in, facts out.

use frostgraph::analyze::analyze;
use frostgraph::engines::sdpa::{Direction, Scale, StatsPacking};
use frostgraph::engines::{Facts, Feature, FeatureSet, SdpaFacts};
use frostgraph::graph::{Alignment, AttnScale, Compat, Graph, GraphOptions, Mask, ScalarValue, Sdpa, SdpaBackward, Tensor};
use frostgraph::DType;

fn facts(g: &Graph) -> SdpaFacts {
    let frozen = g.freeze().unwrap();
    let Facts::Sdpa(f) = analyze(&frozen, 0) else { panic!("attention") };
    *f
}

#[test]
fn forward_causal_with_stats() {
    let mut g = Graph::new(GraphOptions::default());
    let (b, h, s, d) = (2, 4, 128, 64);
    let bshd = [s * h * d, d, h * d, 1];
    let [q, k, v] = ["q", "k", "v"].map(|n| g.tensor(Tensor::new(n, [b, h, s, d]).strides(bshd)));
    let out = g.sdpa(q, k, v, Sdpa { mask: Mask::causal(), generate_stats: Some(true), ..Sdpa::default() }).unwrap();
    g.output(out.o).unwrap();
    g.output(out.stats.unwrap()).unwrap();
    let f = facts(&g);
    assert_eq!(f.invalid, None);
    assert_eq!(f.direction, Direction::Forward);
    assert_eq!((f.b, f.h_q, f.h_kv, f.s_q, f.s_kv, f.d_qk, f.d_v), (2, 4, 4, 128, 128, 64, 64));
    assert_eq!((f.dtype, f.dtype_o, f.uniform_dtype), (DType::BF16, DType::BF16, true));
    assert!(f.bshd_layout && f.packed_layout && f.dense_layout && f.aligned_16);
    assert_eq!(f.scale, Scale::Static(1.0));
    assert_eq!(f.features, FeatureSet::of(&[Feature::Causal, Feature::Stats]));
    assert_eq!(f.ports.o.as_ref().unwrap().stride, bshd);
    assert_eq!(f.ports.stats.as_ref().unwrap().stride, [h * s, s, 1, 1]);
    assert_eq!(f.ports.stats.as_ref().unwrap().dtype, DType::F32);
}

#[test]
fn backward_gqa_takes_the_strides_of_its_operands() {
    let mut g = Graph::new(GraphOptions::default());
    let (b, hq, hkv, s, d) = (2, 8, 2, 128, 64);
    let q = g.tensor(Tensor::new("q", [b, hq, s, d]).strides([s * hq * d, d, hq * d, 1]));
    let [k, v] = ["k", "v"].map(|n| g.tensor(Tensor::new(n, [b, hkv, s, d])));
    let [o, d_o] = ["o", "dO"].map(|n| g.tensor(Tensor::new(n, [b, hq, s, d])));
    let stats = g.tensor(Tensor::new("stats", [b, hq, s, 1]).dtype(DType::F32));
    let options = SdpaBackward { deterministic: true, ..SdpaBackward::default() };
    let grads = g.sdpa_backward(q, k, v, o, d_o, stats, options).unwrap();
    for id in [grads.dq, grads.dk, grads.dv] {
        g.output(id).unwrap();
    }
    let f = facts(&g);
    assert_eq!(f.invalid, None);
    assert_eq!(f.features, FeatureSet::of(&[Feature::Deterministic, Feature::Gqa]));
    assert_eq!(f.ports.dq.as_ref().unwrap().stride, [s * hq * d, d, hq * d, 1]);
    assert_eq!(f.ports.dk.as_ref().unwrap().stride, [hkv * s * d, s * d, d, 1]);
    assert!(!f.bshd_layout && f.dense_layout);
    assert!(f.wants_stats);
}

// ---- masks: facts §3.3, T5, T7, report #53 ----

fn mask_of(mask: Mask, backward: bool) -> SdpaFacts {
    let mut g = Graph::new(GraphOptions::default());
    let dim = [1, 1, 16, 8];
    let [q, k, v, o, d_o] = ["q", "k", "v", "o", "d_o"].map(|n| g.tensor(Tensor::new(n, dim)));
    if backward {
        let stats = g.tensor(Tensor::new("stats", [1, 1, 16, 1]).dtype(DType::F32));
        g.sdpa_backward(q, k, v, o, d_o, stats, SdpaBackward { mask, ..SdpaBackward::default() }).unwrap();
    } else {
        g.sdpa(q, k, v, Sdpa { mask, ..Sdpa::default() }).unwrap();
    }
    facts(&g)
}

/// W, R and whether the corner is bottom-right.
type Bounds = (Option<i64>, Option<i64>, bool);

fn bounds(f: &SdpaFacts) -> Bounds {
    (f.mask.left, f.mask.right, f.mask.bottom_right)
}

#[test]
fn every_spelling_of_facts_3_3() {
    let none = Mask::none;
    let br = Alignment::BottomRight;
    let cases: [(Mask, Bounds, &[Feature]); 10] = [
        (none(), (None, None, false), &[]),
        (Mask { sliding_window: Some(5), ..none() }, (Some(4), None, false), &[Feature::Window]),
        (Mask { left_bound: Some(5), ..none() }, (Some(4), None, false), &[Feature::Window]),
        (Mask::causal(), (None, Some(0), false), &[Feature::Causal]),
        (Mask::causal_bottom_right(), (None, Some(0), true), &[Feature::Causal, Feature::BottomRight]),
        (Mask { right_bound: Some(0), ..none() }, (None, Some(0), false), &[Feature::Causal]),
        (Mask { right_bound: Some(3), ..none() }, (None, Some(3), false), &[Feature::RightBand]),
        (
            Mask { right_bound: Some(3), alignment: br, ..none() },
            (None, Some(3), true),
            &[Feature::RightBand, Feature::BottomRight],
        ),
        (Mask { alignment: br, ..none() }, (None, None, false), &[]),
        (Mask { left_bound: Some(1), alignment: br, ..none() }, (Some(0), None, true), &[Feature::BottomRight, Feature::Window]),
    ];
    for (mask, expected, features) in cases {
        for backward in [false, true] {
            let f = mask_of(mask.clone(), backward);
            assert_eq!(f.invalid, None, "{mask:?}");
            assert_eq!(bounds(&f), expected, "{mask:?} backward {backward}");
            assert_eq!(f.features, FeatureSet::of(features), "{mask:?}");
        }
    }
}

/// A causal flag sets the corner whatever `diagonal_alignment` says.
#[test]
fn causal_flags_set_the_alignment() {
    for backward in [false, true] {
        let top_left = Mask { alignment: Alignment::BottomRight, ..Mask::causal() };
        assert_eq!(bounds(&mask_of(top_left, backward)), (None, Some(0), false));
        let bottom_right = Mask { alignment: Alignment::TopLeft, ..Mask::causal_bottom_right() };
        assert_eq!(bounds(&mask_of(bottom_right, backward)), (None, Some(0), true));
    }
}

/// T7: malformed on a forward; on a half-precision backward the later setter wins.
#[test]
fn t7_conflicting_spellings() {
    let cases = [
        (Mask { sliding_window: Some(3), left_bound: Some(6), ..Mask::none() }, (Some(5), None, false)),
        (Mask { causal: true, ..Mask::causal_bottom_right() }, (None, Some(0), true)),
        (Mask { right_bound: Some(2), ..Mask::causal() }, (None, Some(2), false)),
        (Mask { right_bound: Some(2), ..Mask::causal_bottom_right() }, (None, Some(2), true)),
    ];
    for (mask, expected) in cases {
        let forward = mask_of(mask.clone(), false);
        assert!(forward.invalid.as_ref().is_some_and(|i| i.ends_with("are both given")), "{:?}", forward.invalid);
        let backward = mask_of(mask, true);
        assert_eq!(backward.invalid, None);
        assert_eq!(bounds(&backward), expected);
    }
}

/// Report #53 and T5: a length L keeps L keys, so W = L - 1. With Q = 0 and V[j] = j, row i of O is the mean index of its kept keys.
#[test]
fn report_53_window_length_convention() {
    let kept = |length: i64| {
        let f = mask_of(Mask::causal().window(length), false);
        assert_eq!((f.invalid.as_deref(), f.mask.left), (None, Some(length - 1)));
        (0..16).map(|q| f.mask.kept(q, 16, 16)).collect::<Vec<_>>()
    };
    let cells = |rows: &[(i64, i64)]| rows.iter().map(|(lo, hi)| hi - lo).sum::<i64>();
    let mean = |rows: &[(i64, i64)], q: usize| (rows[q].0 + rows[q].1 - 1) as f64 / 2.0;
    let four = kept(4);
    assert_eq!(cells(&four), 58);
    assert_eq!([10, 11, 12].map(|q| mean(&four, q)), [8.5, 9.5, 10.5]);
    let five = kept(5);
    assert_eq!(cells(&five), 70, "FlashAttention's W = 4 is L = 5");
    assert_eq!([10, 11, 12].map(|q| mean(&five, q)), [8.0, 9.0, 10.0]);
    assert!((0..16).all(|q| mean(&kept(1), q) == q as f64), "L = 1 keeps the query's own key");
    let full: Vec<(i64, i64)> = (0..16).map(|q| (0, q + 1)).collect();
    for length in [16, 17, (1 << 31) - 1, i64::MAX] {
        assert_eq!(kept(length), full, "L = {length}");
    }
    assert_eq!(
        mask_of(Mask::causal().window(0), false).invalid.as_deref(),
        Some("sdpa: left bound 0 is below 1: a length of L keeps L keys")
    );
}

/// Report #51: more queries than keys at the bottom-right corner; the leading rows keep nothing.
#[test]
fn report_51_leading_rows_are_dead() {
    let mut g = Graph::new(GraphOptions::default());
    let q = g.tensor(Tensor::new("q", [1, 4, 5, 8]));
    let [k, v] = ["k", "v"].map(|n| g.tensor(Tensor::new(n, [1, 1, 2, 8])));
    g.sdpa(q, k, v, Sdpa { mask: Mask::causal_bottom_right(), ..Sdpa::default() }).unwrap();
    let f = facts(&g);
    assert_eq!(f.invalid, None);
    let kept: Vec<i64> = (0..5).map(|row| f.mask.kept(row, 5, 2)).map(|(lo, hi)| hi - lo).collect();
    assert_eq!(kept, [0, 0, 0, 1, 2]);
}

// ---- scale: T6 ----

#[test]
fn t6_scale() {
    let with = |attn_scale: Option<f32>| {
        let mut g = Graph::new(GraphOptions::default());
        let q = g.tensor(Tensor::new("q", [1, 1, 16, 64]));
        g.sdpa(q, q, q, Sdpa { attn_scale: attn_scale.map(AttnScale::Value), ..Sdpa::default() }).unwrap();
        facts(&g)
    };
    assert_eq!(with(None).scale, Scale::Static(1.0), "omitted is 1.0 in a graph, not 1/sqrt(d)");
    assert_eq!(with(Some(0.125)).scale, Scale::Static(0.125));
    let zero = with(Some(0.0));
    assert!(zero.features.has(Feature::ZeroScale));
    assert!(with(Some(-0.0)).features.has(Feature::ZeroScale));
    let mut g = Graph::new(GraphOptions::default());
    let q = g.tensor(Tensor::new("q", [1, 1, 16, 64]));
    let s = g.scalar("scale", ScalarValue::F32(0.5));
    g.get_mut(s).unwrap().uid = Some(99);
    g.sdpa(q, q, q, Sdpa { attn_scale: Some(AttnScale::Tensor(s)), ..Sdpa::default() }).unwrap();
    let f = facts(&g);
    assert_eq!(f.scale, Scale::Dynamic(99));
    assert!(f.features.has(Feature::DynamicScale));
}

// ---- layouts and the 16-byte rule ----

#[test]
fn layouts_are_judged_over_every_operand() {
    let with = |q_stride: [i64; 4], dtype: DType, alignment: i64| {
        let mut g = Graph::new(GraphOptions { io: dtype, ..GraphOptions::default() });
        let q = g.tensor(Tensor::new("q", [2, 4, 16, 32]).strides(q_stride).alignment(alignment));
        let [k, v] = ["k", "v"].map(|n| g.tensor(Tensor::new(n, [2, 4, 16, 32]).strides([2048, 32, 128, 1])));
        let out = g.sdpa(q, k, v, Sdpa::default()).unwrap();
        g.get_mut(out.o).unwrap().stride = vec![2048, 32, 128, 1];
        g.output(out.o).unwrap();
        let f = facts(&g);
        (f.bshd_layout, f.packed_layout, f.dense_layout, f.aligned_16)
    };
    let bf16 = DType::BF16;
    assert_eq!(with([2048, 32, 128, 1], bf16, 16), (true, true, true, true));
    assert_eq!(with([2048, 512, 32, 1], bf16, 16), (false, false, true, true), "BHSD");
    assert_eq!(with([128, 32, 256, 1], bf16, 16), (false, true, true, true), "SBHD: only the batch axis is elsewhere");
    assert_eq!(with([0, 32, 128, 1], bf16, 16), (false, true, false, true), "broadcast batch");
    assert_eq!(with([8192, 36, 160, 1], bf16, 16), (true, true, true, false), "36 bf16 elements are 72 bytes");
    assert_eq!(
        with([8192, 36, 160, 1], DType::F32, 16),
        (true, true, true, true),
        "36 f32 elements are 144 bytes: the element's own width"
    );
    assert_eq!(with([2048, 32, 128, 1], bf16, 8), (true, true, true, false), "report 45: alignment of the base");
    assert_eq!(with([4096, 64, 256, 2], bf16, 16), (true, true, false, true), "strided head dim");
}

#[test]
fn element_types() {
    let mut g = Graph::new(GraphOptions::default());
    let q = g.tensor(Tensor::new("q", [1, 1, 16, 32]).dtype(DType::F32));
    let [k, v] = ["k", "v"].map(|n| g.tensor(Tensor::new(n, [1, 1, 16, 32]).dtype(DType::F32)));
    let out = g.sdpa(q, k, v, Sdpa::default()).unwrap();
    g.get_mut(out.o).unwrap().dtype = Some(DType::F32);
    assert_eq!((facts(&g).dtype, facts(&g).uniform_dtype), (DType::F32, true));
    g.get_mut(v).unwrap().dtype = Some(DType::F16);
    assert!(!facts(&g).uniform_dtype);
    g.get_mut(v).unwrap().dtype = Some(DType::F32);
    g.get_mut(out.o).unwrap().dtype = Some(DType::BF16);
    let f = facts(&g);
    assert_eq!((f.dtype_o, f.uniform_dtype), (DType::BF16, false));
}

// ---- Stats: rule S1, report #36 ----

fn thd(stats_stride: [i64; 4], ragged_stats: bool) -> SdpaFacts {
    let mut g = Graph::new(GraphOptions::default());
    let (b, h, s, d) = (3, 4, 16, 32);
    let off = g.tensor(Tensor::new("off", [b + 1, 1, 1, 1]).dtype(DType::I64));
    let stride = [s * h * d, d, h * d, 1];
    let [q, k, v] = ["q", "k", "v"].map(|n| g.tensor(Tensor::new(n, [b, h, s, d]).strides(stride).ragged(off, h * d)));
    let [lq, lk] = ["lq", "lk"].map(|n| g.tensor(Tensor::new(n, [b, 1, 1, 1]).dtype(DType::I32)));
    let options = Sdpa {
        mask: Mask::causal().padded(),
        seq_len_q: Some(lq),
        seq_len_kv: Some(lk),
        generate_stats: Some(true),
        max_total_seq_len_q: Some(40),
        ..Sdpa::default()
    };
    let out = g.sdpa(q, k, v, options).unwrap();
    let stats = out.stats.unwrap();
    g.ragged(out.o, off, h * d).unwrap();
    g.get_mut(stats).unwrap().stride = stats_stride.to_vec();
    if ragged_stats {
        g.ragged(stats, off, h).unwrap();
    }
    g.output(out.o).unwrap();
    g.output(stats).unwrap();
    facts(&g)
}

/// Rule S1: packed Stats are classified by stride; a dense-padded declaration is neither packing.
#[test]
fn s1_stats_packing() {
    let token = thd([64, 1, 4, 1], true);
    assert_eq!(token.invalid, None);
    assert_eq!(token.stats_packing, Some(StatsPacking::TokenMajor));
    assert!(token.features.has(Feature::Thd) && !token.features.has(Feature::Padding));
    assert!(!token.features.has(Feature::ThdPaddedStats) && !token.features.has(Feature::StridedStats));
    assert_eq!(token.max_total_seq_len_q, Some(40));
    assert_eq!(token.ports.q.as_ref().unwrap().ragged.unwrap().multiplier, 128);
    assert_eq!(token.ports.q.as_ref().unwrap().ragged.unwrap().dtype, DType::I64);
    // The head stride covers the packed tokens, which may be fewer than S rows a sequence: the caller's contract.
    for head in [1, 10, 64, 1 << 33] {
        assert_eq!(thd([64, head, 1, 1], true).stats_packing, Some(StatsPacking::HeadMajor), "{head}");
    }
    assert_eq!(thd([64, 2, 8, 1], true).stats_packing, None);
    let per_batch = thd([64, 16, 1, 1], false);
    assert_eq!(per_batch.stats_packing, None);
    assert!(per_batch.features.has(Feature::ThdPaddedStats) && !per_batch.features.has(Feature::StridedStats));
}

/// Report #36: declared Stats strides reach the engines in both directions.
#[test]
fn report_36_stats_strides_are_facts() {
    let (b, h, s) = (2, 4, 16);
    for (stride, strided) in [([h * s, s, 1, 1], false), ([s * h, 1, h, 1], true), ([h * (s + 3), s + 3, 1, 1], true)] {
        let mut g = Graph::new(GraphOptions::default());
        let [q, o] = ["q", "o"].map(|n| g.tensor(Tensor::new(n, [b, h, s, 32])));
        let stats = g.tensor(Tensor::new("stats", [b, h, s, 1]).strides(stride).dtype(DType::F32));
        g.sdpa_backward(q, q, q, o, o, stats, SdpaBackward::default()).unwrap();
        let f = facts(&g);
        assert_eq!(f.features.has(Feature::StridedStats), strided, "{stride:?}");
        assert_eq!(f.ports.stats.unwrap().stride, stride);
        let mut g = Graph::new(GraphOptions::default());
        let q = g.tensor(Tensor::new("q", [b, h, s, 32]));
        let out = g.sdpa(q, q, q, Sdpa { generate_stats: Some(true), ..Sdpa::default() }).unwrap();
        g.get_mut(out.stats.unwrap()).unwrap().stride = stride.to_vec();
        assert_eq!(facts(&g).features.has(Feature::StridedStats), strided, "{stride:?}");
    }
}

/// Report #38: extents of 1 say nothing about strides, and the declared ones stay in the facts.
#[test]
fn report_38_extents_of_one() {
    let mut g = Graph::new(GraphOptions::default());
    let stride = [512, 128, 128, 1];
    let q = g.tensor(Tensor::new("q", [3, 4, 1, 128]).strides(stride));
    let [k, v] = ["k", "v"].map(|n| g.tensor(Tensor::new(n, [3, 4, 9, 128]).strides([9 * 512, 128, 512, 1])));
    let out = g.sdpa(q, k, v, Sdpa { generate_stats: Some(true), ..Sdpa::default() }).unwrap();
    g.get_mut(out.stats.unwrap()).unwrap().stride = vec![4, 1, 4, 1];
    let f = facts(&g);
    assert!(f.bshd_layout && f.dense_layout);
    assert_eq!(f.ports.q.as_ref().unwrap().stride, stride);
    assert!(f.features.has(Feature::Decode));
    assert!(!f.features.has(Feature::StridedStats), "S = 1: (4, 1, 4, 1) addresses as (4, 1, 1, 1)");
}

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

// ---- graphs as cudnn-frontend writes them ----

fn cudnn_case(name: &str) -> SdpaFacts {
    let path = format!("{}/tests/graphs/cudnn/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let mut g = Graph::from_json(&std::fs::read_to_string(path).unwrap()).unwrap();
    g.options_mut().compat = Compat::Cudnn;
    facts(&g)
}

/// What cudnn-frontend accepted passes its rules here too, and means the same.
#[test]
fn cudnn_graphs_pass_their_own_rules() {
    let f = cudnn_case("json_sdpa_fwd");
    assert_eq!(f.invalid, None);
    assert_eq!(f.features, FeatureSet::of(&[Feature::Causal, Feature::Window, Feature::Stats]));
    assert_eq!((f.mask.left, f.mask.right, f.scale), (Some(64), Some(0), Scale::Static(0.125)));
    assert_eq!((f.b, f.h_q, f.s_q, f.d_qk, f.dtype), (2, 4, 128, 64, DType::BF16));
    assert!(f.bshd_layout);

    let f = cudnn_case("json_sdpa_bwd");
    assert_eq!(f.invalid, None);
    assert_eq!(f.features, FeatureSet::of(&[Feature::Deterministic, Feature::Causal]));
    assert!(f.uniform_dtype && f.bshd_layout && f.aligned_16);

    let f = cudnn_case("json_sdpa_fwd_thd");
    assert_eq!(f.invalid, None);
    let expected =
        [Feature::DynamicScale, Feature::Causal, Feature::BottomRight, Feature::Stats, Feature::Thd, Feature::ThdPaddedStats];
    assert_eq!(f.features, FeatureSet::of(&expected));
    assert_eq!((f.max_total_seq_len_q, f.max_total_seq_len_kv), (Some(200), Some(200)));
    assert_eq!(f.scale, Scale::Dynamic(13));
    assert_eq!(f.ports.q.unwrap().ragged.unwrap().uid, 10);
}

/// NVFP4 QAT: facts of attention with another recipe; the backward's O is the high-precision one.
#[test]
fn nvfp4_qat_is_attention_with_a_recipe() {
    use frostgraph::engines::sdpa::Recipe;
    use frostgraph::graph::{Nvfp4Qat, Nvfp4QatBackward};
    let mut g = Graph::new(GraphOptions::default());
    let q = g.tensor(Tensor::new("q", [2, 4, 40, 64]));
    let [k, v] = ["k", "v"].map(|n| g.tensor(Tensor::new(n, [2, 2, 50, 64])));
    let d_o = g.tensor(Tensor::new("dO", [2, 4, 40, 64]));
    let out = g.nvfp4_attention_qat_forward(q, k, v, Nvfp4Qat { mask: Mask::causal(), ..Default::default() }).unwrap();
    g.get_mut(out.high_precision_o).unwrap().uid = Some(77);
    g.get_mut(out.high_precision_o).unwrap().dtype = Some(DType::BF16);
    let options = Nvfp4QatBackward { mask: Mask::causal(), deterministic: true, ..Default::default() };
    let grads = g.nvfp4_attention_qat_backward(d_o, q, k, v, out.high_precision_o, out.lse, options).unwrap();
    for id in [out.o, grads.dq, grads.dk, grads.dv] {
        g.output(id).unwrap();
    }
    let f = facts(&g);
    assert_eq!((f.direction, f.recipe, f.invalid.clone()), (Direction::Forward, Recipe::Nvfp4Qat, None));
    assert_eq!(f.features, FeatureSet::of(&[Feature::Causal, Feature::Stats, Feature::Gqa]));
    let high = f.ports.high_precision_o.unwrap();
    assert_eq!((high.uid, high.dim, high.is_virtual), (77, [2, 4, 40, 64], true));
    let Facts::Sdpa(b) = analyze(&g.freeze().unwrap(), 1) else { panic!("attention") };
    assert_eq!((b.direction, b.recipe, b.invalid.clone()), (Direction::Backward, Recipe::Nvfp4Qat, None));
    assert_eq!(b.features, FeatureSet::of(&[Feature::Deterministic, Feature::Causal, Feature::Gqa]));
    assert_eq!((b.ports.o.unwrap().uid, b.ports.high_precision_o, b.scale), (77, None, Scale::Static(1.0)));
}
