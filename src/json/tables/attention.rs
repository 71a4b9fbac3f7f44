//! Keys and ports of the attention operations.

use super::{key, Key, Kind};
use crate::graph::{InPort, OutPort};

pub(super) const FORWARD: &[Key] = &[
    key("alibi_mask", Kind::Bool, "Linear position bias."),
    key("attn_scale_prefolded", Kind::Bool, "frostgraph: the scale is already in Q; written only when true."),
    key("attn_scale_value", Kind::HexFloat, "Softmax scale; null is 1.0 unless the Attn_scale port is present.").or_null(),
    key("compute_data_type", Kind::DType, "Compute type; null takes the context's.").or_null(),
    key("diagonal_alignment", Kind::Choice(ALIGNMENTS), "Corner in which the diagonal is anchored.").or_null(),
    key("dropout_probability", Kind::HexFloat, "Drop probability.").or_null(),
    key("generate_stats", Kind::Bool, "Whether Stats are written.").or_null(),
    key("implementation", Kind::Choice(IMPLEMENTATIONS), "cuDNN's choice; recorded only.").or_null(),
    key("inputs", Kind::Inputs(FORWARD_INPUTS), "Operands read.").required(),
    key("is_mxfp8", Kind::False, "false for this tag."),
    key("left_bound", Kind::Int(i64::MIN), "Length L of the window: keys k > q + diag - L are kept.").or_null(),
    key("max_seq_len_kv", Kind::Int(0), "Key rows that a page table may address.").or_null(),
    key("max_total_seq_len_kv", Kind::Int(0), "Bound on the packed key tokens.").or_null(),
    key("max_total_seq_len_q", Kind::Int(0), "Bound on the packed query tokens.").or_null(),
    key("mma_core_mode", Kind::DType, "HALF for this tag; recorded only.").or_null(),
    key("name", Kind::Text, "Label."),
    key("outputs", Kind::Outputs(FORWARD_OUTPUTS), "Operands written.").required(),
    key("padding_mask", Kind::Bool, "Rows past the sequence lengths are masked."),
    key("rescale_threshold", Kind::HexFloat, "Recorded only.").or_null(),
    key("right_bound", Kind::Int(i64::MIN), "R: keys k <= q + diag + R are kept; 0 is causal.").or_null(),
    key("score_mod", Kind::Bool, "frostgraph: a callback that a file cannot carry was attached; written only when true."),
    key("softmax_precision", Kind::DType, "frostgraph: requested softmax precision; written only when set.").or_null(),
    key("stats_use_log2", Kind::Bool, "Stats in log base 2."),
    key("tag", Kind::Choice(&["SDPA"]), "Operation.").required(),
    key("unfuse_fma", Kind::Bool, "Unfused multiply-add in the softmax."),
];

pub(super) const BACKWARD: &[Key] = &[
    key("alibi_mask", Kind::Bool, "Linear position bias."),
    key("attn_scale_value", Kind::HexFloat, "Softmax scale; null is 1.0 unless the Attn_scale port is present.").or_null(),
    key("compute_data_type", Kind::DType, "Written only when set.").or_null(),
    key("diagonal_alignment", Kind::Choice(ALIGNMENTS), "Corner in which the diagonal is anchored.").or_null(),
    key("dropout_probability", Kind::HexFloat, "Drop probability.").or_null(),
    key("inputs", Kind::Inputs(BACKWARD_INPUTS), "Operands read.").required(),
    key("is_deterministic_algorithm", Kind::Bool, "Bitwise reproducible gradients."),
    key("left_bound", Kind::Int(i64::MIN), "Length L of the window: keys k > q + diag - L are kept.").or_null(),
    key("max_total_seq_len_kv", Kind::Int(0), "Bound on the packed key tokens.").or_null(),
    key("max_total_seq_len_q", Kind::Int(0), "Bound on the packed query tokens.").or_null(),
    key("name", Kind::Text, "Label."),
    key("outputs", Kind::Outputs(BACKWARD_OUTPUTS), "Operands written.").required(),
    key("padding_mask", Kind::Bool, "Rows past the sequence lengths are masked."),
    key("right_bound", Kind::Int(i64::MIN), "R: keys k <= q + diag + R are kept; 0 is causal.").or_null(),
    key("score_mod", Kind::Bool, "frostgraph: a callback that a file cannot carry was attached; written only when true."),
    key("tag", Kind::Choice(&["SDPA_BWD"]), "Operation.").required(),
];

