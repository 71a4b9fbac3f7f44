//! From a frozen graph to facts: what each node asks for, in the vocabulary of the engines.
//!
//! Facts describe and never judge (invariant I2). Only a graph that is malformed for every engine gets `invalid`, with the first reason
//! in the order of facts §3.5; every row then declines with that text.

mod grouped_gemm;
mod moe;
mod sdpa;

use crate::graph::{FrozenGraph, Op};
use frostgraph_engines::sdpa::Direction;
use frostgraph_engines::Facts;

/// Facts of the node at this index of [`FrozenGraph::nodes`].
///
/// # Panics
/// When `node` is not below the number of nodes.
pub fn analyze(graph: &FrozenGraph, node: usize) -> Facts {
    let node = &graph.nodes()[node];
    match &node.op {
        Op::Sdpa(a) => Facts::Sdpa(Box::new(sdpa::forward(graph, node, a))),
        Op::SdpaBackward(a) => Facts::Sdpa(Box::new(sdpa::backward(graph, node, a))),
        Op::Nvfp4Qat(a) => Facts::Sdpa(Box::new(sdpa::qat(graph, node, a, Direction::Forward))),
        Op::Nvfp4QatBackward(a) => Facts::Sdpa(Box::new(sdpa::qat(graph, node, a, Direction::Backward))),
        Op::GroupedGemmDsrelu(a) => Facts::GroupedGemm(Box::new(grouped_gemm::facts(graph, node, a))),
        Op::MoeGroupedMatmul(a) => Facts::Moe(Box::new(moe::facts(graph, node, a))),
    }
}
