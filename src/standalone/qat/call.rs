//! The arguments of both calls, in the specification's order.

use super::super::operand::Operand;
use super::graph::Shared;
use crate::{Device, Result};

/// One call of [`nvfp4_attention_qat_backward`](super::nvfp4_attention_qat_backward). Build it with [`Nvfp4QatBackwardCall::new`], then set what differs from the defaults.
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

/// One call of [`nvfp4_attention_qat_forward`](super::nvfp4_attention_qat_forward).
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

    pub(super) fn shared(&self) -> Shared {
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

    pub(super) fn shared(&self) -> Shared {
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
