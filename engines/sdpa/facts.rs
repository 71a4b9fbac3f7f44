//! The facts of one attention node: what the graph asks for, never whether it is good.

use super::{Mask, StatsPacking};
use crate::{DType, FeatureSet, Port, Uid};

/// Forward or backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Q, K, V to O and Stats.
    Forward,
    /// Gradients from O, dO and Stats.
    Backward,
}

/// Which arithmetic an attention node asks for. The recipe decides the family: its rows differ even where every operand is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recipe {
    /// Operands as they are stored.
    #[default]
    Plain,
    /// NVFP4 quantisation-aware training: Q, K and V go through an NVFP4 fake quantisation, and so does P where it multiplies V (O of the
    /// forward) or dO (dV of the backward); see [`crate::qat`].
    Nvfp4Qat,
}

/// Softmax scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scale {
    /// Known at plan time; an omitted scale is 1.0 in a graph.
    Static(f32),
    /// A tensor read at execution.
    Dynamic(Uid),
}

/// Every operand of an attention node; absent ones are `None`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SdpaPorts {
    /// (B, H_q, S_q, d_qk).
    pub q: Option<Port>,
    /// (B, H_kv, S_kv, d_qk), or a page pool (pages, H_kv, page, d_qk).
    pub k: Option<Port>,
    /// (B, H_kv, S_kv, d_v), or a page pool.
    pub v: Option<Port>,
    /// (B, H_q, S_q, d_v): an output of the forward, an input of the backward. Of an NVFP4 QAT backward this is the high-precision O.
    pub o: Option<Port>,
    /// (B, H_q, S_q, d_v): O before the fake quantisation of P, an output of the NVFP4 QAT forward.
    pub high_precision_o: Option<Port>,
    /// (B, H_q, S_q, 1), f32: an output of the forward, an input of the backward.
    pub stats: Option<Port>,
    /// (B, H_q, S_q, d_v), backward input.
    pub d_o: Option<Port>,
    /// (B, H_q, S_q, d_qk), backward output.
    pub dq: Option<Port>,
    /// (B, H_kv, S_kv, d_qk), backward output.
    pub dk: Option<Port>,
    /// (B, H_kv, S_kv, d_v), backward output.
    pub dv: Option<Port>,
    /// (1|B, 1|H_q, S_q, S_kv).
    pub bias: Option<Port>,
    /// As bias, backward output.
    pub dbias: Option<Port>,
    /// (1, H_q, 1, 1), f32.
    pub sink: Option<Port>,
    /// As sink, backward output.
    pub dsink: Option<Port>,
    /// (B, 1, 1, 1), i32.
    pub seq_len_q: Option<Port>,
    /// (B, 1, 1, 1), i32.
    pub seq_len_kv: Option<Port>,
    /// (B+1, 1, 1, 1), i32.
    pub cu_seq_len_q: Option<Port>,
    /// (B+1, 1, 1, 1), i32.
    pub cu_seq_len_kv: Option<Port>,
    /// (B, 1, max_pages, 1), i32.
    pub page_table_k: Option<Port>,
    /// (B, 1, max_pages, 1), i32.
    pub page_table_v: Option<Port>,
    /// (B, H_q, S_q, 1), f32: row maximum of the scaled, biased, masked scores; forward output.
    pub score_max: Option<Port>,
    /// (B, H_q, S_q, 1), f32: row sum of exp(score - max); forward output.
    pub score_sum_exp: Option<Port>,
    /// (1, 1, 1, 1), f32: softmax scale as a tensor.
    pub attn_scale: Option<Port>,
}

