//! `grouped_gemm_dsrelu` without a graph, with the arguments and defaults of the specification.

mod call;
mod graph;
mod knobs;

use super::operand::Shape;
use super::run::{self, Kept};
use crate::exec::{Executable, Stream, Workspace};
use crate::graph::GroupedGemmDsreluAttrs;
use crate::{DType, Device, Error, ErrorCode, Result};
pub use call::GroupedGemmDsreluCall;
pub use frostgraph_engines::grouped_gemm::slots::{
    dbias_workspace_shape, dprob_workspace_shape, reduce_dbias_workspace, reduce_dprob_workspace,
};
use frostgraph_engines::Knobs;
use graph::graph;
use knobs::{knobs, plan};
use std::sync::Arc;

/// Everything of a call that its executable depends on.
#[derive(Debug, PartialEq)]
struct Key {
    shapes: [Option<Shape>; 21],
    attrs: GroupedGemmDsreluAttrs,
    acc: DType,
    knobs: Knobs,
}

static KEPT: Kept<Key> = Kept::new();

/// The grouped product and its epilogue on a stream: the graph of one node, built once per shape, options and device, then executed.
///
/// Every output is written, nothing is accumulated onto it. No rows (M = 0) is no work. Workspace: at least
/// [`grouped_gemm_workspace_bytes`], the slots of a deterministic call included. Engines that a graph would have to opt in to are offered.
///
/// Errors: FG1001 and FG12xx for operands and options (the numbers of facts §9.2), [`ErrorCode::NoPlan`] with every engine's reason, FG3004
/// for a tile that no engine has, FG4xxx for memory.
pub fn grouped_gemm_dsrelu(
    device: &Device,
    stream: &Stream,
    call: GroupedGemmDsreluCall<'_>,
    workspace: &mut Workspace<'_>,
) -> Result<()> {
    if is_empty(&call) {
        return Ok(());
    }
    let exe = executable(device, &call)?;
    run::execute(&exe, stream, call.operands(), workspace)
}

/// Exact bytes of workspace that this call needs on this device; the memory of the operands is not looked at.
pub fn grouped_gemm_workspace_bytes(device: &Device, call: &GroupedGemmDsreluCall<'_>) -> Result<u64> {
    if is_empty(call) {
        return Ok(0);
    }
    Ok(executable(device, call)?.workspace_bytes())
}

fn is_empty(c: &GroupedGemmDsreluCall<'_>) -> bool {
    c.a.shape.is_some_and(|s| s.dim[0] == 0)
}

fn executable(device: &Device, c: &GroupedGemmDsreluCall<'_>) -> Result<Arc<Executable>> {
    let d_dtype = c.d_row.shape.map_or(DType::BF16, |s| s.dtype);
    let attrs = GroupedGemmDsreluAttrs {
        formula: c.formula,
        sf_vec_size: c.sf_vec_size,
        tanh_clamp_scale: c.tanh_clamp_scale,
        discrete_col_sfd: c.discrete_col_sfd,
        deterministic: c.deterministic,
        m_aligned: c.m_aligned,
        n: c.n,
        b_dtype: c.b_dtype,
        b_major: c.b_major,
        d_dtype,
    };
    let knobs = knobs(c)?;
    let key = Key { shapes: c.shapes(), attrs: attrs.clone(), acc: c.acc_dtype, knobs: knobs.clone() };
    run::executable(&KEPT, device, None, key, |options| plan(&graph(c, attrs)?.build_with(device, options)?, &knobs))
}

fn bad(code: ErrorCode, given: String, expected: &str) -> Error {
    Error::new(code, given, expected).at("grouped_gemm_dsrelu")
}
