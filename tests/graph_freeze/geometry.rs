//! Extents and strides: inferred, and refused.

use super::*;

#[test]
fn o_takes_the_order_of_q_and_stats_are_row_major() {
    // Q as (S, B, H, D) in memory with padded rows; O is dense in the same order, with its own head dim.
    let mut g = Graph::new(GraphOptions::default());
    let (b, h, s, d, dv) = (2, 4, 16, 32, 24);
    let q = g.tensor(Tensor::new("Q", [b, h, s, d]).strides([h * 40, 40, b * h * 40, 1]));
    let k = g.tensor(Tensor::new("K", [b, h, s, d]));
    let v = g.tensor(Tensor::new("V", [b, h, s, dv]));
    let out = g.sdpa(q, k, v, Sdpa { generate_stats: Some(true), ..Sdpa::default() }).unwrap();
    let f = g.freeze().unwrap();
    assert_eq!(f.tensor(out.o).dim, [b, h, s, dv]);
    assert_eq!(f.tensor(out.o).stride, [h * dv, dv, b * h * dv, 1]);
    assert_eq!(f.tensor(out.stats.unwrap()).dim, [b, h, s, 1]);
    assert_eq!(f.tensor(out.stats.unwrap()).stride, [h * s, s, 1, 1]);
}

/// Report #38: an axis of extent 1 must not disturb the strides of the others.
#[test]
fn report_38_one_query_row_keeps_the_batch_stride() {
    for stride in [[512, 128, 128, 1], [512, 128, 512, 1], [512, 128, 1, 1]] {
        let mut g = Graph::new(GraphOptions::default());
        let q = g.tensor(Tensor::new("Q", [3, 4, 1, 128]).strides(stride));
        let [k, v] = ["K", "V"].map(|n| g.tensor(Tensor::new(n, [3, 4, 9, 128])));
        let out = g.sdpa(q, k, v, Sdpa::default()).unwrap();
        let f = g.freeze().unwrap();
        let o = &f.tensor(out.o).stride;
        assert_eq!((o[0], o[1], o[3]), (512, 128, 1), "{stride:?}");
    }
}

/// Report #35: broadcast operands are read as they are, outputs modelled on them are dense, gradients into them are refused.
#[test]
fn report_35_broadcast_operands() {
    let mut g = Graph::new(GraphOptions::default());
    let broadcast = [0, 32, 128, 1];
    let q = g.tensor(Tensor::new("Q", DIM).strides(broadcast));
    let [k, v] = ["K", "V"].map(|n| g.tensor(Tensor::new(n, DIM).strides(broadcast)));
    let out = g.sdpa(q, k, v, Sdpa { generate_stats: Some(true), ..Sdpa::default() }).unwrap();
    assert_eq!(g.freeze().unwrap().tensor(out.o).stride, [2048, 32, 128, 1]);
    let d_o = g.tensor(Tensor::new("dO", DIM));
    let grads = g.sdpa_backward(q, k, v, out.o, d_o, out.stats.unwrap(), SdpaBackward::default()).unwrap();
    let e = error(&g);
    assert_eq!(e.code, ErrorCode::BadStrides);
    assert!(e.at.contains("dQ") && e.help.contains("declare the output's own strides"), "{e}");
    for id in [grads.dq, grads.dk, grads.dv] {
        g.get_mut(id).unwrap().stride = vec![2048, 512, 32, 1];
    }
    assert!(g.freeze().is_ok());
}

#[test]
fn gradients_take_the_strides_of_their_operands() {
    let mut g = Graph::new(GraphOptions::default());
    let strides = [[9000, 2000, 100, 1], [4096, 32, 128, 1], [2048, 512, 32, 1]];
    let mut id = [("Q", 0), ("K", 1), ("V", 2)].map(|(n, i)| g.tensor(Tensor::new(n, DIM).strides(strides[i]))).into_iter();
    let (q, k, v) = (id.next().unwrap(), id.next().unwrap(), id.next().unwrap());
    let [o, d_o] = ["O", "dO"].map(|n| g.tensor(Tensor::new(n, DIM)));
    let stats = g.tensor(Tensor::new("Stats", [2, 4, 16, 1]).dtype(DType::F32));
    let grads = g.sdpa_backward(q, k, v, o, d_o, stats, SdpaBackward::default()).unwrap();
    let f = g.freeze().unwrap();
    for (id, stride) in [grads.dq, grads.dk, grads.dv].into_iter().zip(strides) {
        assert_eq!(f.tensor(id).stride, stride);
        assert_eq!(f.tensor(id).dim, DIM);
    }
}