impl SdpaPorts {
    /// The operands shaped by batch, head, sequence and head dim, in the order in which rules look at them, with their label and whether
    /// the node writes them.
    pub fn operands(&self, direction: Direction) -> impl Iterator<Item = (&'static str, &Port, bool)> {
        let forward = direction == Direction::Forward;
        [
            ("Q", &self.q, false),
            ("K", &self.k, false),
            ("V", &self.v, false),
            ("O", &self.o, forward),
            ("high-precision O", &self.high_precision_o, forward),
            ("dO", &self.d_o, false),
            ("dQ", &self.dq, true),
            ("dK", &self.dk, true),
            ("dV", &self.dv, true),
        ]
        .into_iter()
        .filter_map(|(label, port, written)| port.as_ref().map(|p| (label, p, written)))
    }

    /// The operands with one value a query row, with their label.
    pub fn row_values(&self) -> impl Iterator<Item = (&'static str, &Port)> {
        present([("Stats", &self.stats), ("score max", &self.score_max), ("score sum-exp", &self.score_sum_exp)])
    }

    /// What is neither among [`SdpaPorts::operands`] nor among [`SdpaPorts::row_values`], with its label.
    pub fn others(&self) -> impl Iterator<Item = (&'static str, &Port)> {
        present([
            ("bias", &self.bias),
            ("dBias", &self.dbias),
            ("sink", &self.sink),
            ("dSink", &self.dsink),
            ("seq_len_q", &self.seq_len_q),
            ("seq_len_kv", &self.seq_len_kv),
            ("cu_seq_len_q", &self.cu_seq_len_q),
            ("cu_seq_len_kv", &self.cu_seq_len_kv),
            ("page_table_k", &self.page_table_k),
            ("page_table_v", &self.page_table_v),
            ("attn_scale", &self.attn_scale),
        ])
    }
}

fn present<'a, const N: usize>(ports: [(&'static str, &'a Option<Port>); N]) -> impl Iterator<Item = (&'static str, &'a Port)> {
    ports.into_iter().filter_map(|(label, port)| Some((label, port.as_ref()?)))
}

/// Facts of one attention node (facts page §3).
#[derive(Debug, Clone, PartialEq)]
pub struct SdpaFacts {
    /// Forward or backward.
    pub direction: Direction,
    /// Arithmetic.
    pub recipe: Recipe,
    /// First reason why the graph is malformed for every engine, in the order of facts §3.5.
    pub invalid: Option<String>,
    /// Batch.
    pub b: i64,
    /// Query heads.
    pub h_q: i64,
    /// Key/value heads.
    pub h_kv: i64,
    /// Query rows (the maximum when packed).
    pub s_q: i64,
    /// Key rows (paged: the declared maximum, else max_pages·page).
    pub s_kv: i64,
    /// Head dim of Q and K.
    pub d_qk: i64,
    /// Head dim of V and O.
    pub d_v: i64,
    /// Rows a page when K/V are paged.
    pub page_size: Option<i64>,
    /// Element type of Q.
    pub dtype: DType,
    /// Whether every four-dimensional operand has Q's type.
    pub uniform_dtype: bool,
    /// Element type of O (forward) or dQ (backward).
    pub dtype_o: DType,
    /// Batch, sequence, head, dim order on every operand.
    pub bshd_layout: bool,
    /// As `bshd_layout` with the batch axis ignored.
    pub packed_layout: bool,
    /// Unit head-dim stride, no overlap, any outer order, on every operand.
    pub dense_layout: bool,
    /// Every stride of every four-dimensional operand, and its alignment, is a multiple of 16 bytes by its own element width.
    pub aligned_16: bool,
    /// Resolved bounds.
    pub mask: Mask,
    /// Softmax scale.
    pub scale: Scale,
    /// Everything beyond geometry that the graph uses.
    pub features: FeatureSet,
    /// Stats are produced (forward) or consumed (backward).
    pub wants_stats: bool,
    /// Classification of packed Stats by strides; `None` when the node is dense or the declaration is neither packing.
    pub stats_packing: Option<StatsPacking>,
    /// Declared bound on the packed query tokens.
    pub max_total_seq_len_q: Option<i64>,
    /// Declared bound on the packed key tokens.
    pub max_total_seq_len_kv: Option<i64>,
    /// Operands.
    pub ports: SdpaPorts,
}
