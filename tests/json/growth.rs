//! Reading and writing take time in proportion to the file.

use frostgraph::graph::{Graph, GraphOptions, MoeGroupedMatmul, MoeScales, Sdpa, Tensor};
use frostgraph::json::{from_str, Strictness};
use frostgraph::DType;
use std::time::{Duration, Instant};

/// Attention nodes in a row.
fn attention(n: usize) -> Graph {
    let mut g = Graph::new(GraphOptions::default());
    let [mut q, k, v] = ["q", "k", "v"].map(|t| g.tensor(Tensor::new(t, [1, 1, 8, 16])));
    for i in 0..n {
        q = g.sdpa(q, k, v, Sdpa { name: format!("n{i}"), generate_stats: Some(false), ..Sdpa::default() }).unwrap().o;
    }
    g.output(q).unwrap();
    g
}

/// Block-scaled products, each with two dequantisations in its file.
fn products(n: usize) -> Graph {
    let mut g = Graph::new(GraphOptions::default());
    let token = g.tensor(Tensor::new("token", [1, 128, 64]).dtype(DType::F8E4M3));
    let weight = g.tensor(Tensor::new("weight", [1, 64, 128]).strides([8192, 1, 64]).dtype(DType::F8E4M3));
    let [a, b] = [None, Some(1)].map(|e| Tensor::moe_scales("scales", DType::F8E8M0, [128, 64], 32, e));
    let (a, b) = (g.tensor(a), g.tensor(b));
    let offsets = g.tensor(Tensor::new("offsets", [2, 1, 1]).dtype(DType::I32));
    for i in 0..n {
        let scales = Some(MoeScales { token: a, weight: b, vec: 32 });
        let options = MoeGroupedMatmul { name: format!("n{i}"), scales, ..MoeGroupedMatmul::default() };
        let out = g.moe_grouped_matmul(token, weight, offsets, options).unwrap().output;
        g.output(out).unwrap();
    }
    g
}

/// Time that this thread has had on a processor, where the system tells: a busy machine must not decide.
fn now(start: Instant) -> Duration {
    let spent = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = spent.and_then(|s| s.split_whitespace().next()?.parse().ok());
    nanos.map_or_else(|| start.elapsed(), Duration::from_nanos)
}

/// The least of three round trips.
fn round_trip(g: &Graph) -> Duration {
    let start = Instant::now();
    let time = || {
        let before = now(start);
        let read = from_str(&g.to_json().unwrap(), Strictness::Strict).unwrap().graph;
        // Once more, with what the file calls its dequantisations.
        assert_eq!(read.to_json().unwrap().is_empty(), g.nodes().is_empty());
        now(start) - before
    };
    (0..3).map(|_| time()).min().unwrap()
}

/// Ten times the nodes; one quadratic step would come to take a hundred times as long. The bound lies between.
#[test]
fn a_file_of_many_nodes_is_read_and_written_in_linear_time() {
    for make in [attention, products] {
        let (small, large) = (round_trip(&make(1_000)), round_trip(&make(10_000)));
        // The system counts in ticks of a few milliseconds.
        assert!(large < small.max(Duration::from_millis(4)) * 30, "1,000 nodes {small:?}, 10,000 nodes {large:?}");
    }
}
