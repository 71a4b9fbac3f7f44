//! How large buffers must be.

use super::{label, HostTensor, HostTensors};
use crate::graph::{FrozenGraph, TensorId};
use crate::{Error, ErrorCode, Result};
use frostgraph_engines::sdpa::access::Inputs;
use frostgraph_engines::DType;
use std::collections::BTreeSet;

/// Tensors that some node writes.
pub(super) fn produced(graph: &FrozenGraph) -> BTreeSet<TensorId> {
    graph.nodes().iter().flat_map(|n| n.outputs.values().copied()).collect()
}

/// Tensors that some node reads, ragged offsets included.
fn read(graph: &FrozenGraph) -> BTreeSet<TensorId> {
    let ports = |n: &crate::graph::Node| n.inputs.values().chain(n.outputs.values()).copied().collect::<Vec<_>>();
    let mut ids: BTreeSet<TensorId> = graph.nodes().iter().flat_map(|n| n.inputs.values().copied()).collect();
    ids.extend(graph.nodes().iter().flat_map(ports).filter_map(|id| graph.tensor(id).ragged.map(|r| r.offset)));
    ids
}

/// Tensors that the caller must give, in creation order: read by some node, written by none, without a value of their own.
pub fn input_ids(graph: &FrozenGraph) -> Vec<TensorId> {
    let produced = produced(graph);
    read(graph).into_iter().filter(|id| !produced.contains(id) && graph.tensor(*id).value.is_none()).collect()
}

/// Tensors that the caller gets back, in creation order: written by some node and not virtual.
pub fn output_ids(graph: &FrozenGraph) -> Vec<TensorId> {
    produced(graph).into_iter().filter(|id| !graph.tensor(*id).is_virtual).collect()
}

/// Bytes from the first to one past the last addressed element.
///
/// A packed tensor ends where its last sequence's slot does, which its offsets in `inputs` tell. All arithmetic is checked 64-bit.
pub fn tensor_bytes(graph: &FrozenGraph, id: TensorId, inputs: &Inputs<'_>) -> Result<u64> {
    let t = graph.tensor(id);
    let overflow = || {
        Error::new(ErrorCode::BadDims, format!("extents {:?} with strides {:?}", t.dim, t.stride), "a span in 64-bit bytes")
            .at(label(graph, id))
    };
    let far =
        |axes: &[usize]| axes.iter().try_fold(0i64, |sum, &a| sum.checked_add((t.dim[a] - 1).max(0).checked_mul(t.stride[a])?));
    let all: Vec<usize> = (0..t.dim.len().min(t.stride.len())).collect();
    let end = match t.ragged {
        Some(r) if t.dim.len() == 4 => {
            let offset = graph.tensor(r.offset);
            let bytes = inputs.get(&offset.uid.unwrap_or_default()).copied().unwrap_or_default();
            let port = super::lengths::int_port(offset);
            let count = usize::try_from(t.dim[0]).map_err(|_| overflow())? + 1;
            let offsets = frostgraph_engines::sdpa::access::read_ints(&port, 0, count, bytes).map_err(super::data_error)?;
            let row = t.stride[2].max(1);
            // The last row that a slot has room for; an empty tensor still gets one element, so that it has an address.
            let ends = offsets.windows(2).filter_map(|w| {
                let (from, to) = (w[0].checked_mul(r.multiplier), w[1].checked_mul(r.multiplier));
                match from.zip(to) {
                    Some((from, to)) if to - from < row => None,
                    Some((from, to)) => {
                        Some(far(&[1, 3]).and_then(|f| f.checked_add(from)?.checked_add(((to - from) / row - 1) * row)))
                    }
                    None => Some(None),
                }
            });
            ends.max_by_key(|e| e.unwrap_or(i64::MAX)).unwrap_or(Some(0))
        }
        Some(_) | None => far(&all),
    };
    let bits = u64::from(t.dtype.unwrap_or(DType::F32).bits());
    let elements = end.and_then(|e| e.checked_add(1)).and_then(|e| u64::try_from(e).ok()).ok_or_else(overflow)?;
    elements.checked_mul(bits).map(|b| b.div_ceil(8)).ok_or_else(overflow)
}

/// Buffers for everything the graph gives back, filled with 0xFF (NaN in every float format), so that an element that an engine
/// forgets is seen.
pub fn outputs(graph: &FrozenGraph, inputs: &HostTensors) -> Result<HostTensors> {
    let view = inputs.view();
    let mut out = HostTensors::default();
    for id in output_ids(graph) {
        let mut t = HostTensor::zeroed(tensor_bytes(graph, id, &view)?).map_err(|e| e.at(label(graph, id)))?;
        t.bytes_mut().fill(0xFF);
        out.0.insert(graph.tensor(id).uid.unwrap_or_default(), t);
    }
    Ok(out)
}
