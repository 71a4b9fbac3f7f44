//! Freezing: identifiers, defaults, inference, sizes, and how nodes hang together.

use frostgraph::graph::{
    Graph, GraphOptions, InPort, Mask, Node, Op, OutPort, ScalarValue, Sdpa, SdpaAttrs, SdpaBackward, Tensor, TensorId,
};
use frostgraph::{DType, Error, ErrorCode};
use std::time::{Duration, Instant};

const DIM: [i64; 4] = [2, 4, 16, 32];

fn qkv(g: &mut Graph) -> [TensorId; 3] {
    ["Q", "K", "V"].map(|n| g.tensor(Tensor::new(n, DIM)))
}

fn forward() -> (Graph, [TensorId; 3], TensorId) {
    let mut g = Graph::new(GraphOptions::default());
    let ids = qkv(&mut g);
    let out = g.sdpa(ids[0], ids[1], ids[2], Sdpa::default()).unwrap();
    g.output(out.o).unwrap();
    (g, ids, out.o)
}

fn error(g: &Graph) -> Error {
    g.freeze().expect_err("the graph must be refused")
}

fn code(g: &Graph) -> ErrorCode {
    error(g).code
}

#[test]
fn users_uids_stand_and_the_rest_take_the_smallest_unused() {
    let (mut g, [q, k, v], o) = forward();
    g.get_mut(k).unwrap().uid = Some(1);
    g.get_mut(o).unwrap().uid = Some(3);
    let f = g.freeze().unwrap();
    let uids = [q, k, v, o].map(|id| f.tensor(id).uid);
    assert_eq!(uids, [Some(2), Some(1), Some(4), Some(3)]);
    assert_eq!(g.get(q).unwrap().uid, None, "the graph under construction stays as it is");
}

#[test]
fn clashing_and_impossible_uids() {
    let (mut g, [q, k, _], _) = forward();
    g.get_mut(q).unwrap().uid = Some(7);
    g.get_mut(k).unwrap().uid = Some(7);
    let e = error(&g);
    assert_eq!(e.to_string(), "FG1104: uid 7 on 'Q' and on 'K'; expected one uid per tensor");
    for uid in [0, -1, i64::MIN] {
        g.get_mut(k).unwrap().uid = Some(uid);
        assert_eq!(code(&g), ErrorCode::BadTensor);
    }
    g.get_mut(k).unwrap().uid = Some(i64::MAX);
    assert!(g.freeze().is_ok());
}

#[test]
fn element_types_default_to_io_intermediate_and_float_stats() {
    let mut g = Graph::new(GraphOptions { io: DType::F16, ..GraphOptions::default() });
    let [q, k, v] = qkv(&mut g);
    let options = Sdpa { generate_stats: Some(true), score_max: true, score_sum_exp: true, ..Sdpa::default() };
    let out = g.sdpa(q, k, v, options).unwrap();
    let dtype = |g: &Graph, id| g.freeze().unwrap().tensor(id).dtype.unwrap();
    assert_eq!(dtype(&g, q), DType::F16);
    assert_eq!(dtype(&g, out.o), DType::F32, "virtual: the intermediate type");
    for id in [out.stats, out.score_max, out.score_sum_exp] {
        assert_eq!(dtype(&g, id.unwrap()), DType::F32);
    }
    g.output(out.o).unwrap();
    assert_eq!(dtype(&g, out.o), DType::F16, "visible: the io type");
}

#[test]
fn stats_follow_generate_stats_then_is_inference() {
    let cases = [
        (None, None, false),
        (None, Some(true), false),
        (None, Some(false), true),
        (Some(true), Some(true), true),
        (Some(false), Some(false), false),
    ];
    for (generate_stats, is_inference, expected) in cases {
        let mut g = Graph::new(GraphOptions::default());
        let [q, k, v] = qkv(&mut g);
        let out = g.sdpa(q, k, v, Sdpa { generate_stats, is_inference, ..Sdpa::default() }).unwrap();
        assert_eq!(out.stats.is_some(), expected, "{generate_stats:?} {is_inference:?}");
    }
}

