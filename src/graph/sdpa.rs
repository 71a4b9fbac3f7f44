//! The attention operations of the builder: option structs, what they return, and how a call becomes a node.

use super::{
    Alignment, AttnScale, Dropout, Graph, Implementation, InPort, Mask, Node, Op, OutPort, SdpaAttrs, SdpaBackwardAttrs, TensorId,
};
use crate::{DType, Result};
use std::collections::BTreeMap;

/// Options of [`Graph::sdpa`]; every argument of facts §2.2. What no engine serves is recorded all the same and declined by name.
///
/// ```
/// use frostgraph::graph::{Mask, Sdpa};
/// let options = Sdpa { mask: Mask::causal(), generate_stats: Some(true), ..Sdpa::default() };
/// assert!(options.mask.causal);
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sdpa {
    /// Label of the node; empty takes a unique one.
    pub name: String,
    /// Mask spelling.
    pub mask: Mask,
    /// Softmax scale; omitted means 1.0 in a graph.
    pub attn_scale: Option<AttnScale>,
    /// Additive bias (1|B, 1|H_q, S_q, S_kv), after the scale and before the softmax.
    pub bias: Option<TensorId>,
    /// Query lengths (B, 1, 1, 1), i32.
    pub seq_len_q: Option<TensorId>,
    /// Key lengths (B, 1, 1, 1), i32.
    pub seq_len_kv: Option<TensorId>,
    /// Cumulative query lengths (B+1, 1, 1, 1), i32; excludes `seq_len_q`.
    pub cu_seq_len_q: Option<TensorId>,
    /// Cumulative key lengths (B+1, 1, 1, 1), i32; excludes `seq_len_kv`.
    pub cu_seq_len_kv: Option<TensorId>,
    /// Sink logits (1, H_q, 1, 1), f32.
    pub sink: Option<TensorId>,
    /// Dropout.
    pub dropout: Dropout,
    /// Page table of K (B, 1, max_pages, 1), i32; K is then a pool (pages, H_kv, page, d_qk).
    pub page_table_k: Option<TensorId>,
    /// Page table of V (B, 1, max_pages, 1), i32; V is then a pool (pages, H_kv, page, d_v).
    pub page_table_v: Option<TensorId>,
    /// `paged_attention_max_seq_len_kv`: bound on the keys of one sequence.
    pub max_seq_len_kv: Option<i64>,
    /// Bound on the packed query tokens.
    pub max_total_seq_len_q: Option<i64>,
    /// Bound on the packed key tokens.
    pub max_total_seq_len_kv: Option<i64>,
    /// Block mask.
    pub block_mask: Option<TensorId>,
    /// Additive key mask (1|B, 1, 1, S_kv).
    pub kv_mask: Option<TensorId>,
    /// Request the dropout mask as an output (B, H_q, S_q, S_kv).
    pub rng_dump: bool,
    /// Request the row maximum as an output (B, H_q, S_q, 1), f32.
    pub score_max: bool,
    /// Request the row sum of exponentials as an output (B, H_q, S_q, 1), f32.
    pub score_sum_exp: bool,
    /// A score modification callback was attached.
    pub score_mod: bool,
    /// Request Stats; beats `is_inference`.
    pub generate_stats: Option<bool>,
    /// `Some(false)` requests Stats where `generate_stats` is not given.
    pub is_inference: Option<bool>,
    /// Stats in log base 2.
    pub stats_use_log2: bool,
    /// Unfused multiply-add in the softmax.
    pub unfuse_fma: bool,
    /// Precision of the softmax; `None` and f32 are the default.
    pub softmax_precision: Option<DType>,
    /// The caller folded the scale into Q.
    pub attn_scale_prefolded: bool,
    /// cuDNN's implementation choice.
    pub implementation: Implementation,
    /// Compute type of the node; `None` takes the graph's.
    pub compute_dtype: Option<DType>,
}

/// Outputs of [`Graph::sdpa`]: virtual until [`Graph::output`] marks them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SdpaOutputs {
    /// (B, H_q, S_q, d_v).
    pub o: TensorId,
    /// (B, H_q, S_q, 1), f32: log-sum-exp of the scaled, biased, masked scores; present when Stats were requested.
    pub stats: Option<TensorId>,
    /// (B, H_q, S_q, 1), f32.
    pub score_max: Option<TensorId>,
    /// (B, H_q, S_q, 1), f32.
    pub score_sum_exp: Option<TensorId>,
    /// (B, H_q, S_q, S_kv).
    pub rng_dump: Option<TensorId>,
}

