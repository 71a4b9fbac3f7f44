//! Freezing: identifiers, defaults, inference, sizes, and how nodes hang together.

mod geometry;
mod names;
mod structure;

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

fn g_output(g: &Graph) -> TensorId {
    g.nodes()[0].outputs[&OutPort::O]
}
