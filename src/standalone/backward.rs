//! `sdpa_backward` without a graph, with the arguments and defaults of the specification.

use super::operand::{Operand, Shape};
use super::run::{self, Kept};
use crate::exec::{Executable, Stream, Workspace};
use crate::graph::{Alignment, AttnScale, Graph, GraphOptions, Mask, SdpaBackward, Tensor, TensorId};
use crate::{DType, Device, Error, ErrorCode, Result};
use std::sync::Arc;

/// One call of [`sdpa_backward`]. Build it with [`SdpaBackwardCall::new`], then set what differs from the defaults.
#[derive(Debug, Default)]
pub struct SdpaBackwardCall<'a> {
    /// (B, H_q, S_q, D_qk), f16, bf16 or f32; its type is that of K, V, O, dO and the gradients as well.
    pub q: Operand<'a>,
    /// (B, H_kv, S_kv, D_qk); H_kv divides H_q.
    pub k: Operand<'a>,
    /// (B, H_kv, S_kv, D_v).
    pub v: Operand<'a>,
    /// (B, H_q, S_q, D_v), from the forward.
    pub o: Operand<'a>,
    /// (B, H_q, S_q, D_v), gradient of the loss by O.
    pub d_o: Operand<'a>,
    /// (B, H_q, S_q, 1), f32: natural-log LSE of the forward.
    pub stats: Operand<'a>,
    /// As Q, written.
    pub dq: Operand<'a>,
    /// As K, written.
    pub dk: Operand<'a>,
    /// As V, written.
    pub dv: Operand<'a>,
    /// Causal mask.
    pub causal: bool,
    /// Anchor the diagonal at the bottom-right corner; needs `causal`.
    pub causal_bottom_right: bool,
    /// W: keys with k < q + diag - W are masked.
    pub window_size_left: Option<i64>,
    /// R: widens the causal diagonal to the right, keys k <= q + diag + R are kept; needs `causal`.
    pub window_size_right: Option<i64>,
    /// Bitwise-reproducible gradients.
    pub deterministic: bool,
    /// Softmax scale; `None` is 1/sqrt(D_qk).
    pub scale: Option<f32>,
    /// (B, 1, 1, 1), i32: query lengths; needs key lengths.
    pub seq_len_q: Operand<'a>,
    /// (B, 1, 1, 1), i32: key lengths.
    pub seq_len_kv: Operand<'a>,
    /// (1, H_q, 1, 1), f32: sink logits.
    pub sink: Operand<'a>,
    /// As the sink, written; needs the sink.
    pub dsink: Operand<'a>,
    /// (1|B, H_q, S_q, S_kv), io type or f32: additive bias.
    pub bias: Operand<'a>,
    /// As the bias, f32 or io type, written; needs the bias.
    pub dbias: Operand<'a>,
}

impl<'a> SdpaBackwardCall<'a> {
    /// A call without mask or options. The gradients take the geometry of Q, K and V until they are set.
    pub fn new(
        q: Operand<'a>,
        k: Operand<'a>,
        v: Operand<'a>,
        o: Operand<'a>,
        d_o: Operand<'a>,
        stats: Operand<'a>,
    ) -> SdpaBackwardCall<'a> {
        SdpaBackwardCall { q, k, v, o, d_o, stats, ..SdpaBackwardCall::default() }
    }
}

/// Everything of a call that its executable depends on.
#[derive(Debug, PartialEq)]
struct Key {
    shapes: [Option<Shape>; 15],
    mask: [Option<i64>; 2],
    bottom_right: bool,
    deterministic: bool,
    scale: u32,
}

static KEPT: Kept<Key> = Kept::new();

/// Gradients of attention on a stream: the graph of one backward node, built once per shape, options and device, then executed.
///
/// dQ, dK and dV are always written, dSink and dBias when they are given. Workspace: at least [`scratch_workspace_bytes`]. Engines that
/// a graph would have to opt in to are offered: the call names the operation explicitly.
///
/// Errors: FG1xxx for geometry and options, [`ErrorCode::NoPlan`] with every engine's reason, FG4xxx for memory.
pub fn sdpa_backward(device: &Device, stream: &Stream, call: SdpaBackwardCall<'_>, workspace: &mut Workspace<'_>) -> Result<()> {
    let exe = executable(device, &call)?;
    run::execute(&exe, stream, operands(call), workspace)
}

/// Exact bytes of workspace that this call needs on this device; the memory of the operands is not looked at.
pub fn scratch_workspace_bytes(device: &Device, call: &SdpaBackwardCall<'_>) -> Result<u64> {
    Ok(executable(device, call)?.workspace_bytes())
}

/// Operands in uid order.
fn operands(c: SdpaBackwardCall<'_>) -> [Operand<'_>; 15] {
    [c.q, c.k, c.v, c.o, c.d_o, c.stats, c.dq, c.dk, c.dv, c.seq_len_q, c.seq_len_kv, c.sink, c.dsink, c.bias, c.dbias]
}