/// Options of [`Graph::sdpa_backward`]; every argument of facts §2.2.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SdpaBackward {
    /// Label of the node; empty takes a unique one.
    pub name: String,
    /// Mask spelling.
    pub mask: Mask,
    /// Softmax scale; omitted means 1.0 in a graph.
    pub attn_scale: Option<AttnScale>,
    /// Additive bias (1|B, 1|H_q, S_q, S_kv).
    pub bias: Option<TensorId>,
    /// Request dBias, shaped as the bias.
    pub dbias: bool,
    /// Query lengths (B, 1, 1, 1), i32.
    pub seq_len_q: Option<TensorId>,
    /// Key lengths (B, 1, 1, 1), i32.
    pub seq_len_kv: Option<TensorId>,
    /// Bound on the packed query tokens.
    pub max_total_seq_len_q: Option<i64>,
    /// Bound on the packed key tokens.
    pub max_total_seq_len_kv: Option<i64>,
    /// Sink logits (1, H_q, 1, 1), f32.
    pub sink: Option<TensorId>,
    /// Request dSink, shaped as the sink.
    pub dsink: bool,
    /// Dropout.
    pub dropout: Dropout,
    /// Request the dropout mask as an output (B, H_q, S_q, S_kv).
    pub rng_dump: bool,
    /// `use_deterministic_algorithm`: bitwise-reproducible gradients.
    pub deterministic: bool,
    /// A score modification callback was attached.
    pub score_mod: bool,
    /// Compute type of the node; `None` takes the graph's.
    pub compute_dtype: Option<DType>,
}

/// Outputs of [`Graph::sdpa_backward`]: virtual until [`Graph::output`] marks them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SdpaGrads {
    /// (B, H_q, S_q, d_qk), with Q's strides.
    pub dq: TensorId,
    /// (B, H_kv, S_kv, d_qk), with K's strides.
    pub dk: TensorId,
    /// (B, H_kv, S_kv, d_v), with V's strides.
    pub dv: TensorId,
    /// As the bias; present when requested.
    pub dbias: Option<TensorId>,
    /// As the sink, f32; present when requested.
    pub dsink: Option<TensorId>,
    /// (B, H_q, S_q, S_kv); present when requested.
    pub rng_dump: Option<TensorId>,
}

/// The number goes to the attribute, the tensor to the port.
fn split_scale(scale: Option<AttnScale>) -> (Option<f32>, Option<TensorId>) {
    match scale {
        None => (None, None),
        Some(AttnScale::Value(v)) => (Some(v), None),
        Some(AttnScale::Tensor(t)) => (None, Some(t)),
    }
}

impl Graph {
    /// Adds attention forward: O = softmax(scale · Q Kᵀ + bias, masked) V.
    ///
    /// Q is (B, H_q, S_q, d_qk), K (B, H_kv, S_kv, d_qk), V (B, H_kv, S_kv, d_v), or page pools where page tables are given.
    /// Shapes and rules are judged by [`Graph::freeze`]; this call fails only on a handle that is not of this graph (FG1107).
    pub fn sdpa(&mut self, q: TensorId, k: TensorId, v: TensorId, options: Sdpa) -> Result<SdpaOutputs> {
        let (attn_scale, scale_tensor) = split_scale(options.attn_scale);
        let d = options.dropout;
        let inputs = self.operands(&[
            (InPort::Q, Some(q)),
            (InPort::K, Some(k)),
            (InPort::V, Some(v)),
            (InPort::AttnScale, scale_tensor),
            (InPort::Bias, options.bias),
            (InPort::SeqLenQ, options.seq_len_q),
            (InPort::SeqLenKv, options.seq_len_kv),
            (InPort::CuSeqLenQ, options.cu_seq_len_q),
            (InPort::CuSeqLenKv, options.cu_seq_len_kv),
            (InPort::Seed, d.seed),
            (InPort::Offset, d.offset),
            (InPort::DropoutMask, d.mask),
            (InPort::DropoutScale, d.scale),
            (InPort::DropoutScaleInv, d.scale_inv),
            (InPort::PageTableK, options.page_table_k),
            (InPort::PageTableV, options.page_table_v),
            (InPort::BlockMask, options.block_mask),
            (InPort::Sink, options.sink),
            (InPort::KvMask, options.kv_mask),
        ])?;
        let name = self.node_name(options.name, "sdpa");
        let attrs = SdpaAttrs {
            mask: options.mask,
            attn_scale,
            dropout_probability: d.probability,
            generate_stats: options.generate_stats,
            is_inference: options.is_inference,
            stats_use_log2: options.stats_use_log2,
            unfuse_fma: options.unfuse_fma,
            implementation: options.implementation,
            max_seq_len_kv: options.max_seq_len_kv,
            max_total_seq_len_q: options.max_total_seq_len_q,
            max_total_seq_len_kv: options.max_total_seq_len_kv,
            score_mod: options.score_mod,
            softmax_precision: options.softmax_precision,
            attn_scale_prefolded: options.attn_scale_prefolded,
            rescale_threshold: None,
            mma_core_mode: None,
        };
        let stats = attrs.wants_stats().unwrap_or(false);
        let mut outputs = BTreeMap::new();
        let o = self.produce(&name, OutPort::O, &mut outputs);
        let stats = stats.then(|| self.produce(&name, OutPort::Stats, &mut outputs));
        let score_max = options.score_max.then(|| self.produce(&name, OutPort::Max, &mut outputs));
        let score_sum_exp = options.score_sum_exp.then(|| self.produce(&name, OutPort::SumExp, &mut outputs));
        let rng_dump = options.rng_dump.then(|| self.produce(&name, OutPort::RngDump, &mut outputs));
        self.node(Node { name, op: Op::Sdpa(attrs), inputs, outputs, compute_dtype: options.compute_dtype });
        Ok(SdpaOutputs { o, stats, score_max, score_sum_exp, rng_dump })
    }