#[test]
fn extents_must_be_positive_and_fit() {
    for dim in [[2, 4, 0, 32], [2, 4, -16, 32], [0, 4, 16, 32], [i64::MAX, 4, 16, 32], [1 << 20, 1 << 20, 1 << 20, 1 << 10]] {
        let (mut g, [q, ..], _) = forward();
        g.get_mut(q).unwrap().dim = dim.to_vec();
        assert_eq!(code(&g), ErrorCode::BadDims, "{dim:?}");
    }
    let mut g = Graph::new(GraphOptions::default());
    let [q, k, v] = qkv(&mut g);
    let seq = g.tensor(Tensor::new("len", Vec::new()).dtype(DType::I32));
    let mask = Mask::none().padded();
    g.sdpa(q, k, v, Sdpa { mask, seq_len_q: Some(seq), seq_len_kv: Some(seq), ..Sdpa::default() }).unwrap();
    let e = error(&g);
    assert_eq!(e.code, ErrorCode::BadDims, "{e}");
    assert!(e.at.contains("len"), "{e}");
}

/// An element count that fits while its bytes do not.
#[test]
fn byte_counts_must_fit_too() {
    let (mut g, [q, ..], _) = forward();
    g.get_mut(q).unwrap().dim = vec![1 << 30, 1 << 30, 1, 4];
    assert_eq!(code(&g), ErrorCode::BadDims);
    let (mut g, [q, ..], _) = forward();
    g.get_mut(q).unwrap().stride = vec![i64::MAX / 4, 512, 32, 1];
    assert_eq!(code(&g), ErrorCode::BadStrides);
}

#[test]
fn strides_must_fit_their_tensor() {
    for stride in [vec![-2048, 512, 32, 1], vec![i64::MAX, i64::MAX, 32, 1]] {
        let (mut g, [q, ..], _) = forward();
        g.get_mut(q).unwrap().stride.clone_from(&stride);
        assert_eq!(code(&g), ErrorCode::BadStrides, "{stride:?}");
    }
    // A stride above 2^32 is ordinary (invariant I7).
    let (mut g, [q, ..], _) = forward();
    g.get_mut(q).unwrap().stride = vec![1 << 33, 512, 32, 1];
    assert!(g.freeze().is_ok());
}

#[test]
fn outputs_give_every_element_its_own_address() {
    let good: [[i64; 4]; 4] = [[2048, 512, 32, 1], [2048, 32, 128, 1], [2048, 512, 1, 16], [9999, 1111, 66, 2]];
    let bad: [[i64; 4]; 5] = [[0, 512, 32, 1], [2048, 32, 32, 1], [2048, 512, 16, 1], [512, 512, 32, 1], [2048, 512, 32, 0]];
    for (list, ok) in [(&good[..], true), (&bad[..], false)] {
        for stride in list {
            let (mut g, _, o) = forward();
            g.get_mut(o).unwrap().stride = stride.to_vec();
            match g.freeze() {
                Ok(_) => assert!(ok, "{stride:?}"),
                Err(e) => assert!(!ok && e.code == ErrorCode::BadStrides, "{stride:?}: {e}"),
            }
        }
    }
    // Inputs may overlap: a sliding view is readable.
    let (mut g, [q, ..], _) = forward();
    g.get_mut(q).unwrap().stride = vec![2048, 512, 16, 1];
    g.get_mut(g_output(&g)).unwrap().stride = vec![2048, 512, 32, 1];
    assert!(g.freeze().is_ok());
}

#[test]
fn tensors_that_cannot_be_what_they_say() {
    let (mut g, [q, ..], _) = forward();
    g.get_mut(q).unwrap().is_virtual = true;
    assert_eq!(code(&g), ErrorCode::DanglingTensor);
    let (mut g, _, o) = forward();
    g.get_mut(o).unwrap().pass_by_value = true;
    assert_eq!(code(&g), ErrorCode::BadTensor);
    let (mut g, _, o) = forward();
    g.get_mut(o).unwrap().is_virtual = true;
    g.get_mut(o).unwrap().pass_by_value = true;
    assert_eq!(code(&g), ErrorCode::BadTensor);
    let (mut g, [q, ..], _) = forward();
    g.get_mut(q).unwrap().alignment = 0;
    assert_eq!(code(&g), ErrorCode::BadTensor);
    let (mut g, [q, k, _], _) = forward();
    assert!(g.ragged(q, k, 0).is_ok());
    assert_eq!(code(&g), ErrorCode::BadTensor, "multiplier 0");
}
