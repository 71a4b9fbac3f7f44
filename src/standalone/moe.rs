//! `moe_grouped_matmul` without a graph.

use super::operand::{Operand, Shape};
use super::run::{self, Kept};
use crate::exec::{Executable, Stream, Workspace};
use crate::graph::{Graph, GraphOptions, MoeGroupedMatmul, MoeMode, MoeScales, Reordering, Tensor, TensorId};
use crate::{DType, Device, Error, ErrorCode, Result};
use std::sync::Arc;

/// One call of [`moe_grouped_matmul`]. Build it with [`MoeGroupedMatmulCall::new`], then set what differs from the defaults.
///
/// Operands have three extents, given first; the fourth stays 1. FP4 values are bytes with two values each ([`Operand::read_bytes`] with
/// [`DType::F4E2M1`] and extents in values).
#[derive(Debug)]
pub struct MoeGroupedMatmulCall<'a> {
    /// (1, T, K), of any strides.
    pub token: Operand<'a>,
    /// (E, K, N), of any strides; [`Operand::strides`] with (N·K, 1, K) for weights with k contiguous.
    pub weight: Operand<'a>,
    /// (G, 1, 1) starts or (G + 1, 1, 1) boundaries, i32 or i64.
    pub first_token_offset: Operand<'a>,
    /// (1, R, 1), i32; with gather and scatter.
    pub token_index: Operand<'a>,
    /// (1, R, 1), i32; with scatter.
    pub token_ks: Operand<'a>,
    /// Scales of the token in the layout of `scale_atoms`; absent for wide operands.
    pub token_scale: Operand<'a>,
    /// Scales of the weights.
    pub weight_scale: Operand<'a>,
    /// (1, R, N), written where routed rows lead.
    pub output: Operand<'a>,
    /// (1,), i32, written; optional.
    pub status: Operand<'a>,
    /// Where routed rows come from and go to.
    pub mode: MoeMode,
    /// Rows of the output that each token has; with scatter.
    pub top_k: i64,
    /// Values of K that share a scale; with scales.
    pub sf_vec_size: i64,
    /// Scales lie in whole atoms of 128 by 4 instead of by their strides.
    pub scale_atoms: bool,
    /// Accumulation: f32; f64 where a row serves it.
    pub acc_dtype: DType,
}

impl<'a> MoeGroupedMatmulCall<'a> {
    /// A call in mode none.
    pub fn new(
        token: Operand<'a>,
        weight: Operand<'a>,
        first_token_offset: Operand<'a>,
        output: Operand<'a>,
    ) -> MoeGroupedMatmulCall<'a> {
        MoeGroupedMatmulCall {
            token,
            weight,
            first_token_offset,
            token_index: Operand::default(),
            token_ks: Operand::default(),
            token_scale: Operand::default(),
            weight_scale: Operand::default(),
            output,
            status: Operand::default(),
            mode: MoeMode::None,
            top_k: 0,
            sf_vec_size: 32,
            scale_atoms: true,
            acc_dtype: DType::F32,
        }
    }

    /// In the order of [`NAMES`].
    fn operands(self) -> [Operand<'a>; 9] {
        [
            self.token,
            self.weight,
            self.first_token_offset,
            self.token_index,
            self.token_ks,
            self.token_scale,
            self.weight_scale,
            self.output,
            self.status,
        ]
    }

    fn shapes(&self) -> [Option<Shape>; 9] {
        [
            &self.token,
            &self.weight,
            &self.first_token_offset,
            &self.token_index,
            &self.token_ks,
            &self.token_scale,
            &self.weight_scale,
            &self.output,
            &self.status,
        ]
        .map(|o| o.shape)
    }
}

/// Operands in the order of their uids, from 1 on.
const NAMES: [&str; 9] =
    ["token", "weight", "first_token_offset", "token_index", "token_ks", "token_scale", "weight_scale", "output", "status"];

/// Everything of a call that its executable depends on.
#[derive(Debug, PartialEq)]
struct Key {
    shapes: [Option<Shape>; 9],
    mode: MoeMode,
    numbers: [i64; 2],
    scale_atoms: bool,
    acc: DType,
}

static KEPT: Kept<Key> = Kept::new();

