//! Strides, packing and element types of the operands.

use super::*;

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
