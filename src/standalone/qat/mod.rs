//! NVFP4 attention for quantisation-aware training without a graph, with the argument order and defaults of the specification.
//!
//! Of the reference's options `backend` is the device of the call, `current_stream` is the stream, and `head_chunk` has no counterpart: no
//! engine here needs more memory for more heads at once than the results and the quantised operands themselves.

mod call;
mod graph;

use super::operand::Operand;
use super::run::{self, Kept};
use crate::analyze::analyze;
use crate::exec::{Executable, Stream, Workspace};
use crate::plan::BuildOptions;
use crate::sample::available;
use crate::{Device, Error, ErrorCode, Result};
pub use call::{Nvfp4QatBackwardCall, Nvfp4QatForwardCall};
use frostgraph_engines::{qat, Facts};
use graph::Shared;
use half::bf16;
use std::collections::BTreeMap;
use std::sync::Arc;

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

impl Shared {
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
