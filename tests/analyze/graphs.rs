//! Whole graphs: both directions, cudnn-frontend's own files, the QAT recipe.

use super::*;

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