#[test]
fn names_are_node_and_port_and_unique() {
    let mut g = Graph::new(GraphOptions::default());
    let [q, k, v] = qkv(&mut g);
    let first = g.sdpa(q, k, v, Sdpa { generate_stats: Some(true), ..Sdpa::default() }).unwrap();
    let second = g.sdpa(q, k, v, Sdpa::default()).unwrap();
    let stats = first.stats.unwrap();
    let third = g.sdpa_backward(q, k, v, first.o, q, stats, SdpaBackward::default()).unwrap();
    let named = g.sdpa(q, k, v, Sdpa { name: "mine".into(), ..Sdpa::default() }).unwrap();
    let name = |id| g.get(id).unwrap().name.as_str();
    assert_eq!(
        [first.o, stats, second.o, third.dq, named.o].map(name),
        ["sdpa::O", "sdpa::Stats", "sdpa_1::O", "sdpa_backward_2::dQ", "mine::O"]
    );
}

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

fn g_output(g: &Graph) -> TensorId {
    g.nodes()[0].outputs[&OutPort::O]
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

#[test]
fn handles_of_another_graph() {
    let (big, _, _) = forward();
    let foreign = g_output(&big);
    let mut g = Graph::new(GraphOptions::default());
    let q = g.tensor(Tensor::new("Q", DIM));
    let before = g.clone();
    assert_eq!(g.sdpa(q, q, foreign, Sdpa::default()).unwrap_err().code, ErrorCode::BadTensor);
    assert_eq!(g.sdpa(q, q, q, Sdpa { sink: Some(foreign), ..Sdpa::default() }).unwrap_err().code, ErrorCode::BadTensor);
    assert_eq!(g.output(foreign).unwrap_err().code, ErrorCode::BadTensor);
    assert_eq!(g.ragged(q, foreign, 1).unwrap_err().code, ErrorCode::BadTensor);
    assert_eq!(g, before, "a refused call adds nothing");
    raw(&mut g, "raw", &[(InPort::Q, q), (InPort::K, foreign)], &[]);
    assert_eq!(code(&g), ErrorCode::BadTensor);
}

#[test]
fn a_graph_without_nodes() {
    let mut g = Graph::new(GraphOptions::default());
    g.tensor(Tensor::new("Q", DIM));
    assert_eq!(code(&g), ErrorCode::GraphState);
}

#[test]
fn scalars_carry_their_type() {
    let mut g = Graph::new(GraphOptions::default());
    let s = g.scalar("scale", ScalarValue::F32(0.5));
    let t = g.get(s).unwrap();
    assert_eq!(
        (t.dim.as_slice(), t.dtype, t.pass_by_value, t.value),
        (&[1, 1, 1, 1][..], Some(DType::F32), true, Some(ScalarValue::F32(0.5)))
    );
    assert_eq!(ScalarValue::BF16(0).dtype(), DType::BF16);
    assert_eq!(ScalarValue::I64(0).dtype(), DType::I64);
}

fn raw(g: &mut Graph, name: &str, inputs: &[(InPort, TensorId)], outputs: &[(OutPort, TensorId)]) {
    let (inputs, outputs) = (inputs.iter().copied().collect(), outputs.iter().copied().collect());
    g.node(Node { name: name.into(), op: Op::Sdpa(SdpaAttrs::default()), inputs, outputs, compute_dtype: None });
}

#[test]
fn a_tensor_produced_twice() {
    let (mut g, [q, k, v], o) = forward();
    raw(&mut g, "again", &[(InPort::Q, q), (InPort::K, k), (InPort::V, v)], &[(OutPort::O, o)]);
    assert_eq!(
        error(&g).to_string(),
        "FG1103: tensor 'sdpa::O' is an output of node 'sdpa' and again of node 'again'; expected one producing port per tensor"
    );
    let mut g = Graph::new(GraphOptions::default());
    let [q, k, v] = qkv(&mut g);
    let t = g.tensor(Tensor::new("t", DIM));
    raw(&mut g, "n", &[(InPort::Q, q), (InPort::K, k), (InPort::V, v)], &[(OutPort::O, t), (OutPort::Stats, t)]);
    assert_eq!(code(&g), ErrorCode::ProducedTwice, "two ports of one node");
}

#[test]
fn cycles_name_their_nodes() {
    let mut g = Graph::new(GraphOptions::default());
    let [_, k, v] = qkv(&mut g);
    let [a, b] = ["a", "b"].map(|n| g.tensor(Tensor::new(n, DIM)));
    raw(&mut g, "first", &[(InPort::Q, b), (InPort::K, k), (InPort::V, v)], &[(OutPort::O, a)]);
    raw(&mut g, "second", &[(InPort::Q, a), (InPort::K, k), (InPort::V, v)], &[(OutPort::O, b)]);
    assert_eq!(
        error(&g).to_string(),
        "FG1101: node 'first', node 'second' waiting for their own output; expected nodes that can be put in an order"
    );
    let mut g = Graph::new(GraphOptions::default());
    let [q, k, v] = qkv(&mut g);
    raw(&mut g, "", &[(InPort::Q, q), (InPort::K, k), (InPort::V, v)], &[(OutPort::O, q)]);
    assert_eq!(error(&g).given, "node 0 waiting for its own output", "in place is a cycle");
}

#[test]
fn nodes_are_ordered_by_what_they_need() {
    let mut g = Graph::new(GraphOptions::default());
    let [q, k, v] = qkv(&mut g);
    let t: Vec<TensorId> = (0..3).map(|i| g.tensor(Tensor::new(format!("t{i}"), DIM))).collect();
    raw(&mut g, "last", &[(InPort::Q, t[1]), (InPort::K, k), (InPort::V, v)], &[(OutPort::O, t[2])]);
    raw(&mut g, "middle", &[(InPort::Q, t[0]), (InPort::K, k), (InPort::V, v)], &[(OutPort::O, t[1])]);
    raw(&mut g, "first", &[(InPort::Q, q), (InPort::K, k), (InPort::V, v)], &[(OutPort::O, t[0])]);
    assert_eq!(g.freeze().unwrap().order(), [2, 1, 0]);
    // Independent nodes stay as they were inserted.
    let mut g = Graph::new(GraphOptions::default());
    let [q, k, v] = qkv(&mut g);
    for _ in 0..5 {
        g.sdpa(q, k, v, Sdpa::default()).unwrap();
    }
    assert_eq!(g.freeze().unwrap().order(), [0, 1, 2, 3, 4]);
}

#[test]
fn forward_feeds_backward() {
    let mut g = Graph::new(GraphOptions { intermediate: None, ..GraphOptions::default() });
    let [q, k, v] = qkv(&mut g);
    let out = g.sdpa(q, k, v, Sdpa { generate_stats: Some(true), ..Sdpa::default() }).unwrap();
    let d_o = g.tensor(Tensor::new("dO", DIM));
    let grads = g.sdpa_backward(q, k, v, out.o, d_o, out.stats.unwrap(), SdpaBackward::default()).unwrap();
    g.output(grads.dq).unwrap();
    let f = g.freeze().unwrap();
    assert_eq!(f.order(), [0, 1]);
    assert!(f.tensor(out.o).is_virtual && !f.tensor(grads.dq).is_virtual);
    assert_eq!(f.tensor(out.o).dtype, Some(DType::BF16), "without an intermediate type, virtual tensors take the io type");
}

/// An operand that the operation ignores is refused, not ignored: an output would stay unwritten (invariant I6).
#[test]
fn foreign_operands() {
    let mut g = Graph::new(GraphOptions::default());
    let [q, k, v] = qkv(&mut g);
    let [o, dq] = ["o", "dq"].map(|n| g.tensor(Tensor::new(n, DIM)));
    let base = g.clone();
    raw(&mut g, "n", &[(InPort::Q, q), (InPort::K, k), (InPort::V, v)], &[(OutPort::O, o), (OutPort::DQ, dq)]);
    assert_eq!(error(&g).to_string(), "FG1108 at node 'n': output dQ on SDPA; expected operands of the operation only");
    let mut g = base;
    raw(&mut g, "n", &[(InPort::Q, q), (InPort::K, k), (InPort::V, v), (InPort::DO, q)], &[(OutPort::O, o)]);
    assert_eq!(error(&g).given, "input dO on SDPA");
}

/// A Stats output that the attributes rule out contradicts itself.
#[test]
fn stats_output_without_stats() {
    let mut g = Graph::new(GraphOptions::default());
    let [q, k, v] = qkv(&mut g);
    let [o, stats] = [("o", DIM), ("stats", [2, 4, 16, 1])].map(|(n, d)| g.tensor(Tensor::new(n, d).dtype(DType::F32)));
    let node = |generate_stats| Node {
        name: "n".into(),
        op: Op::Sdpa(SdpaAttrs { generate_stats, ..SdpaAttrs::default() }),
        inputs: [(InPort::Q, q), (InPort::K, k), (InPort::V, v)].into(),
        outputs: [(OutPort::O, o), (OutPort::Stats, stats)].into(),
        compute_dtype: None,
    };
    for (generate_stats, expected) in [(Some(false), Some(ErrorCode::BadAttribute)), (None, None), (Some(true), None)] {
        let mut g = g.clone();
        g.node(node(generate_stats));
        assert_eq!(g.freeze().err().map(|e| e.code), expected, "{generate_stats:?}");
    }
}

/// A chain of n forwards, each the query of the next.
fn chain(n: usize, backwards: bool) -> Graph {
    let mut g = Graph::new(GraphOptions { intermediate: None, ..GraphOptions::default() });
    let [q, k, v] = qkv(&mut g);
    let t: Vec<TensorId> = (0..n).map(|i| g.tensor(Tensor::new(format!("t{i}"), DIM))).collect();
    let mut insert = |i: usize| {
        let x = if i == 0 { q } else { t[i - 1] };
        raw(&mut g, &format!("n{i}"), &[(InPort::Q, x), (InPort::K, k), (InPort::V, v)], &[(OutPort::O, t[i])]);
    };
    if backwards {
        (0..n).rev().for_each(&mut insert);
    } else {
        (0..n).for_each(&mut insert);
    }
    g
}

fn best_of_three(g: &Graph) -> Duration {
    let time = || {
        let t = Instant::now();
        assert_eq!(g.freeze().unwrap().order().len(), g.nodes().len());
        t.elapsed()
    };
    (0..3).map(|_| time()).min().unwrap()
}

/// A hundred times the nodes take about a hundred times as long; one quadratic step would take ten thousand times. The bound lies
/// between, far from both, so that a busy machine does not decide.
#[test]
fn a_hundred_thousand_nodes_in_linear_time() {
    for backwards in [false, true] {
        let (small, large) = (best_of_three(&chain(1_000, backwards)), best_of_three(&chain(100_000, backwards)));
        assert!(large < small * 2_000, "1,000 nodes {small:?}, 100,000 nodes {large:?}");
    }
}

#[test]
fn long_cycles_are_named_in_short() {
    let mut g = chain(10_000, false);
    let first = g.nodes()[0].inputs[&InPort::Q];
    let [k, v] = [InPort::K, InPort::V].map(|p| g.nodes()[0].inputs[&p]);
    let last = g.nodes()[9_999].outputs[&OutPort::O];
    raw(&mut g, "back", &[(InPort::Q, last), (InPort::K, k), (InPort::V, v)], &[(OutPort::O, first)]);
    let e = error(&g);
    assert_eq!(e.code, ErrorCode::Cycle);
    assert!(e.given.ends_with(", 9993 more waiting for their own output"), "{e}");
}

/// Building is linear too: automatic names cost no search.
#[test]
fn ten_thousand_automatic_names_are_unique() {
    let mut g = Graph::new(GraphOptions::default());
    let [q, k, v] = qkv(&mut g);
    for _ in 0..10_000 {
        g.sdpa(q, k, v, Sdpa::default()).unwrap();
    }
    let names: std::collections::BTreeSet<&str> = g.nodes().iter().map(|n| n.name.as_str()).collect();
    assert_eq!(names.len(), 10_000);
}
