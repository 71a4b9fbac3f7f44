//! Producers, cycles, the order of nodes, and its cost.

use super::*;

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
