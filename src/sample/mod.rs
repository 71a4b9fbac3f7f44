//! Data for a graph: inputs from a seed that make sense together, and the f64 oracle's results to compare with.
//!
//! What the caller gives stands; the rest is filled so that the graph can run on it: lengths within bounds, offsets that leave every
//! sequence its room, page tables inside their pools, and for a backward an O and Stats that belong to its Q, K and V.

mod expect;
mod fill;
mod grouped;
mod lengths;
mod moe;
mod rng;
mod size;
mod store;

pub use expect::{check, check_auxiliaries, expected, tolerance, Comparison, Expectation};
pub use fill::{indices, inputs};
pub(crate) use lengths::int_port;
pub use size::{input_ids, output_ids, outputs, tensor_bytes};
pub(crate) use store::available;
pub use store::{HostTensor, HostTensors};

use crate::graph::FrozenGraph;
use crate::{Error, ErrorCode};
use frostgraph_engines::HostError;

/// A fault that an engine or the oracle found in the data.
pub(crate) fn data_error(e: HostError) -> Error {
    Error::new(ErrorCode::BadData, e.given, e.expected).at(format!("tensor '{}'", e.tensor))
}

/// `uid 7 'dQ'`, or `uid 7` when the tensor has no name.
pub(crate) fn label(graph: &FrozenGraph, id: crate::graph::TensorId) -> String {
    let t = graph.tensor(id);
    crate::exec::operand::label(crate::exec::operand::uid_of(t), &t.name)
}
