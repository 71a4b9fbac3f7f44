//! A frozen graph: validated, complete, ordered. The only input of the analyzer.

use super::{GraphOptions, Node, Tensor, TensorId};

/// A graph whose tensors all have uid, extents, strides and element type, whose nodes passed every rule and stand in execution order.
#[derive(Debug, Clone, PartialEq)]
pub struct FrozenGraph {
    pub(crate) options: GraphOptions,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) nodes: Vec<Node>,
    /// Indices into `nodes` in topological order.
    pub(crate) order: Vec<usize>,
}

impl FrozenGraph {
    /// Graph-wide options.
    pub fn options(&self) -> &GraphOptions {
        &self.options
    }

    /// The tensor behind a handle; handles are those of the graph that was frozen.
    ///
    /// # Panics
    /// On a handle of another graph that lies beyond this one's tensors.
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.0 as usize]
    }

    /// Tensors in creation order.
    pub fn tensors(&self) -> impl Iterator<Item = (TensorId, &Tensor)> {
        self.tensors.iter().enumerate().map(|(i, t)| (TensorId(i as u32), t))
    }

    /// Keys of the longest sequence of an attention node.
    pub(crate) fn s_kv(&self, node: &Node) -> i64 {
        super::infer::s_kv(node, &self.tensors)
    }

    /// Nodes in insertion order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Indices into `nodes` in topological order.
    pub fn order(&self) -> &[usize] {
        &self.order
    }
}
