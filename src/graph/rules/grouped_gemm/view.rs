//! One node under validation: its operands and extents by name.

use crate::graph::{GroupedGemmDsreluAttrs, InPort, Node, OutPort, Tensor};
use crate::DType;

/// One node under validation.
pub(super) struct View<'a> {
    pub node: &'a Node,
    pub a: &'a GroupedGemmDsreluAttrs,
    pub tensors: &'a [Tensor],
}

impl<'a> View<'a> {
    pub fn input(&self, port: InPort) -> Option<&'a Tensor> {
        self.node.inputs.get(&port).map(|id| &self.tensors[id.0 as usize])
    }

    pub fn output(&self, port: OutPort) -> Option<&'a Tensor> {
        self.node.outputs.get(&port).map(|id| &self.tensors[id.0 as usize])
    }

    pub fn extent(&self, port: InPort, axis: usize) -> i64 {
        self.input(port).and_then(|t| t.dim.get(axis)).copied().unwrap_or(0)
    }

    pub fn ptrs(&self) -> bool {
        self.input(InPort::BPtrs).is_some()
    }

    pub fn m(&self) -> i64 {
        self.extent(InPort::A, 0)
    }

    /// Packed bytes hold two values.
    pub fn k(&self) -> i64 {
        self.extent(InPort::A, 1).saturating_mul(packing(self.input(InPort::A)))
    }

    pub fn n(&self) -> i64 {
        if self.ptrs() {
            self.a.n.unwrap_or(0)
        } else {
            self.extent(InPort::B, 0)
        }
    }

    pub fn experts(&self) -> i64 {
        self.extent(InPort::PaddedOffsets, 0)
    }

    /// E2M1 also where it is declared as packed bytes.
    pub fn ab(&self) -> DType {
        self.input(InPort::A).map_or(DType::F32, payload)
    }

    pub fn quantised(&self) -> bool {
        self.output(OutPort::DRow).is_some_and(|t| dtype(t).is_fp8())
    }
}

pub(super) fn dtype(t: &Tensor) -> DType {
    t.dtype.unwrap_or(DType::F32)
}

/// Element type of a payload: packed bytes are E2M1.
pub(crate) fn payload(t: &Tensor) -> DType {
    match dtype(t) {
        DType::U8 => DType::F4E2M1,
        other => other,
    }
}

pub(super) fn packing(t: Option<&Tensor>) -> i64 {
    if t.is_some_and(|t| t.dtype == Some(DType::U8)) {
        2
    } else {
        1
    }
}

pub(super) fn named(port: &str, t: &Tensor) -> String {
    format!("{port} '{}'", t.name)
}