/// The plain grouped product on a stream: the graph of one node, built once per shape, options and device, then executed.
///
/// Rows of the output that no routed row leads to are not touched. No routed rows is no work. Engines that a graph would have to opt in to are
/// offered.
///
/// Errors: FG1001 and FG13xx for operands and options, [`ErrorCode::NoPlan`] with every engine's reason, FG4xxx for memory and, on the CPU
/// without a status word, for offsets and indices that cannot be.
pub fn moe_grouped_matmul(
    device: &Device,
    stream: &Stream,
    call: MoeGroupedMatmulCall<'_>,
    workspace: &mut Workspace<'_>,
) -> Result<()> {
    if is_empty(&call) {
        return Ok(());
    }
    let exe = executable(device, &call)?;
    run::execute(&exe, stream, call.operands(), workspace)
}

/// Exact bytes of workspace that this call needs on this device; the memory of the operands is not looked at.
pub fn moe_grouped_matmul_workspace_bytes(device: &Device, call: &MoeGroupedMatmulCall<'_>) -> Result<u64> {
    if is_empty(call) {
        return Ok(0);
    }
    Ok(executable(device, call)?.workspace_bytes())
}

fn is_empty(c: &MoeGroupedMatmulCall<'_>) -> bool {
    let rows = if c.mode == MoeMode::Gather { &c.token_index } else { &c.token };
    rows.shape.is_some_and(|s| s.dim[1] == 0)
}

fn executable(device: &Device, c: &MoeGroupedMatmulCall<'_>) -> Result<Arc<Executable>> {
    let key =
        Key { shapes: c.shapes(), mode: c.mode, numbers: [c.top_k, c.sf_vec_size], scale_atoms: c.scale_atoms, acc: c.acc_dtype };
    run::executable(&KEPT, device, None, key, |options| graph(c)?.build_with(device, options)?.best())
}

fn graph(c: &MoeGroupedMatmulCall<'_>) -> Result<Graph> {
    let shapes = c.shapes();
    let mut g = Graph::new(GraphOptions { io: DType::F32, ..GraphOptions::default() });
    let geometry = |i: usize, s: &Shape, rank: usize| {
        let (dim, stride) = s
            .leading(rank)
            .map_err(|e| bad(ErrorCode::MoeShape, format!("{} of {e}", NAMES[i]), "extents of 1 behind its own"))?;
        let t = Tensor::new(NAMES[i], dim).strides(stride).dtype(s.dtype).uid(i as i64 + 1);
        // Integers need no more than their element.
        Ok(if matches!(s.dtype, DType::I32 | DType::I64) { t.alignment(s.dtype.bytes().unwrap_or(1) as i64) } else { t })
    };
    let mut add = |i: usize| -> Result<Option<TensorId>> {
        let Some(s) = &shapes[i] else { return Ok(None) };
        let mut t = geometry(i, s, 3)?;
        if c.scale_atoms && (5..=6).contains(&i) {
            t.reordering = Reordering::F8_128x4;
        }
        Ok(Some(g.tensor(t)))
    };
    let need =
        |id: Option<TensorId>, i: usize| id.ok_or_else(|| bad(ErrorCode::MissingPort, format!("no {}", NAMES[i]), "the operand"));
    let (token, weight, offsets) = (need(add(0)?, 0)?, need(add(1)?, 1)?, need(add(2)?, 2)?);
    let (token_index, token_ks) = (add(3)?, add(4)?);
    let scales = match (add(5)?, add(6)?) {
        (None, None) => None,
        (a, b) => Some(MoeScales { token: need(a, 5)?, weight: need(b, 6)?, vec: c.sf_vec_size }),
    };
    let out = shapes[7].ok_or_else(|| bad(ErrorCode::MissingPort, "no output".into(), "the operand"))?;
    let options = MoeGroupedMatmul {
        name: "moe_grouped_matmul".into(),
        mode: c.mode,
        token_index,
        token_ks,
        top_k: c.top_k,
        scales,
        status: shapes[8].is_some(),
        compute_dtype: Some(c.acc_dtype),
    };
    let made = g.moe_grouped_matmul(token, weight, offsets, options)?;
    let outputs = [(7, Some(out), Some(made.output), 3), (8, shapes[8], made.status, 1)];
    for (i, shape, id, rank) in outputs {
        let (Some(s), Some(id)) = (shape, id) else { continue };
        g.output(id)?;
        *g.get_mut(id)? = geometry(i, &s, rank)?;
    }
    Ok(g)
}

fn bad(code: ErrorCode, given: String, expected: &str) -> Error {
    Error::new(code, given, expected).at("moe_grouped_matmul")
}
