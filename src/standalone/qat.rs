//! NVFP4 attention for quantisation-aware training without a graph, with the argument order and defaults of the specification.
//!
//! Of the reference's options `backend` is the device of the call, `current_stream` is the stream, and `head_chunk` has no counterpart: no
//! engine here needs more memory for more heads at once than the results and the quantised operands themselves.

use super::operand::{Operand, Shape};
use super::run::{self, Kept};
use crate::analyze::analyze;
use crate::exec::{Executable, Stream, Workspace};
use crate::graph::{Graph, GraphOptions, Mask, Nvfp4Qat, Nvfp4QatBackward, Tensor, TensorId};
use crate::plan::BuildOptions;
use crate::sample::available;
use crate::{DType, Device, Error, ErrorCode, Result};
use frostgraph_engines::{qat, Facts};
use half::bf16;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One call of [`nvfp4_attention_qat_backward`]. Build it with [`Nvfp4QatBackwardCall::new`], then set what differs from the defaults.
#[derive(Debug, Default)]
pub struct Nvfp4QatBackwardCall<'a> {
    /// (B, H_q, S_q, D_v), bf16 like all operands but LSE: gradient of the loss by the user-visible O.
    pub d_o: Operand<'a>,
    /// (B, H_q, S_q, D_qk).
    pub q: Operand<'a>,
    /// (B, H_kv, S_kv, D_qk); H_kv divides H_q.
    pub k: Operand<'a>,
    /// (B, H_kv, S_kv, D_v).
    pub v: Operand<'a>,
    /// (B, H_q, S_q, D_v): the forward's high-precision O, not the user-visible one.
    pub high_precision_o: Operand<'a>,
    /// (B, H_q, S_q, 1), f32: the forward's natural-log LSE.
    pub lse: Operand<'a>,
    /// As Q, written; allocated row-major when absent.
    pub dq: Operand<'a>,
    /// As K, written; allocated row-major when absent.
    pub dk: Operand<'a>,
    /// As V, written; allocated row-major when absent.
    pub dv: Operand<'a>,
    /// Softmax scale, finite and above 0; `None` is 1/sqrt(D_qk). The forward's.
    pub softmax_scale: Option<f32>,
    /// Causal mask of self-attention. Where S_q and S_kv differ a graph says which corner the diagonal starts in.
    pub is_causal: bool,
    /// W: keys with k < q - W are masked.
    pub window_size_left: Option<i64>,
    /// Bitwise-reproducible gradients.
    pub deterministic: bool,
    /// (B, 1, 1, 1), i32: query lengths; needs key lengths.
    pub seq_len_q: Operand<'a>,
    /// (B, 1, 1, 1), i32: key lengths.
    pub seq_len_kv: Operand<'a>,
    /// Most bytes of workspace that a plan may need; larger plans are declined.
    pub workspace_limit_bytes: Option<u64>,
    /// Compute a few rows of LSE and of the high-precision O again and refuse auxiliaries of another recipe: for debugging, host memory only.
    pub check_auxiliaries: bool,
}

/// One call of [`nvfp4_attention_qat_forward`].
#[derive(Debug, Default)]
pub struct Nvfp4QatForwardCall<'a> {
    /// (B, H_q, S_q, D_qk), bf16.
    pub q: Operand<'a>,
    /// (B, H_kv, S_kv, D_qk), bf16; H_kv divides H_q.
    pub k: Operand<'a>,
    /// (B, H_kv, S_kv, D_v), bf16.
    pub v: Operand<'a>,
    /// (B, H_q, S_q, D_v), bf16, written: what the model goes on with.
    pub o: Operand<'a>,
    /// (B, H_q, S_q, D_v), bf16, written: for the backward.
    pub high_precision_o: Operand<'a>,
    /// (B, H_q, S_q, 1), f32, written: natural-log LSE for the backward.
    pub lse: Operand<'a>,
    /// Softmax scale, finite and above 0; `None` is 1/sqrt(D_qk).
    pub softmax_scale: Option<f32>,
    /// Causal mask of self-attention.
    pub is_causal: bool,
    /// W: keys with k < q - W are masked.
    pub window_size_left: Option<i64>,
    /// (B, 1, 1, 1), i32: query lengths; needs key lengths.
    pub seq_len_q: Operand<'a>,
    /// (B, 1, 1, 1), i32: key lengths.
    pub seq_len_kv: Operand<'a>,
    /// Most bytes of workspace that a plan may need; larger plans are declined.
    pub workspace_limit_bytes: Option<u64>,
}

