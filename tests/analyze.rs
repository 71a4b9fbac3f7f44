//! The analyzer through the public surface: graphs in, facts out.

use frostgraph::analyze::analyze;
use frostgraph::engines::sdpa::{Direction, Scale};
use frostgraph::engines::{Facts, Feature, FeatureSet, SdpaFacts};
use frostgraph::graph::{Graph, GraphOptions, Mask, Sdpa, SdpaBackward, Tensor};
use frostgraph::DType;

fn facts(g: &Graph) -> SdpaFacts {
    let frozen = g.freeze().unwrap();
    let Facts::Sdpa(f) = analyze(&frozen, 0);
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
