//! Cost of `Graph::build` (validate, freeze, analyse, match, rank): one backward node warm, and large graphs per node.
//!
//! `cargo bench --bench build`. Prints a table; targets are one node at most 50 µs and time linear in nodes (ratio near 1).

use frostgraph::graph::{AttnScale, Graph, GraphOptions, Mask, SdpaBackward, Tensor, TensorId};
use frostgraph::plan::BuildOptions;
use frostgraph::{DType, Device};
use std::hint::black_box;
use std::time::{Duration, Instant};

const DIM: [i64; 4] = [2, 8, 1024, 64];
const STRIDE: [i64; 4] = [1024 * 8 * 64, 64, 8 * 64, 1];

fn io(g: &mut Graph, name: &str) -> TensorId {
    g.tensor(Tensor::new(name, DIM).strides(STRIDE))
}

/// A chain of backward nodes: each takes the previous dQ as its dO.
fn chain(nodes: usize) -> Graph {
    let mut g = Graph::new(GraphOptions { io: DType::BF16, ..GraphOptions::default() });
    let mut d_o = io(&mut g, "dO");
    for _ in 0..nodes {
        let [q, k, v, o] = ["q", "k", "v", "o"].map(|n| io(&mut g, n));
        let stats = g.tensor(Tensor::new("stats", [2, 8, 1024, 1]).dtype(DType::F32));
        let options = SdpaBackward {
            mask: Mask::causal(),
            attn_scale: Some(AttnScale::Value(0.125)),
            deterministic: true,
            ..Default::default()
        };
        let grads = g.sdpa_backward(q, k, v, o, d_o, stats, options).expect("handles of this graph");
        for id in [grads.dq, grads.dk, grads.dv] {
            g.output(id).expect("handles of this graph");
        }
        d_o = grads.dq;
    }
    g
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn time(g: &Graph, device: &Device, runs: usize) -> Duration {
    let options = BuildOptions::all_engines();
    let once = || {
        let start = Instant::now();
        black_box(g.build_with(device, &options).expect("a graph that is served"));
        start.elapsed()
    };
    for _ in 0..runs.min(100) {
        once();
    }
    median((0..runs).map(|_| once()).collect())
}

fn main() {
    for name in ["cpu", "sm_90", "sm_120"] {
        let device = Device::describe(name).expect("a known device");
        let one = time(&chain(1), &device, 2001);
        println!("{name:7} build of 1 backward node      {:8.1} us   (target 50)", one.as_secs_f64() * 1e6);
        let small = time(&chain(1_000), &device, 11);
        let large = time(&chain(10_000), &device, 3);
        let per = |t: Duration, n: f64| t.as_secs_f64() * 1e6 / n;
        println!(
            "{name:7} build of 1,000 nodes          {:8.1} ms   {:.2} us a node",
            small.as_secs_f64() * 1e3,
            per(small, 1e3)
        );
        println!(
            "{name:7} build of 10,000 nodes         {:8.1} ms   {:.2} us a node",
            large.as_secs_f64() * 1e3,
            per(large, 1e4)
        );
        println!("{name:7} growth a node, 10,000 / 1,000 {:8.2}      (1 is linear)", per(large, 1e4) / per(small, 1e3));
    }
}