pub(super) const QAT_FORWARD: &[Key] = &[
    key("alibi_mask", Kind::Bool, "Linear position bias."),
    key("attn_scale_value", Kind::HexFloat, "Softmax scale, finite and above 0; null is 1.0.").or_null(),
    key("compute_data_type", Kind::DType, "Written only when set.").or_null(),
    key("diagonal_alignment", Kind::Choice(ALIGNMENTS), "Corner in which the diagonal is anchored.").or_null(),
    key("inputs", Kind::Inputs(QAT_FORWARD_INPUTS), "Operands read.").required(),
    key("left_bound", Kind::Int(i64::MIN), "Length L of the window: keys k > q + diag - L are kept.").or_null(),
    key("name", Kind::Text, "Label."),
    key("outputs", Kind::Outputs(QAT_FORWARD_OUTPUTS), "Operands written.").required(),
    key("padding_mask", Kind::Bool, "Rows past the sequence lengths are masked."),
    key("right_bound", Kind::Int(i64::MIN), "R: keys k <= q + diag + R are kept; 0 is causal.").or_null(),
    key("tag", Kind::Choice(&["NVFP4_ATTENTION_QAT"]), "Operation.").required(),
];

pub(super) const QAT_BACKWARD: &[Key] = &[
    key("alibi_mask", Kind::Bool, "Linear position bias."),
    key("attn_scale_value", Kind::HexFloat, "Softmax scale, finite and above 0; null is 1.0.").or_null(),
    key("compute_data_type", Kind::DType, "Written only when set.").or_null(),
    key("diagonal_alignment", Kind::Choice(ALIGNMENTS), "Corner in which the diagonal is anchored.").or_null(),
    key("inputs", Kind::Inputs(QAT_BACKWARD_INPUTS), "Operands read.").required(),
    key("is_deterministic_algorithm", Kind::Bool, "Bitwise reproducible gradients."),
    key("left_bound", Kind::Int(i64::MIN), "Length L of the window: keys k > q + diag - L are kept.").or_null(),
    key("name", Kind::Text, "Label."),
    key("outputs", Kind::Outputs(QAT_BACKWARD_OUTPUTS), "Operands written.").required(),
    key("padding_mask", Kind::Bool, "Rows past the sequence lengths are masked."),
    key("right_bound", Kind::Int(i64::MIN), "R: keys k <= q + diag + R are kept; 0 is causal.").or_null(),
    key("tag", Kind::Choice(&["NVFP4_ATTENTION_QAT_BWD"]), "Operation.").required(),
];

/// What the NVFP4 QAT nodes read and write: what their operation defines and nothing that it would have to ignore.
const QAT_FORWARD_INPUTS: &[InPort] = &[InPort::Q, InPort::K, InPort::V, InPort::SeqLenQ, InPort::SeqLenKv];

const QAT_FORWARD_OUTPUTS: &[OutPort] = &[OutPort::O, OutPort::HighPrecisionO, OutPort::Stats];

const QAT_BACKWARD_INPUTS: &[InPort] =
    &[InPort::Q, InPort::K, InPort::V, InPort::HighPrecisionO, InPort::DO, InPort::Stats, InPort::SeqLenQ, InPort::SeqLenKv];

const QAT_BACKWARD_OUTPUTS: &[OutPort] = &[OutPort::DQ, OutPort::DK, OutPort::DV];

const FORWARD_INPUTS: &[InPort] = &[
    InPort::Q,
    InPort::K,
    InPort::V,
    InPort::AttnScale,
    InPort::Bias,
    InPort::SeqLenQ,
    InPort::SeqLenKv,
    InPort::CuSeqLenQ,
    InPort::CuSeqLenKv,
    InPort::Seed,
    InPort::Offset,
    InPort::DropoutMask,
    InPort::DropoutScale,
    InPort::PageTableK,
    InPort::PageTableV,
    InPort::BlockMask,
    InPort::Sink,
    InPort::KvMask,
];

/// cudnn-frontend's backward has no cumulative lengths; ours records them, and the rows decide.
const BACKWARD_INPUTS: &[InPort] = &[
    InPort::Q,
    InPort::K,
    InPort::V,
    InPort::O,
    InPort::DO,
    InPort::Stats,
    InPort::AttnScale,
    InPort::Bias,
    InPort::SeqLenQ,
    InPort::SeqLenKv,
    InPort::CuSeqLenQ,
    InPort::CuSeqLenKv,
    InPort::Seed,
    InPort::Offset,
    InPort::DropoutMask,
    InPort::DropoutScale,
    InPort::DropoutScaleInv,
    InPort::Sink,
];

const FORWARD_OUTPUTS: &[OutPort] = &[OutPort::O, OutPort::Stats, OutPort::Max, OutPort::SumExp, OutPort::RngDump];

const BACKWARD_OUTPUTS: &[OutPort] = &[OutPort::DQ, OutPort::DK, OutPort::DV, OutPort::DBias, OutPort::RngDump, OutPort::DSink];

const ALIGNMENTS: &[&str] = &["TOP_LEFT", "BOTTOM_RIGHT"];

const IMPLEMENTATIONS: &[&str] = &["AUTO", "COMPOSITE", "UNIFIED"];