impl<'a> Nvfp4QatBackwardCall<'a> {
    /// A call without mask or options, dO first as in the specification.
    pub fn new(
        d_o: Operand<'a>,
        q: Operand<'a>,
        k: Operand<'a>,
        v: Operand<'a>,
        high_precision_o: Operand<'a>,
        lse: Operand<'a>,
    ) -> Nvfp4QatBackwardCall<'a> {
        Nvfp4QatBackwardCall { d_o, q, k, v, high_precision_o, lse, ..Nvfp4QatBackwardCall::default() }
    }

    /// Exact bytes of workspace that this call needs on this device; the memory of the operands is not looked at.
    pub fn scratch_workspace_bytes(&self, device: &Device) -> Result<u64> {
        Ok(self.shared().executable(device)?.workspace_bytes())
    }

    fn shared(&self) -> Shared {
        let all = [
            &self.d_o,
            &self.q,
            &self.k,
            &self.v,
            &self.high_precision_o,
            &self.lse,
            &self.dq,
            &self.dk,
            &self.dv,
            &self.seq_len_q,
            &self.seq_len_kv,
        ];
        let mut shapes = all.map(|o| o.shape);
        // Gradients that are not given are allocated row-major.
        for (gradient, of) in [(6, 1), (7, 2), (8, 3)] {
            shapes[gradient] = shapes[gradient].or(shapes[of].map(|s| Operand::shape(s.dtype, s.dim).shape).unwrap_or_default());
        }
        Shared {
            backward: true,
            shapes,
            softmax_scale: self.softmax_scale,
            is_causal: self.is_causal,
            window_size_left: self.window_size_left,
            deterministic: self.deterministic,
            workspace_limit_bytes: self.workspace_limit_bytes,
        }
    }
}

impl<'a> Nvfp4QatForwardCall<'a> {
    /// A call without mask or options; set the outputs next.
    pub fn new(q: Operand<'a>, k: Operand<'a>, v: Operand<'a>) -> Nvfp4QatForwardCall<'a> {
        Nvfp4QatForwardCall { q, k, v, ..Nvfp4QatForwardCall::default() }
    }

    /// Exact bytes of workspace that this call needs on this device; the memory of the operands is not looked at.
    pub fn scratch_workspace_bytes(&self, device: &Device) -> Result<u64> {
        Ok(self.shared().executable(device)?.workspace_bytes())
    }

    fn shared(&self) -> Shared {
        let none = None;
        Shared {
            backward: false,
            shapes: [
                none,
                self.q.shape,
                self.k.shape,
                self.v.shape,
                self.high_precision_o.shape,
                self.lse.shape,
                self.o.shape,
                none,
                none,
                self.seq_len_q.shape,
                self.seq_len_kv.shape,
            ],
            softmax_scale: self.softmax_scale,
            is_causal: self.is_causal,
            window_size_left: self.window_size_left,
            deterministic: false,
            workspace_limit_bytes: self.workspace_limit_bytes,
        }
    }
}

/// Gradients that a call did not bring memory for, row-major in the extents of Q, K and V.
#[derive(Debug, Default)]
pub struct AllocatedGradients {
    /// dQ, unless it was given.
    pub dq: Option<Vec<bf16>>,
    /// dK, unless it was given.
    pub dk: Option<Vec<bf16>>,
    /// dV, unless it was given.
    pub dv: Option<Vec<bf16>>,
}

static KEPT: Kept<Shared> = Kept::new();

/// Gradients of NVFP4 QAT attention on a stream: the graph of one backward node, built once per shape, options and device, then executed.
///
/// Gradients without memory of their own are allocated on the host and returned; on a CUDA device they must be given. Workspace: at least
/// [`Nvfp4QatBackwardCall::scratch_workspace_bytes`]. Engines that a graph would have to opt in to are offered.
///
/// Errors: FG1xxx for geometry and options, [`ErrorCode::NoPlan`] with every engine's reason (element types, contradicting extents, the
/// workspace limit), FG4xxx for memory, FG4006 for auxiliaries of another recipe under `check_auxiliaries`.
pub fn nvfp4_attention_qat_backward(
    device: &Device,
    stream: &Stream,
    call: Nvfp4QatBackwardCall<'_>,
    workspace: &mut Workspace<'_>,
) -> Result<AllocatedGradients> {
    let shared = call.shared();
    let exe = shared.executable(device)?;
    if call.check_auxiliaries {
        check_auxiliaries(&shared, &call)?;
    }
    let mut made = AllocatedGradients::default();
    let inputs = [call.d_o, call.q, call.k, call.v, call.high_precision_o, call.lse];
    let gradients = [
        shared.gradient(stream, call.dq, 6, &mut made.dq)?,
        shared.gradient(stream, call.dk, 7, &mut made.dk)?,
        shared.gradient(stream, call.dv, 8, &mut made.dv)?,
    ];
    let operands = inputs.into_iter().chain(gradients).chain([call.seq_len_q, call.seq_len_kv]);
    run::execute(&exe, stream, operands, workspace)?;
    Ok(made)
}

/// The forward whose outputs [`nvfp4_attention_qat_backward`] takes; O, the high-precision O and LSE are always written.
///
/// Workspace: at least [`Nvfp4QatForwardCall::scratch_workspace_bytes`]. Errors as for the backward.
pub fn nvfp4_attention_qat_forward(
    device: &Device,
    stream: &Stream,
    call: Nvfp4QatForwardCall<'_>,
    workspace: &mut Workspace<'_>,
) -> Result<()> {
    let exe = call.shared().executable(device)?;
    let absent = Operand::default;
    let operands = [
        absent(),
        call.q,
        call.k,
        call.v,
        call.high_precision_o,
        call.lse,
        call.o,
        absent(),
        absent(),
        call.seq_len_q,
        call.seq_len_kv,
    ];
    run::execute(&exe, stream, operands, workspace)
}

/// Names of the operands in uid order, from 1.
const NAMES: [&str; 11] = ["dO", "q", "k", "v", "high_precision_o", "lse", "dq", "dk", "dv", "seq_len_q", "seq_len_kv"];

/// Everything that the executable of a call depends on.
#[derive(Debug, Clone, PartialEq)]
struct Shared {
    backward: bool,
    /// In the order of [`NAMES`]; a forward has O in the place of dq.
    shapes: [Option<Shape>; 11],
    softmax_scale: Option<f32>,
    is_causal: bool,
    window_size_left: Option<i64>,
    deterministic: bool,
    workspace_limit_bytes: Option<u64>,
}

impl Shared {
    fn place(&self) -> &'static str {
        if self.backward {
            "nvfp4_attention_qat_backward"
        } else {
            "nvfp4_attention_qat_forward"
        }
    }

