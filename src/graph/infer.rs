//! Defaults and inference: element types, extents and strides that the user left open.

use super::{rules, GraphOptions, InPort, Node, Op, OutPort, Tensor, TensorId};
use crate::{DType, Error, ErrorCode, Result};

/// Element types: f32 for softmax statistics and dSink, else the intermediate type for virtual tensors and the io type for others.
pub(super) fn dtypes(tensors: &mut [Tensor], nodes: &[Node], options: &GraphOptions) -> Result<()> {
    for node in nodes {
        if let Op::GroupedGemmDsrelu(a) = &node.op {
            rules::grouped_gemm::dtypes(node, a, tensors);
            continue;
        }
        if let Op::MoeGroupedMatmul(_) = &node.op {
            rules::moe::dtypes(node, tensors);
            continue;
        }
        for (port, &id) in &node.outputs {
            let statistic = match port {
                OutPort::Stats | OutPort::Max | OutPort::SumExp | OutPort::DSink => true,
                OutPort::O
                | OutPort::HighPrecisionO
                | OutPort::RngDump
                | OutPort::DQ
                | OutPort::DK
                | OutPort::DV
                | OutPort::DBias
                | OutPort::DRow
                | OutPort::DCol
                | OutPort::DSrelu
                | OutPort::DProb
                | OutPort::Amax
                | OutPort::SfdRow
                | OutPort::SfdCol
                | OutPort::SfdColDSrelu
                | OutPort::Status
                | OutPort::Output => false,
            };
            let t = &mut tensors[id.0 as usize];
            if statistic && t.dtype.is_none() {
                t.dtype = Some(DType::F32);
            }
        }
    }
    for t in tensors.iter_mut().filter(|t| t.dtype.is_none()) {
        let default = if t.is_virtual { options.intermediate } else { None };
        t.dtype = default.or(options.io_set.then_some(options.io));
        if t.dtype.is_none() {
            let given = "no element type, in a graph whose io_data_type is null";
            return Err(Error::new(ErrorCode::BadTensor, given, "an element type of the tensor or of the graph")
                .at(format!("tensor '{}'", t.name)));
        }
    }
    Ok(())
}

/// Row-major strides.
pub(super) fn row_major(dim: &[i64]) -> Result<Vec<i64>> {
    let order: Vec<usize> = (0..dim.len()).collect();
    compact(dim, &order)
}

/// Compact strides with the axes of `order` from outermost to innermost.
pub(super) fn compact(dim: &[i64], order: &[usize]) -> Result<Vec<i64>> {
    let mut stride = vec![0; dim.len()];
    let mut span: i64 = 1;
    for &axis in order.iter().rev() {
        stride[axis] = span;
        span = span.checked_mul(dim[axis]).ok_or_else(|| overflow(dim))?;
    }
    Ok(stride)
}

/// The error for extents whose product leaves 64 bits.
pub(super) fn overflow(dim: &[i64]) -> Error {
    Error::new(ErrorCode::BadDims, format!("extents {dim:?}"), "an element count that fits in 63 bits")
}

/// Axes from outermost to innermost in memory. A broadcast axis (stride 0, extent above 1) has no place in memory: it goes outermost, the
/// head dim innermost, so that an output modelled on it stays dense (report #35).
fn order_of(t: &Tensor) -> [usize; 4] {
    let mut axes = [0, 1, 2, 3];
    let key = |a: usize| match t.stride[a] {
        0 if t.dim[a] > 1 && a < 3 => i64::MAX,
        s => s,
    };
    axes.sort_by_key(|&a| std::cmp::Reverse(key(a)));
    axes
}