fn shapes(c: &SdpaBackwardCall<'_>) -> [Option<Shape>; 15] {
    let all = [
        &c.q,
        &c.k,
        &c.v,
        &c.o,
        &c.d_o,
        &c.stats,
        &c.dq,
        &c.dk,
        &c.dv,
        &c.seq_len_q,
        &c.seq_len_kv,
        &c.sink,
        &c.dsink,
        &c.bias,
        &c.dbias,
    ];
    all.map(|o| o.shape)
}

fn executable(device: &Device, c: &SdpaBackwardCall<'_>) -> Result<Arc<Executable>> {
    let d = c.q.shape.map_or(1, |s| s.dim[3]);
    let scale = c.scale.unwrap_or(1.0 / (d as f32).sqrt());
    let key = Key {
        shapes: shapes(c),
        mask: [c.window_size_left, if c.causal { Some(c.window_size_right.unwrap_or(0)) } else { c.window_size_right }],
        bottom_right: c.causal_bottom_right,
        deterministic: c.deterministic,
        scale: scale.to_bits(),
    };
    run::executable(&KEPT, device, None, key, |options| graph(c, scale)?.build_with(device, options)?.best())
}

fn bad(given: impl Into<String>, expected: &str) -> Error {
    Error::new(ErrorCode::BadAttribute, given, expected).at("sdpa_backward")
}

/// The mask as explicit bounds; the specification's own implications are checked here, where its names are known.
fn mask(c: &SdpaBackwardCall<'_>) -> Result<Mask> {
    if c.causal_bottom_right && !c.causal {
        return Err(bad("causal_bottom_right without causal", "causal as well"));
    }
    if c.window_size_right.is_some() && !c.causal {
        return Err(bad("window_size_right without causal", "causal as well"));
    }
    for (name, w) in [("window_size_left", c.window_size_left), ("window_size_right", c.window_size_right)] {
        if let Some(w) = w.filter(|w| *w < 0 || *w == i64::MAX) {
            return Err(bad(format!("{name} {w}"), "an offset of 0 or more"));
        }
    }
    if c.seq_len_q.is_some() && !c.seq_len_kv.is_some() {
        return Err(bad("query lengths without key lengths", "both, or key lengths alone"));
    }
    if c.dsink.is_some() && !c.sink.is_some() {
        return Err(bad("dsink without sink", "the sink as well"));
    }
    if c.dbias.is_some() && !c.bias.is_some() {
        return Err(bad("dbias without bias", "the bias as well"));
    }
    Ok(Mask {
        left_bound: c.window_size_left.map(|w| w + 1),
        right_bound: c.causal.then(|| c.window_size_right.unwrap_or(0)),
        alignment: if c.causal_bottom_right { Alignment::BottomRight } else { Alignment::TopLeft },
        padding: c.seq_len_kv.is_some(),
        ..Mask::none()
    })
}

fn graph(c: &SdpaBackwardCall<'_>, scale: f32) -> Result<Graph> {
    let io = c.q.shape.map_or(DType::F32, |s| s.dtype);
    let mut g = Graph::new(GraphOptions { io, ..GraphOptions::default() });
    let names =
        ["q", "k", "v", "o", "dO", "stats", "dq", "dk", "dv", "seq_len_q", "seq_len_kv", "sink", "dsink", "bias", "dbias"];
    let shapes = shapes(c);
    let mut input = |i: usize| -> Option<TensorId> {
        let s = shapes[i]?;
        let t = Tensor::new(names[i], s.dim).strides(s.stride).dtype(s.dtype).uid(i as i64 + 1);
        // Only the operands of the matrix products are read in 16-byte pieces; the rest need no more than their element.
        let element = s.dtype.bytes().unwrap_or(1) as i64;
        Some(g.tensor(if i < 5 { t } else { t.alignment(element) }))
    };
    let needed: Vec<TensorId> = (0..6)
        .map(|i| input(i).ok_or_else(|| bad(format!("no {}", names[i]), "q, k, v, o, dO and stats")))
        .collect::<Result<_>>()?;
    let (seq_len_q, seq_len_kv, sink, bias) = (input(9), input(10), input(11), input(13));
    let options = SdpaBackward {
        name: "sdpa_backward".into(),
        mask: mask(c)?,
        attn_scale: Some(AttnScale::Value(scale)),
        bias,
        dbias: shapes[14].is_some(),
        seq_len_q,
        seq_len_kv,
        sink,
        dsink: shapes[12].is_some(),
        deterministic: c.deterministic,
        ..SdpaBackward::default()
    };
    let grads = g.sdpa_backward(needed[0], needed[1], needed[2], needed[3], needed[4], needed[5], options)?;
    let outputs = [(6, Some(grads.dq)), (7, Some(grads.dk)), (8, Some(grads.dv)), (12, grads.dsink), (14, grads.dbias)];
    for (i, id) in outputs {
        let Some(id) = id else { continue };
        g.output(id)?;
        let t = g.get_mut(id)?;
        (t.name, t.uid) = (names[i].to_owned(), Some(i as i64 + 1));
        if let Some(s) = shapes[i] {
            (t.dim, t.stride, t.dtype) = (s.dim.to_vec(), s.stride.to_vec(), Some(s.dtype));
        }
        if i > 8 {
            t.alignment = t.dtype.and_then(DType::bytes).unwrap_or(1) as i64;
        }
    }
    Ok(g)
}