    fn bad(&self, given: impl Into<String>, expected: &str) -> Error {
        Error::new(ErrorCode::BadAttribute, given, expected).at(self.place())
    }

    fn executable(&self, device: &Device) -> Result<Arc<Executable>> {
        let plan = |options: &BuildOptions| self.graph()?.build_with(device, options)?.best();
        run::executable(&KEPT, device, self.workspace_limit_bytes, self.clone(), plan)
    }

    /// The gradient as given, or one in new memory in `slot`.
    fn gradient<'a>(
        &self,
        stream: &Stream,
        given: Operand<'a>,
        i: usize,
        slot: &'a mut Option<Vec<bf16>>,
    ) -> Result<Operand<'a>> {
        let Some(shape) = self.shapes[i].filter(|_| !given.is_some()) else { return Ok(given) };
        if *stream != Stream::Cpu {
            return Err(self.bad("a gradient without device memory", "dq, dk and dv in device memory on a CUDA stream"));
        }
        let count = shape.dim.iter().try_fold(1usize, |n, &d| n.checked_mul(usize::try_from(d).ok()?));
        let count = count.ok_or_else(|| self.bad("extents whose product leaves 64 bits", "gradients that fit memory"))?;
        let (mut memory, bytes) = (Vec::new(), (count as u64).saturating_mul(2));
        if bytes > available() || memory.try_reserve_exact(count).is_err() {
            let e = Error::new(
                ErrorCode::BufferSize,
                format!("a gradient of {bytes} bytes"),
                "gradients that this machine has memory for",
            );
            return Err(e.at(self.place()));
        }
        memory.resize(count, bf16::ZERO);
        Ok(Operand::write(slot.insert(memory), shape.dim))
    }

    /// The mask; what only this interface leaves unsaid is refused here, where its names are known.
    fn mask(&self) -> Result<Mask> {
        let length = |i: usize| self.shapes[i].map(|s| s.dim[2]);
        let (s_q, s_kv) = (length(1), length(2));
        if self.is_causal && s_q != s_kv {
            let given = format!("is_causal with S_q {} and S_kv {}", s_q.unwrap_or(0), s_kv.unwrap_or(0));
            let e = self.bad(given, "equal lengths: a causal mask of this interface is one of self-attention");
            return Err(e.help("A graph says which corner the diagonal starts in: Mask::causal() or Mask::causal_bottom_right()"));
        }
        if let Some(w) = self.window_size_left.filter(|w| *w < 0 || *w == i64::MAX) {
            return Err(self.bad(format!("window_size_left {w}"), "an offset of 0 or more"));
        }
        if self.shapes[9].is_some() && self.shapes[10].is_none() {
            return Err(self.bad("query lengths without key lengths", "both, or key lengths alone"));
        }
        Ok(Mask {
            left_bound: self.window_size_left.map(|w| w + 1),
            right_bound: self.is_causal.then_some(0),
            padding: self.shapes[10].is_some(),
            ..Mask::none()
        })
    }

    fn graph(&self) -> Result<Graph> {
        let mut g = Graph::new(GraphOptions { io: DType::BF16, ..GraphOptions::default() });
        let mut input = |i: usize| -> Option<TensorId> {
            let s = self.shapes[i]?;
            let t = Tensor::new(NAMES[i], s.dim).strides(s.stride).dtype(s.dtype).uid(i as i64 + 1);
            // LSE and lengths are read element by element.
            let element = s.dtype.bytes().unwrap_or(1) as i64;
            Some(g.tensor(if i < 5 { t } else { t.alignment(element) }))
        };
        let needed = if self.backward { 0..6 } else { 1..4 };
        let mut operands = Vec::new();
        for i in needed {
            let expected = if self.backward { "dO, q, k, v, high_precision_o and lse" } else { "q, k and v" };
            operands.push(input(i).ok_or_else(|| self.bad(format!("no {}", NAMES[i]), expected))?);
        }
        let (seq_len_q, seq_len_kv) = (input(9), input(10));
        let d = self.shapes[1].map_or(1, |s| s.dim[3]);
        let (name, mask) = (self.place().to_owned(), self.mask()?);
        let attn_scale = Some(self.softmax_scale.unwrap_or((d as f32).sqrt().recip()));
        let outputs = match operands[..] {
            [d_o, q, k, v, o, lse] => {
                let options = Nvfp4QatBackward {
                    name,
                    mask,
                    attn_scale,
                    seq_len_q,
                    seq_len_kv,
                    deterministic: self.deterministic,
                    compute_dtype: None,
                };
                let grads = g.nvfp4_attention_qat_backward(d_o, q, k, v, o, lse, options)?;
                vec![(6, grads.dq), (7, grads.dk), (8, grads.dv)]
            }
            _ => {
                let options = Nvfp4Qat { name, mask, attn_scale, seq_len_q, seq_len_kv, compute_dtype: None };
                let out = g.nvfp4_attention_qat_forward(operands[0], operands[1], operands[2], options)?;
                vec![(4, out.high_precision_o), (5, out.lse), (6, out.o)]
            }
        };
        for (i, id) in outputs {
            g.output(id)?;
            let t = g.get_mut(id)?;
            let name = if !self.backward && i == 6 { "o" } else { NAMES[i] };
            (t.name, t.uid) = (name.to_owned(), Some(i as i64 + 1));
            if let Some(s) = self.shapes[i] {
                (t.dim, t.stride, t.dtype) = (s.dim.to_vec(), s.stride.to_vec(), Some(s.dtype));
            }
            if i == 5 {
                t.alignment = 4;
            }
        }
        Ok(g)
    }
}

/// Refuses auxiliaries that a few rows, computed again, contradict.
fn check_auxiliaries(shared: &Shared, call: &Nvfp4QatBackwardCall<'_>) -> Result<()> {
    let frozen = shared.graph()?.freeze()?;
    let Facts::Sdpa(facts) = analyze(&frozen, 0) else { return Ok(()) };
    let operands = [&call.d_o, &call.q, &call.k, &call.v, &call.high_precision_o, &call.lse];
    let mut inputs = BTreeMap::new();
    for (uid, operand) in (1..).zip(operands).chain([(10, &call.seq_len_q), (11, &call.seq_len_kv)]) {
        if operand.is_some() {
            let expected = "operands in host memory; `frostgraph run --check` does the same for tensors in a file";
            let bytes = operand.host().ok_or_else(|| shared.bad("check_auxiliaries with operands elsewhere", expected))?;
            inputs.insert(uid, bytes);
        }
    }
    qat::check::auxiliaries(&facts, &inputs).map_err(crate::sample::data_error)
}
