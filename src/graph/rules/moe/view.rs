//! One node with its operands, and what the rules and the analyzer read from it.

use crate::graph::{InPort, MoeGroupedMatmulAttrs, MoeMode, Node, OutPort, Tensor};
use crate::DType;

/// One node under validation; also what the analyzer reads extents from.
pub(crate) struct View<'a> {
    pub node: &'a Node,
    pub a: &'a MoeGroupedMatmulAttrs,
    pub tensors: &'a [Tensor],
}

pub(super) fn dtype(t: &Tensor) -> DType {
    t.dtype.unwrap_or(DType::F32)
}

pub(super) fn named(port: &str, t: &Tensor) -> String {
    format!("{port} '{}'", t.name)
}

impl<'a> View<'a> {
    pub fn input(&self, port: InPort) -> Option<&'a Tensor> {
        self.node.inputs.get(&port).map(|id| &self.tensors[id.0 as usize])
    }

    pub fn output(&self, port: OutPort) -> Option<&'a Tensor> {
        self.node.outputs.get(&port).map(|id| &self.tensors[id.0 as usize])
    }

    pub(super) fn extent(&self, port: InPort, axis: usize) -> i64 {
        self.input(port).and_then(|t| t.dim.get(axis)).copied().unwrap_or(0)
    }

    pub fn tokens(&self) -> i64 {
        self.extent(InPort::Token, 1)
    }

    pub fn k(&self) -> i64 {
        self.extent(InPort::Token, 2)
    }

    pub fn n(&self) -> i64 {
        self.extent(InPort::Weight, 2)
    }

    pub fn experts(&self) -> i64 {
        self.extent(InPort::Weight, 0)
    }

    pub fn routed(&self) -> i64 {
        match self.a.mode {
            MoeMode::Gather => self.extent(InPort::TokenIndex, 1),
            MoeMode::None | MoeMode::Scatter => self.tokens(),
        }
    }

    /// Groups and whether the last boundary is among the offsets. One expert: two offsets or more are boundaries, one is a start.
    pub fn groups(&self) -> Option<(i64, bool)> {
        let (list, experts) = (self.extent(InPort::FirstTokenOffset, 0), self.experts());
        match (experts, list) {
            (1, 1) => Some((1, false)),
            (1, n) if n > 1 => Some((n - 1, true)),
            (e, n) if e > 1 && n > 0 && n % e == 0 => Some((n, false)),
            (e, n) if e > 1 && n > 1 && n % e == 1 => Some((n - 1, true)),
            _ => None,
        }
    }
}
