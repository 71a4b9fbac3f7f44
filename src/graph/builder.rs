//! The graph under construction.

use super::{InPort, Node, OutPort, RaggedOffset, ScalarValue, Tensor, TensorId};
use crate::{DType, Error, ErrorCode, Result};
use std::collections::BTreeMap;

/// Which validation rules apply at freeze.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compat {
    /// Rules that only express what cuDNN could not run are lifted where this project's own engines run it; see
    /// [`rules`](crate::graph::rules) for the list with reasons.
    #[default]
    Frostgraph,
    /// Every rule of facts §2.3 as it stands there: a graph that passes also passes cudnn-frontend's validation.
    Cudnn,
}

/// Graph-wide defaults and the JSON context.
#[derive(Debug, Clone, PartialEq)]
pub struct GraphOptions {
    /// Label of the graph; written to JSON only when not empty.
    pub name: String,
    /// Element type of tensors that name none.
    pub io: DType,
    /// False when a graph file leaves `io_data_type` null; tensors that are not virtual must then name their type.
    pub io_set: bool,
    /// Element type of virtual tensors that name none; `None` in JSON is kept as `null`.
    pub intermediate: Option<DType>,
    /// Compute type of nodes that name none.
    pub compute: Option<DType>,
    /// `sm_count` of the JSON context; -1 is unset.
    pub sm_count: i64,
    /// `is_dynamic_shape_enabled` of the JSON context.
    pub dynamic_shape: bool,
    /// `is_override_shape_enabled` of the JSON context.
    pub override_shape: bool,
    /// Validation rules applied at freeze; not part of a graph file.
    pub compat: Compat,
    /// `cudnn_frontend_version` of the file the graph came from; recorded only.
    pub frontend_version: i64,
    /// `cudnn_backend_version` of the file the graph came from; recorded only.
    pub backend_version: String,
}

impl Default for GraphOptions {
    fn default() -> GraphOptions {
        GraphOptions {
            name: String::new(),
            io: DType::BF16,
            io_set: true,
            intermediate: Some(DType::F32),
            compute: Some(DType::F32),
            sm_count: -1,
            dynamic_shape: false,
            override_shape: false,
            compat: Compat::Frostgraph,
            frontend_version: 13200,
            backend_version: "0.0.0".into(),
        }
    }
}

/// An operation graph under construction.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Graph {
    pub(crate) options: GraphOptions,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) nodes: Vec<Node>,
}

impl Graph {
    /// An empty graph.
    pub fn new(options: GraphOptions) -> Graph {
        Graph { options, tensors: Vec::new(), nodes: Vec::new() }
    }

    /// Adds a tensor and returns its handle.
    pub fn tensor(&mut self, tensor: Tensor) -> TensorId {
        self.tensors.push(tensor);
        TensorId(self.tensors.len() as u32 - 1)
    }

    /// Adds a raw node; the operation methods are built on it. Rules are checked at freeze.
    pub fn node(&mut self, node: Node) {
        self.nodes.push(node);
    }

    /// Graph-wide options.
    pub fn options(&self) -> &GraphOptions {
        &self.options
    }

    /// Changes graph-wide options, also of a graph that was read from a file.
    pub fn options_mut(&mut self) -> &mut GraphOptions {
        &mut self.options
    }

    /// Tensors in creation order.
    pub fn tensors(&self) -> impl Iterator<Item = (TensorId, &Tensor)> {
        self.tensors.iter().enumerate().map(|(i, t)| (TensorId(i as u32), t))
    }

    /// Nodes in insertion order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The tensor behind a handle.
    pub fn get(&self, id: TensorId) -> Result<&Tensor> {
        self.tensors.get(id.0 as usize).ok_or_else(|| {
            Error::new(
                ErrorCode::BadTensor,
                format!("handle {}", id.0),
                format!("a handle below {} of this graph", self.tensors.len()),
            )
        })
    }

    /// Mutable access to the tensor behind a handle.
    pub fn get_mut(&mut self, id: TensorId) -> Result<&mut Tensor> {
        let n = self.tensors.len();
        self.tensors.get_mut(id.0 as usize).ok_or_else(|| {
            Error::new(ErrorCode::BadTensor, format!("handle {}", id.0), format!("a handle below {n} of this graph"))
        })
    }

    /// Adds a host scalar handed over by value: extents (1, 1, 1, 1), element type and value from `value`.
    pub fn scalar(&mut self, name: impl Into<String>, value: ScalarValue) -> TensorId {
        let mut t = Tensor::new(name, [1, 1, 1, 1]).dtype(value.dtype());
        t.pass_by_value = true;
        t.value = Some(value);
        self.tensor(t)
    }

    /// Makes a tensor ragged, an operation's output included: batch b begins at element `offset[b] * multiplier`.
    pub fn ragged(&mut self, id: TensorId, offset: TensorId, multiplier: i64) -> Result<()> {
        self.get(offset)?;
        self.get_mut(id)?.ragged = Some(RaggedOffset { offset, multiplier });
        Ok(())
    }

    /// Marks an operation's output as visible to the caller; unmarked outputs are virtual and live in the workspace.
    ///
    /// Without an element type of its own, a visible tensor takes the io type and a virtual one the intermediate type; set
    /// `intermediate: None` in [`GraphOptions`] where virtual tensors between attention nodes should keep the io type.
    pub fn output(&mut self, id: TensorId) -> Result<()> {
        self.get_mut(id)?.is_virtual = false;
        Ok(())
    }

    /// The given operands as ports, each handle checked before anything is added to the graph.
    pub(super) fn operands(&self, list: &[(InPort, Option<TensorId>)]) -> Result<BTreeMap<InPort, TensorId>> {
        let mut ports = BTreeMap::new();
        for &(port, id) in list {
            let Some(id) = id else { continue };
            if id.0 as usize >= self.tensors.len() {
                let given = format!("handle {} as {}", id.0, port.json());
                let expected = format!("a handle below {} of this graph", self.tensors.len());
                return Err(Error::new(ErrorCode::BadTensor, given, expected)
                    .help("A handle is valid only in the graph that returned it"));
            }
            ports.insert(port, id);
        }
        Ok(ports)
    }

    /// The index of the node makes an automatic name unique among automatic names in constant time.
    pub(super) fn node_name(&self, given: String, base: &str) -> String {
        match (given.is_empty(), self.nodes.len()) {
            (false, _) => given,
            (true, 0) => base.to_string(),
            (true, n) => format!("{base}_{n}"),
        }
    }

    /// A new virtual tensor as this output of the node of that name.
    pub(super) fn produce(&mut self, node: &str, port: OutPort, outputs: &mut BTreeMap<OutPort, TensorId>) -> TensorId {
        let mut t = Tensor::new(format!("{node}::{}", port.json()), Vec::new());
        t.is_virtual = true;
        let id = self.tensor(t);
        outputs.insert(port, id);
        id
    }
}
