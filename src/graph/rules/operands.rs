//! Rules about operands: presence, rank, strides, heads, head dims, element types.

use super::{error, fault, Fault, View, RULES};
use crate::graph::{InPort, Node, Op, OutPort, Tensor};
use crate::{DType, Result};

/// V1 to V3, before inference: outputs whose extents or strides are still open pass.
pub(in crate::graph) fn operands(node: &Node, tensors: &[Tensor]) -> Result<()> {
    if let Op::GroupedGemmDsrelu(a) = &node.op {
        return super::grouped_gemm::operands(node, a, tensors);
    }
    if let Op::MoeGroupedMatmul(a) = &node.op {
        return super::moe::operands(node, a, tensors);
    }
    let view = View::new(node, tensors);
    match RULES[..3].iter().find_map(|r| (r.check)(&view).map(|f| error(r, f))) {
        Some(e) => Err(e),
        None => Ok(()),
    }
}

pub(super) fn v1(v: &View) -> Option<Fault> {
    let (port, _) = v.ports().find(|(_, t)| t.is_none())?;
    let expected = match &v.node.op {
        Op::Sdpa(_) => "Q, K, V and an output O",
        Op::SdpaBackward(_) => "Q, K, V, O, dO and outputs dQ, dK, dV",
        Op::Nvfp4Qat(_) => "Q, K, V and outputs O, High_precision_O, Stats",
        Op::Nvfp4QatBackward(_) => "Q, K, V, High_precision_O, dO, Stats and outputs dQ, dK, dV",
        Op::GroupedGemmDsrelu(_) | Op::MoeGroupedMatmul(_) => "operands of its own",
    };
    fault(true, expected, || format!("no {port}"))
}

/// Outputs with open extents are inferred at rank 4.
fn open(v: &View, list: &[i64], t: &Tensor) -> bool {
    list.is_empty() && v.node.outputs.values().any(|id| std::ptr::eq(&v.tensors[id.0 as usize], t))
}

pub(super) fn v2(v: &View) -> Option<Fault> {
    let (port, t) = v.ports().find_map(|(p, t)| t.filter(|t| t.dim.len() != 4 && !open(v, &t.dim, t)).map(|t| (p, t)))?;
    fault(true, "4 extents (batch, heads, sequence, head dim)", || format!("{port} '{}' with extents {:?}", t.name, t.dim))
}

pub(super) fn v3(v: &View) -> Option<Fault> {
    let (port, t) = v.ports().find_map(|(p, t)| t.filter(|t| t.stride.len() != 4 && !open(v, &t.stride, t)).map(|t| (p, t)))?;
    fault(true, "4 strides (batch, heads, sequence, head dim)", || format!("{port} '{}' with strides {:?}", t.name, t.stride))
}

/// Lifted by default: issue and field ask our CPU rows to serve a strided head dim, so the analyzer records `Feature::StridedHeadDim`.
pub(super) fn v4(v: &View) -> Option<Fault> {
    let (port, t) = v.ports().find_map(|(p, t)| t.filter(|t| t.stride.last() != Some(&1)).map(|t| (p, t)))?;
    fault(true, "a head-dim stride of 1", || format!("{port} '{}' with strides {:?}", t.name, t.stride))
}

pub(super) fn v5(v: &View) -> Option<Fault> {
    fault(v.lengths() == (1, 1), "more than one query or key in a backward", || "S_q = 1 and S_kv = 1".into())
}

pub(super) fn v6(v: &View) -> Option<Fault> {
    let (h_q, h_k, h_v) = (v.extent(InPort::Q, 1), v.extent(InPort::K, 1), v.extent(InPort::V, 1));
    let uneven = |h: i64| h < 1 || h_q % h != 0;
    fault(uneven(h_k) || uneven(h_v), "query heads that are a multiple of key heads and of value heads", || {
        format!("{h_q} query, {h_k} key and {h_v} value heads")
    })
}

pub(super) fn v8(v: &View) -> Option<Fault> {
    let t = v.input(InPort::Bias)?;
    let mut f = fault(t.dtype == Some(DType::Bool), "an additive bias of a floating-point type", || {
        format!("bias '{}' of type BOOLEAN", t.name)
    })?;
    f.help = "Write 0 for kept and -inf for masked scores";
    Some(f)
}

pub(super) fn v21(v: &View) -> Option<Fault> {
    let t = v.output(OutPort::Stats)?;
    let dtype = t.dtype.filter(|&d| d != DType::F32)?;
    fault(true, "FLOAT", || format!("Stats '{}' of type {}", t.name, dtype.json()))
}

/// V24 for the forward, V48 for the backward.
pub(super) fn v24(v: &View) -> Option<Fault> {
    let (d_qk, d_v) = (v.extent(InPort::Q, 3), v.extent(InPort::V, 3));
    fault(d_qk % 8 != 0 || d_v % 8 != 0, "head dims that are multiples of 8", || format!("d_qk = {d_qk} and d_v = {d_v}"))
}

pub(super) fn v47(v: &View) -> Option<Fault> {
    let found = v.output(OutPort::DSink).is_some() && v.input(InPort::Sink).is_none();
    fault(found, "the sink logits as an input", || "a dSink output without a sink".into())
}
