//! Extents, strides and types that the user left open.

use super::view::View;
use crate::graph::infer::{compact, overflow, row_major};
use crate::graph::{BMajor, GroupedGemmDsreluAttrs, InPort, Node, OutPort, Tensor, TensorId};
use crate::{DType, Result};
use frostgraph_engines::grouped_gemm::scales;

/// Strides of inputs that the user left open: B by its major extent, scale atoms by their view; everything else is row-major.
pub(in crate::graph) fn input_strides(node: &Node, a: &GroupedGemmDsreluAttrs, tensors: &mut [Tensor]) -> Result<()> {
    let dense = !node.inputs.contains_key(&InPort::BPtrs);
    for (port, &id) in &node.inputs {
        let t = &mut tensors[id.0 as usize];
        if !t.stride.is_empty() || t.dim.iter().any(|&d| d < 1) {
            continue;
        }
        match port {
            InPort::B if dense && t.dim.len() == 3 => {
                let order = if a.b_major == BMajor::N { [2, 1, 0] } else { [2, 0, 1] };
                t.stride = compact(&t.dim, &order)?;
            }
            InPort::Sfa | InPort::Sfb if t.dim.len() == 6 && t.dim[..2] == [32, 4] => t.stride = view_strides(&t.dim)?,
            _ => {}
        }
    }
    Ok(())
}

fn view_strides(dim: &[i64]) -> Result<Vec<i64>> {
    let six: Option<[i64; 6]> = dim.try_into().ok();
    let strides = six.and_then(|d| scales::strides(&d)).ok_or_else(|| overflow(dim))?;
    Ok(strides.to_vec())
}

/// Element types of outputs that name none.
pub(in crate::graph) fn dtypes(node: &Node, a: &GroupedGemmDsreluAttrs, tensors: &mut [Tensor]) {
    let sf = node.inputs.get(&InPort::Sfa).and_then(|id| tensors[id.0 as usize].dtype);
    for (port, &id) in &node.outputs {
        let t = &mut tensors[id.0 as usize];
        let default = match port {
            OutPort::DRow | OutPort::DCol | OutPort::DSrelu => Some(a.d_dtype),
            OutPort::DBias => Some(DType::BF16),
            OutPort::Status => Some(DType::I32),
            OutPort::SfdRow | OutPort::SfdCol | OutPort::SfdColDSrelu => sf,
            _ => Some(DType::F32),
        };
        t.dtype = t.dtype.or(default);
    }
}

/// Extents and strides of outputs that the user left open; operands have been found present.
pub(in crate::graph) fn outputs(node: &Node, a: &GroupedGemmDsreluAttrs, tensors: &mut [Tensor]) -> Result<()> {
    let v = View { node, a, tensors };
    let (m, n, l) = (v.m(), v.n(), v.experts());
    for (port, &TensorId(id)) in &node.outputs {
        let dim: Option<Vec<i64>> = match port {
            OutPort::DRow | OutPort::DCol | OutPort::DSrelu => Some(vec![m, n, 1]),
            OutPort::DProb => Some(vec![m, 1, 1]),
            OutPort::DBias => Some(vec![l, n, 1]),
            OutPort::Amax => Some(vec![l, 1]),
            OutPort::Status => Some(vec![1]),
            OutPort::SfdRow => scales::extents(m, n, 32, 1).map(|e| e.to_vec()),
            OutPort::SfdCol | OutPort::SfdColDSrelu => scales::extents(n, m, 32, 1).map(|e| e.to_vec()),
            _ => None,
        };
        let t = &mut tensors[id as usize];
        if t.dim.is_empty() {
            t.dim = dim.unwrap_or_default();
        }
        if t.stride.is_empty() {
            let view = t.dim.len() == 6 && t.dim[..2] == [32, 4];
            t.stride = if view { view_strides(&t.dim)? } else { row_major(&t.dim)? };
        }
    }
    Ok(())
}
