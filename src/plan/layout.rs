//! Where everything of one plan lies in the workspace: virtual tensors first, then one scratch area that the nodes share in turn.

use crate::exec::operand::{declared_bytes, label, node_tensors, uid_of};
use crate::graph::FrozenGraph;
use crate::{Error, ErrorCode, Result};
use frostgraph_engines::launch::WORKSPACE_ALIGN;
use frostgraph_engines::{Facts, Knobs, LaunchPlan, Row, Uid};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A tensor that lives between nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VirtualTensor {
    /// Identifier.
    pub uid: Uid,
    /// Label; may be empty.
    pub name: String,
    /// Offset in the workspace, bytes.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// Virtual tensors of a graph: the part of the workspace that does not depend on the chosen engines.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct VirtualLayout {
    pub tensors: Vec<VirtualTensor>,
    pub bytes: u64,
}

/// Lays virtual tensors out in execution order of their producers, each rounded up to 128 bytes, all 64-bit checked.
pub(crate) fn virtual_layout(g: &FrozenGraph) -> Result<VirtualLayout> {
    let mut out = VirtualLayout::default();
    let mut seen = BTreeSet::new();
    for &node in g.order() {
        for id in node_tensors(g, node).writes {
            let t = g.tensor(id);
            if !t.is_virtual || !seen.insert(id) {
                continue;
            }
            let bytes = declared_bytes(t)?;
            out.tensors.push(VirtualTensor { uid: uid_of(t), name: t.name.clone(), offset: out.bytes, bytes });
            let end = bytes.checked_next_multiple_of(WORKSPACE_ALIGN).and_then(|b| out.bytes.checked_add(b));
            out.bytes = end.ok_or_else(|| too_large(&label(uid_of(t), &t.name)))?;
        }
    }
    Ok(out)
}

fn too_large(at: &str) -> Error {
    Error::new(ErrorCode::Workspace, "a workspace of more than 2^64 bytes", "extents whose workspace fits 64 bits").at(at)
}

/// One node of a lowered plan.
#[derive(Debug, Clone)]
pub struct LoweredNode {
    /// Index into the frozen graph's nodes.
    pub node: usize,
    /// Chosen engine.
    pub row: &'static Row,
    /// Complete knobs.
    pub knobs: Knobs,
    /// Facts of the node.
    pub facts: Arc<Facts>,
    /// Launches; region offsets and the workspace size count from the start of the whole workspace.
    pub launches: LaunchPlan,
    /// Workspace bytes of this node's own regions.
    pub scratch_bytes: u64,
}

/// A plan turned into launches, with its whole workspace.
#[derive(Debug, Clone)]
pub struct Lowered {
    /// Nodes in execution order.
    pub nodes: Vec<LoweredNode>,
    /// Tensors between nodes, at the start of the workspace.
    pub virtuals: Vec<VirtualTensor>,
    /// Where the nodes' regions begin. Nodes run one after the other, so they share this area.
    pub scratch_offset: u64,
    /// Bytes in all.
    pub workspace_bytes: u64,
}