    /// Adds attention backward: gradients of Q, K and V from the forward's O and Stats and the gradient `d_o` of O.
    ///
    /// `stats` is (B, H_q, S_q, 1), f32, natural log. Shapes and rules are judged by [`Graph::freeze`]; this call fails only on a
    /// handle that is not of this graph (FG1107).
    #[allow(clippy::too_many_arguments, reason = "the operands of the operation, in the field's order")]
    pub fn sdpa_backward(
        &mut self,
        q: TensorId,
        k: TensorId,
        v: TensorId,
        o: TensorId,
        d_o: TensorId,
        stats: TensorId,
        options: SdpaBackward,
    ) -> Result<SdpaGrads> {
        let (attn_scale, scale_tensor) = split_scale(options.attn_scale);
        let d = options.dropout;
        let inputs = self.operands(&[
            (InPort::Q, Some(q)),
            (InPort::K, Some(k)),
            (InPort::V, Some(v)),
            (InPort::O, Some(o)),
            (InPort::DO, Some(d_o)),
            (InPort::Stats, Some(stats)),
            (InPort::AttnScale, scale_tensor),
            (InPort::Bias, options.bias),
            (InPort::SeqLenQ, options.seq_len_q),
            (InPort::SeqLenKv, options.seq_len_kv),
            (InPort::Seed, d.seed),
            (InPort::Offset, d.offset),
            (InPort::DropoutMask, d.mask),
            (InPort::DropoutScale, d.scale),
            (InPort::DropoutScaleInv, d.scale_inv),
            (InPort::Sink, options.sink),
        ])?;
        let name = self.node_name(options.name, "sdpa_backward");
        let attrs = SdpaBackwardAttrs {
            mask: options.mask,
            attn_scale,
            dropout_probability: d.probability,
            deterministic: options.deterministic,
            max_total_seq_len_q: options.max_total_seq_len_q,
            max_total_seq_len_kv: options.max_total_seq_len_kv,
            score_mod: options.score_mod,
        };
        let mut outputs = BTreeMap::new();
        let dq = self.produce(&name, OutPort::DQ, &mut outputs);
        let dk = self.produce(&name, OutPort::DK, &mut outputs);
        let dv = self.produce(&name, OutPort::DV, &mut outputs);
        let dbias = options.dbias.then(|| self.produce(&name, OutPort::DBias, &mut outputs));
        let dsink = options.dsink.then(|| self.produce(&name, OutPort::DSink, &mut outputs));
        let rng_dump = options.rng_dump.then(|| self.produce(&name, OutPort::RngDump, &mut outputs));
        self.node(Node { name, op: Op::SdpaBackward(attrs), inputs, outputs, compute_dtype: options.compute_dtype });
        Ok(SdpaGrads { dq, dk, dv, dbias, dsink, rng_dump })
    }
}

impl SdpaAttrs {
    /// Whether Stats are requested: `generate_stats` if given, else not `is_inference`; `None` when neither is given.
    pub fn wants_stats(&self) -> Option<bool> {
        self.generate_stats.or(self.is_inference.map(|i| !i))
    }
}

impl Mask {
    /// Left bound as a length, right bound and bottom-right anchor as the validation rules resolve them (facts §2.3): an explicit left
    /// bound beats the window, a causal flag pins the right bound to 0 and sets the alignment, bottom-right beats top-left.
    pub(super) fn diagonal(&self) -> (Option<i64>, Option<i64>, bool) {
        let left = self.left_bound.or(self.sliding_window);
        if self.causal_bottom_right {
            (left, Some(0), true)
        } else if self.causal {
            (left, Some(0), false)
        } else {
            (left, self.right_bound, self.alignment == Alignment::BottomRight)
        }
    }
}