/// Fills the outputs of a node whose Q, K and V have rank 4.
pub(super) fn outputs(node: &Node, tensors: &mut [Tensor]) -> Result<()> {
    if let Op::GroupedGemmDsrelu(a) = &node.op {
        return rules::grouped_gemm::outputs(node, a, tensors);
    }
    if let Op::MoeGroupedMatmul(a) = &node.op {
        return rules::moe::outputs(node, a, tensors);
    }
    let at = |port: InPort| node.inputs.get(&port).copied();
    let (Some(q), Some(k), Some(v)) = (at(InPort::Q), at(InPort::K), at(InPort::V)) else { return Ok(()) };
    let [b, h, s_q, _] = dim4(&tensors[q.0 as usize]);
    let d_v = dim4(&tensors[v.0 as usize])[3];
    for (port, &id) in &node.outputs {
        let t = id.0 as usize;
        match port {
            OutPort::O | OutPort::HighPrecisionO => {
                let order = order_of(&tensors[q.0 as usize]);
                fill(&mut tensors[t], &[b, h, s_q, d_v], |d| compact(d, &order))?;
            }
            OutPort::Stats | OutPort::Max | OutPort::SumExp => fill(&mut tensors[t], &[b, h, s_q, 1], row_major)?,
            OutPort::RngDump => {
                let s_kv = s_kv(node, tensors);
                fill(&mut tensors[t], &[b, h, s_q, s_kv], row_major)?;
            }
            OutPort::DQ => like(tensors, id, q)?,
            OutPort::DK => like(tensors, id, k)?,
            OutPort::DV => like(tensors, id, v)?,
            // Without a bias or a sink these are refused later, by the analyzer and by V47, with a better message than open extents.
            OutPort::DBias => match at(InPort::Bias) {
                Some(bias) => like(tensors, id, bias)?,
                None => {
                    let s_kv = s_kv(node, tensors);
                    fill(&mut tensors[t], &[1, h, s_q, s_kv], row_major)?;
                }
            },
            OutPort::DSink => fill(&mut tensors[t], &[1, h, 1, 1], row_major)?,
            // Refused before: not of attention.
            OutPort::DRow
            | OutPort::DCol
            | OutPort::DSrelu
            | OutPort::DProb
            | OutPort::Amax
            | OutPort::SfdRow
            | OutPort::SfdCol
            | OutPort::SfdColDSrelu
            | OutPort::Status
            | OutPort::Output => {}
        }
    }
    Ok(())
}

/// Keys a query can face: the extent of K, or what the page table and the declared maximum allow.
pub(super) fn s_kv(node: &Node, tensors: &[Tensor]) -> i64 {
    let tensor = |port| node.inputs.get(&port).map(|id: &TensorId| &tensors[id.0 as usize]);
    let rows = tensor(InPort::K).and_then(|k| k.dim.get(2)).copied().unwrap_or(0);
    let Some(table) = tensor(InPort::PageTableK).or(tensor(InPort::PageTableV)) else { return rows };
    let max = match &node.op {
        Op::Sdpa(a) => a.max_seq_len_kv,
        Op::SdpaBackward(_) | Op::Nvfp4Qat(_) | Op::Nvfp4QatBackward(_) | Op::GroupedGemmDsrelu(_) | Op::MoeGroupedMatmul(_) => {
            None
        }
    };
    max.unwrap_or_else(|| table.dim.get(2).copied().unwrap_or(0).saturating_mul(rows))
}

fn dim4(t: &Tensor) -> [i64; 4] {
    [t.dim[0], t.dim[1], t.dim[2], t.dim[3]]
}

/// Extents and strides of `model`; row-major strides where the user gave extents of their own.
fn like(tensors: &mut [Tensor], id: TensorId, model: TensorId) -> Result<()> {
    if !tensors[id.0 as usize].dim.is_empty() && !tensors[id.0 as usize].stride.is_empty() {
        return Ok(());
    }
    let (dim, stride) = (tensors[model.0 as usize].dim.clone(), tensors[model.0 as usize].stride.clone());
    let t = &mut tensors[id.0 as usize];
    if t.dim.is_empty() {
        t.dim.clone_from(&dim);
    }
    if t.stride.is_empty() {
        t.stride = if t.dim == dim { stride } else { row_major(&t.dim)? };
    }
    Ok(())
}

fn fill(t: &mut Tensor, dim: &[i64; 4], strides: impl Fn(&[i64]) -> Result<Vec<i64>>) -> Result<()> {
    if t.dim.is_empty() {
        t.dim = dim.to_vec();
    }
    if t.stride.is_empty() {
        t.stride = if t.dim.len() == 4 { strides(&t.dim)? } else { row_major(&t.dim)? };
    }
    Ok(())
}
