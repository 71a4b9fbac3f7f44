//! Attributes of attention nodes: every argument of facts §2.2, also those that no engine serves.

use super::TensorId;
use crate::DType;

/// Softmax scale: a number or a tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum AttnScale {
    /// Known at build time.
    Value(f32),
    /// Read at execution.
    Tensor(TensorId),
}

/// Corner in which the diagonal is anchored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Alignment {
    /// Query 0 faces key 0.
    #[default]
    TopLeft,
    /// The last query faces the last key.
    BottomRight,
}

/// cuDNN's implementation choice; recorded for JSON, never used for planning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Implementation {
    /// Not resolved.
    Auto,
    /// Several kernels.
    Composite,
    /// One kernel.
    #[default]
    Unified,
}

/// The mask as the user spells it. Conflicting spellings are kept and judged by the analyzer (facts §3.3).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Mask {
    /// `use_causal_mask`.
    pub causal: bool,
    /// `use_causal_mask_bottom_right`.
    pub causal_bottom_right: bool,
    /// `sliding_window_length` L: keeps L keys, W = L - 1.
    pub sliding_window: Option<i64>,
    /// `diagonal_band_left_bound` L: keeps keys k > q + diag - L.
    pub left_bound: Option<i64>,
    /// `diagonal_band_right_bound` R: keeps keys k <= q + diag + R.
    pub right_bound: Option<i64>,
    /// `diagonal_alignment`.
    pub alignment: Alignment,
    /// `use_padding_mask`.
    pub padding: bool,
    /// `use_alibi_mask`.
    pub alibi: bool,
}

impl Mask {
    /// No mask.
    pub fn none() -> Mask {
        Mask::default()
    }

    /// Causal, anchored top-left.
    pub fn causal() -> Mask {
        Mask { causal: true, ..Mask::default() }
    }

    /// Causal, anchored bottom-right.
    pub fn causal_bottom_right() -> Mask {
        Mask { causal_bottom_right: true, ..Mask::default() }
    }

    /// Adds a sliding window of `length` keys, the query's own included (FlashAttention's window W is `length` = W + 1).
    #[must_use]
    pub fn window(mut self, length: i64) -> Mask {
        self.sliding_window = Some(length);
        self
    }

    /// Adds a padding mask; the node then needs sequence lengths.
    #[must_use]
    pub fn padded(mut self) -> Mask {
        self.padding = true;
        self
    }
}

/// Dropout in its three spellings.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Dropout {
    /// Drop probability with `Seed` and `Offset` tensors.
    pub probability: Option<f32>,
    /// Seed tensor.
    pub seed: Option<TensorId>,
    /// Offset tensor.
    pub offset: Option<TensorId>,
    /// Custom mask tensor.
    pub mask: Option<TensorId>,
    /// Scale of the custom mask.
    pub scale: Option<TensorId>,
    /// Inverse scale (backward).
    pub scale_inv: Option<TensorId>,
}

/// Attributes of a forward node as recorded; operands are ports of the node.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SdpaAttrs {
    /// Mask spelling.
    pub mask: Mask,
    /// Softmax scale when given as a number; omitted means 1.0 unless the `Attn_scale` port is present.
    pub attn_scale: Option<f32>,
    /// Drop probability.
    pub dropout_probability: Option<f32>,
    /// `generate_stats`; beats `is_inference`.
    pub generate_stats: Option<bool>,
    /// `is_inference`.
    pub is_inference: Option<bool>,
    /// Stats in log base 2.
    pub stats_use_log2: bool,
    /// Unfused multiply-add.
    pub unfuse_fma: bool,
    /// cuDNN implementation.
    pub implementation: Implementation,
    /// `paged_attention_max_seq_len_kv`.
    pub max_seq_len_kv: Option<i64>,
    /// Declared bound on packed query tokens.
    pub max_total_seq_len_q: Option<i64>,
    /// Declared bound on packed key tokens.
    pub max_total_seq_len_kv: Option<i64>,
    /// A score modification callback was attached (it cannot be carried by a graph file; recorded so that it is declined by name).
    pub score_mod: bool,
    /// Requested softmax precision.
    pub softmax_precision: Option<DType>,
    /// Scale already folded into Q.
    pub attn_scale_prefolded: bool,
    /// `rescale_threshold` as written by some cudnn-frontend builds.
    pub rescale_threshold: Option<f32>,
    /// `mma_core_mode` of the JSON; `None` is written as `HALF`.
    pub mma_core_mode: Option<DType>,
}

/// Attributes of an NVFP4 QAT node, forward or backward, as recorded.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct QatAttrs {
    /// Mask spelling.
    pub mask: Mask,
    /// Softmax scale.
    pub attn_scale: Option<f32>,
    /// Bitwise-reproducible gradients; asked of a backward only.
    pub deterministic: bool,
}

/// Attributes of a backward node as recorded.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SdpaBackwardAttrs {
    /// Mask spelling.
    pub mask: Mask,
    /// Softmax scale when given as a number.
    pub attn_scale: Option<f32>,
    /// Drop probability.
    pub dropout_probability: Option<f32>,
    /// `use_deterministic_algorithm`.
    pub deterministic: bool,
    /// Declared bound on packed query tokens.
    pub max_total_seq_len_q: Option<i64>,
    /// Declared bound on packed key tokens.
    pub max_total_seq_len_kv: Option<i64>,
    /// A score modification callback was attached.
    pub score_mod: bool,
}
