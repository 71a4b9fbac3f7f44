//! Nodes: an operation with its operands.

use super::{InPort, OutPort, SdpaAttrs, SdpaBackwardAttrs, TensorId};
use crate::DType;
use std::collections::BTreeMap;

/// What a node computes.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// `SDPA`: attention forward.
    Sdpa(SdpaAttrs),
    /// `SDPA_BWD`: attention backward.
    SdpaBackward(SdpaBackwardAttrs),
}

impl Op {
    /// JSON tag.
    pub fn tag(&self) -> &'static str {
        match self {
            Op::Sdpa(_) => "SDPA",
            Op::SdpaBackward(_) => "SDPA_BWD",
        }
    }

    /// The mask spelling.
    pub fn mask(&self) -> &super::Mask {
        match self {
            Op::Sdpa(a) => &a.mask,
            Op::SdpaBackward(a) => &a.mask,
        }
    }
}

/// One operation of a graph.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Label; automatic output names are `<node>::<port>`.
    pub name: String,
    /// Operation with its attributes.
    pub op: Op,
    /// Operands read.
    pub inputs: BTreeMap<InPort, TensorId>,
    /// Operands written.
    pub outputs: BTreeMap<OutPort, TensorId>,
    /// Node-level compute type; `None` takes the graph's.
    pub compute_dtype: Option<DType>,
}
