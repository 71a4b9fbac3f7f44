//! What the user left open.

use super::View;
use crate::graph::infer::{compact, row_major};
use crate::graph::{InPort, MoeGroupedMatmulAttrs, Node, OutPort, Tensor, TensorId};
use crate::{DType, Result};

/// Strides of weight scales that the user left open: blocks are contiguous, as K is.
pub(in crate::graph) fn input_strides(node: &Node, tensors: &mut [Tensor]) -> Result<()> {
    if let Some(id) = node.inputs.get(&InPort::Sfb) {
        let t = &mut tensors[id.0 as usize];
        if t.stride.is_empty() && t.dim.len() == 3 && t.dim.iter().all(|&d| d > 0) {
            t.stride = compact(&t.dim, &[0, 2, 1])?;
        }
    }
    Ok(())
}

/// Element types that only one value makes sense for, where none is named.
pub(in crate::graph) fn dtypes(node: &Node, tensors: &mut [Tensor]) {
    let integers = [InPort::FirstTokenOffset, InPort::TokenIndex, InPort::TokenKs].map(|p| node.inputs.get(&p));
    for id in integers.into_iter().chain([node.outputs.get(&OutPort::Status)]).flatten() {
        let t = &mut tensors[id.0 as usize];
        t.dtype = t.dtype.or(Some(DType::I32));
    }
}

/// Extents and strides of outputs that the user left open; operands have been found present.
pub(in crate::graph) fn outputs(node: &Node, a: &MoeGroupedMatmulAttrs, tensors: &mut [Tensor]) -> Result<()> {
    let v = View { node, a, tensors };
    let (routed, n) = (v.routed(), v.n());
    for (port, &TensorId(id)) in &node.outputs {
        let t = &mut tensors[id as usize];
        if t.dim.is_empty() {
            t.dim = if *port == OutPort::Status { vec![1] } else { vec![1, routed, n] };
        }
        if t.stride.is_empty() {
            t.stride = row_major(&t.dim)?;
        }
    }
    Ok(())
}
