//! Running host steps: each node gets exactly its operands, its virtual tensors and its part of the workspace.

use super::bindings::{Binding, Bindings};
use super::executable::index;
use super::operand::{label, node_tensors, uid_of, Operand};
use crate::graph::FrozenGraph;
use crate::plan::Lowered;
use crate::{Error, ErrorCode, Result};
use frostgraph_engines::{HostBuffers, HostError, Step, Uid};
use std::collections::BTreeMap;

/// Tensors of one node by where they live.
#[derive(Debug)]
pub(super) struct HostNode {
    /// Places in the operand list with whether the node writes the tensor.
    bound: Vec<(usize, bool)>,
    /// Virtual tensors, ascending by offset.
    virtuals: Vec<Area>,
}

#[derive(Debug, Clone, Copy)]
struct Area {
    uid: Uid,
    offset: usize,
    bytes: usize,
    written: bool,
}

fn addressable(n: u64) -> Result<usize> {
    usize::try_from(n).map_err(|_| Error::new(ErrorCode::Workspace, format!("{n} bytes"), "a size that this machine can address"))
}

/// Sorts out once per executable what each node touches.
pub(super) fn nodes(g: &FrozenGraph, lowered: &Lowered) -> Result<Vec<HostNode>> {
    let at = index(&super::operand::operands(g)?);
    let areas: BTreeMap<Uid, (u64, u64)> = lowered.virtuals.iter().map(|v| (v.uid, (v.offset, v.bytes))).collect();
    addressable(lowered.workspace_bytes)?;
    let mut out = Vec::with_capacity(lowered.nodes.len());
    for n in &lowered.nodes {
        let tensors = node_tensors(g, n.node);
        let mut node = HostNode { bound: Vec::new(), virtuals: Vec::new() };
        for (id, written) in
            tensors.reads.into_iter().map(|id| (id, false)).chain(tensors.writes.into_iter().map(|id| (id, true)))
        {
            let uid = uid_of(g.tensor(id));
            match (at.get(&uid), areas.get(&uid)) {
                (Some(&i), _) => node.bound.push((i, written)),
                (None, Some(&(offset, bytes))) => {
                    let (offset, bytes) = (addressable(offset)?, addressable(bytes)?);
                    node.virtuals.push(Area { uid, offset, bytes, written });
                }
                (None, None) => {
                    let t = g.tensor(id);
                    let given = "a virtual tensor that no node produces";
                    return Err(Error::new(ErrorCode::DanglingTensor, given, "a producer").at(label(uid, &t.name)));
                }
            }
        }
        node.virtuals.sort_by_key(|a| a.offset);
        out.push(node);
    }
    Ok(out)
}

/// Runs every node in order. `workspace` has exactly the plan's bytes and its alignment.
pub(super) fn run(
    nodes: &[HostNode],
    lowered: &Lowered,
    operands: &[Operand],
    bindings: &mut Bindings<'_>,
    workspace: &mut [u8],
) -> Result<()> {
    for (node, low) in nodes.iter().zip(&lowered.nodes) {
        // A node's buffers are taken out of the map for its turn, which splits the borrow, and put back whatever happens.
        let mut taken: Vec<(&Operand, bool, Option<Binding<'_>>)> =
            node.bound.iter().map(|&(i, w)| (&operands[i], w, bindings.map.remove(&operands[i].uid))).collect();
        let result = run_node(node, low, &mut taken, &mut *workspace, lowered.scratch_offset as usize);
        for (o, _, b) in taken {
            if let Some(b) = b {
                bindings.map.insert(o.uid, b);
            }
        }
        result?;
    }
    Ok(())
}

fn run_node(
    node: &HostNode,
    low: &crate::plan::LoweredNode,
    taken: &mut [(&Operand, bool, Option<Binding<'_>>)],
    workspace: &mut [u8],
    scratch_offset: usize,
) -> Result<()> {
    let (shared, scratch) = workspace.split_at_mut(scratch_offset);
    let mut buffers = HostBuffers { workspace: &mut scratch[..low.scratch_bytes as usize], ..HostBuffers::default() };
    for (o, written, binding) in taken.iter_mut() {
        // A dense tensor is cut to the bytes it addresses: nothing behind it can be touched (I6).
        let cut = |len: usize| if o.ragged { len } else { o.bytes as usize };
        match binding {
            Some(Binding::Write(w)) => {
                let n = cut(w.len());
                if *written {
                    buffers.outputs.insert(o.uid, &mut w[..n]);
                } else {
                    buffers.inputs.insert(o.uid, &w[..n]);
                }
            }
            Some(Binding::Read(r)) => {
                buffers.inputs.insert(o.uid, &r[..cut(r.len())]);
            }
            Some(Binding::Device(_)) | None => {
                if let Some(v) = &o.value {
                    buffers.inputs.insert(o.uid, v);
                }
            }
        }
    }
    let mut rest = shared;
    let mut done = 0;
    for a in &node.virtuals {
        let (_, tail) = rest.split_at_mut(a.offset - done);
        let (area, tail) = tail.split_at_mut(a.bytes);
        (rest, done) = (tail, a.offset + a.bytes);
        if a.written {
            buffers.outputs.insert(a.uid, area);
        } else {
            buffers.inputs.insert(a.uid, area);
        }
    }
    for step in &low.launches.steps {
        match step {
            Step::Host(call) => (call.run)(&low.facts, &low.knobs, &mut buffers).map_err(|e| bad_data(low.row.name, e))?,
            Step::Kernel(k) => {
                let given = format!("kernel {} in the plan of a CPU row", k.name);
                return Err(Error::new(ErrorCode::BadDevice, given, "host steps").at(low.row.name));
            }
        }
    }
    Ok(())
}

fn bad_data(engine: &str, e: HostError) -> Error {
    Error::new(ErrorCode::BadData, e.given, e.expected).at(format!("{engine}, {}", e.tensor))
}
