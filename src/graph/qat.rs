//! The NVFP4 QAT operations of the builder: attention with fake quantisation, for quantisation-aware training.
//!
//! What they compute is defined in [`engines::qat`](frostgraph_engines::qat).

use super::{Graph, InPort, Mask, Node, Op, OutPort, QatAttrs, TensorId};
use crate::{DType, Result};
use std::collections::BTreeMap;

/// Options of [`Graph::nvfp4_attention_qat_forward`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Nvfp4Qat {
    /// Label of the node; empty takes a unique one.
    pub name: String,
    /// Mask spelling.
    pub mask: Mask,
    /// Softmax scale, finite and above 0; omitted means 1.0 in a graph. The backward must have the same.
    pub attn_scale: Option<f32>,
    /// Query lengths (B, 1, 1, 1), i32.
    pub seq_len_q: Option<TensorId>,
    /// Key lengths (B, 1, 1, 1), i32.
    pub seq_len_kv: Option<TensorId>,
    /// Compute type of the node; `None` takes the graph's.
    pub compute_dtype: Option<DType>,
}

/// Outputs of [`Graph::nvfp4_attention_qat_forward`]: virtual until [`Graph::output`] marks them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nvfp4QatOutputs {
    /// (B, H_q, S_q, d_v): what the model goes on with, from the fake-quantised P.
    pub o: TensorId,
    /// (B, H_q, S_q, d_v): from P before its fake quantisation; the backward needs it.
    pub high_precision_o: TensorId,
    /// (B, H_q, S_q, 1), f32: natural-log log-sum-exp; the backward needs it.
    pub lse: TensorId,
}

/// Options of [`Graph::nvfp4_attention_qat_backward`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Nvfp4QatBackward {
    /// Label of the node; empty takes a unique one.
    pub name: String,
    /// Mask spelling; the forward's.
    pub mask: Mask,
    /// Softmax scale, finite and above 0; omitted means 1.0 in a graph.
    pub attn_scale: Option<f32>,
    /// Query lengths (B, 1, 1, 1), i32.
    pub seq_len_q: Option<TensorId>,
    /// Key lengths (B, 1, 1, 1), i32.
    pub seq_len_kv: Option<TensorId>,
    /// Bitwise-reproducible gradients.
    pub deterministic: bool,
    /// Compute type of the node; `None` takes the graph's.
    pub compute_dtype: Option<DType>,
}

/// Outputs of [`Graph::nvfp4_attention_qat_backward`]: virtual until [`Graph::output`] marks them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nvfp4QatGrads {
    /// (B, H_q, S_q, d_qk), with Q's strides.
    pub dq: TensorId,
    /// (B, H_kv, S_kv, d_qk), with K's strides.
    pub dk: TensorId,
    /// (B, H_kv, S_kv, d_v), with V's strides.
    pub dv: TensorId,
}

impl Graph {
    /// Adds attention forward with NVFP4 fake quantisation of Q, K, V and P.
    ///
    /// Q is (B, H_q, S_q, d_qk), K (B, H_kv, S_kv, d_qk), V (B, H_kv, S_kv, d_v), all bf16, head dims multiples of 16. Shapes and rules are
    /// judged by [`Graph::freeze`]; this call fails only on a handle that is not of this graph (FG1107).
    pub fn nvfp4_attention_qat_forward(
        &mut self,
        q: TensorId,
        k: TensorId,
        v: TensorId,
        options: Nvfp4Qat,
    ) -> Result<Nvfp4QatOutputs> {
        let inputs = self.operands(&[
            (InPort::Q, Some(q)),
            (InPort::K, Some(k)),
            (InPort::V, Some(v)),
            (InPort::SeqLenQ, options.seq_len_q),
            (InPort::SeqLenKv, options.seq_len_kv),
        ])?;
        let name = self.node_name(options.name, "nvfp4_attention_qat_forward");
        let attrs = QatAttrs { mask: options.mask, attn_scale: options.attn_scale, deterministic: false };
        let mut outputs = BTreeMap::new();
        let o = self.produce(&name, OutPort::O, &mut outputs);
        let high_precision_o = self.produce(&name, OutPort::HighPrecisionO, &mut outputs);
        let lse = self.produce(&name, OutPort::Stats, &mut outputs);
        self.node(Node { name, op: Op::Nvfp4Qat(attrs), inputs, outputs, compute_dtype: options.compute_dtype });
        Ok(Nvfp4QatOutputs { o, high_precision_o, lse })
    }

    /// Adds the backward of [`Graph::nvfp4_attention_qat_forward`]: gradients of Q, K and V for the gradient `d_o` of the forward's O.
    ///
    /// `d_o` comes first, as in the specification. `high_precision_o` and `lse` are the forward's outputs of those names: the user-visible O
    /// and statistics of another recipe give wrong gradients. Shapes and rules are judged by [`Graph::freeze`]; this call fails only on a
    /// handle that is not of this graph (FG1107).
    #[allow(clippy::too_many_arguments, reason = "the operands of the operation, in the specification's order")]
    pub fn nvfp4_attention_qat_backward(
        &mut self,
        d_o: TensorId,
        q: TensorId,
        k: TensorId,
        v: TensorId,
        high_precision_o: TensorId,
        lse: TensorId,
        options: Nvfp4QatBackward,
    ) -> Result<Nvfp4QatGrads> {
        let inputs = self.operands(&[
            (InPort::Q, Some(q)),
            (InPort::K, Some(k)),
            (InPort::V, Some(v)),
            (InPort::HighPrecisionO, Some(high_precision_o)),
            (InPort::DO, Some(d_o)),
            (InPort::Stats, Some(lse)),
            (InPort::SeqLenQ, options.seq_len_q),
            (InPort::SeqLenKv, options.seq_len_kv),
        ])?;
        let name = self.node_name(options.name, "nvfp4_attention_qat_backward");
        let attrs = QatAttrs { mask: options.mask, attn_scale: options.attn_scale, deterministic: options.deterministic };
        let mut outputs = BTreeMap::new();
        let dq = self.produce(&name, OutPort::DQ, &mut outputs);
        let dk = self.produce(&name, OutPort::DK, &mut outputs);
        let dv = self.produce(&name, OutPort::DV, &mut outputs);
        self.node(Node { name, op: Op::Nvfp4QatBackward(attrs), inputs, outputs, compute_dtype: options.compute_dtype });
        Ok(Nvfp4QatGrads { dq, dk, dv })
    }
}
