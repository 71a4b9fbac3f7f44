//! Which keys the format has and what they hold: the one source of the reader's checks and of the JSON Schema.

use crate::graph::{InPort, OutPort};

/// What a value may be.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// Integer of at least this value, 64 bits.
    Int(i64),
    /// `true` or `false`.
    Bool,
    /// `false` only: quantised attention has tags of its own.
    False,
    /// String.
    Text,
    /// Single-precision float as eight hexadecimal digits of its bits; a plain number is taken too.
    HexFloat,
    /// Element type.
    DType,
    /// One of these strings.
    Choice(&'static [&'static str]),
    /// Array of integers.
    Ints,
    /// `{"index": i, "value": v}`: a scalar handed over by value.
    Scalar,
    /// Input port to uid.
    Inputs(&'static [InPort]),
    /// Output port to uid.
    Outputs(&'static [OutPort]),
    /// Port to uid, of a node that becomes part of another.
    Ports(&'static [&'static str]),
    /// Checked by its own table.
    Nested,
}

/// One key of an object.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key {
    pub name: &'static str,
    pub kind: Kind,
    /// `null` means unset.
    pub nullable: bool,
    pub required: bool,
    pub doc: &'static str,
}

const fn key(name: &'static str, kind: Kind, doc: &'static str) -> Key {
    Key { name, kind, nullable: false, required: false, doc }
}

impl Key {
    const fn or_null(mut self) -> Key {
        self.nullable = true;
        self
    }
    const fn required(mut self) -> Key {
        self.required = true;
        self
    }
}

/// Versions that are read.
pub(super) const VERSIONS: &[&str] = &["1.0", "2.0"];

pub(super) const ENVELOPE: &[Key] = &[
    key("context", Kind::Nested, "Graph-wide defaults.").required(),
    key("cudnn_backend_version", Kind::Text, "Informational.").or_null(),
    key("cudnn_frontend_version", Kind::Int(0), "Major times 10000, minor times 100, patch.").or_null(),
    key("gid", Kind::Int(0), "Number of the graph in the process that wrote it; ignored.").or_null(),
    key("json_version", Kind::Choice(VERSIONS), "Version of the format.").required(),
    key("nodes", Kind::Nested, "Operations in insertion order.").required(),
    key("tensors", Kind::Nested, "Tensors by ascending uid; in version 1.0 an object keyed by tensor.").required(),
];

pub(super) const CONTEXT: &[Key] = &[
    key("compute_data_type", Kind::DType, "Compute type of nodes that name none.").or_null(),
    key("intermediate_data_type", Kind::DType, "Element type of virtual tensors that name none.").or_null(),
    key("io_data_type", Kind::DType, "Element type of tensors that name none.").or_null(),
    key("is_dynamic_shape_enabled", Kind::Bool, "Recorded only.").or_null(),
    key("is_override_shape_enabled", Kind::Bool, "Recorded only.").or_null(),
    key("name", Kind::Text, "Label of the graph; absent when empty.").or_null(),
    key("sm_count", Kind::Int(-1), "Streaming multiprocessors to use; -1 is unset.").or_null(),
];

pub(super) const TENSOR: &[Key] = &[
    key("alignment", Kind::Int(1), "Guaranteed base alignment in bytes; absent means 16."),
    key("data_type", Kind::DType, "Element type; null takes the context's.").or_null(),
    key("dim", Kind::Ints, "Extents; empty until inferred."),
    key("is_pass_by_value", Kind::Bool, "A host scalar."),
    key("is_virtual", Kind::Bool, "Lives only inside the graph."),
    key("name", Kind::Text, "Label; absent when empty."),
    key("pass_by_value", Kind::Scalar, "The scalar when it is known.").or_null(),
    key("ragged_offset_multiplier", Kind::Int(1), "Elements per unit of the ragged offset; absent means 1."),
    key("ragged_offset_name", Kind::Text, "Label of the offset tensor."),
    key("ragged_offset_uid", Kind::Int(1), "The tensor of batch offsets that makes this tensor packed."),
    key("reordering_type", Kind::Choice(REORDERINGS), "Element order.").or_null(),
    key("stride", Kind::Ints, "Strides in elements; empty until inferred."),
    key("uid", Kind::Int(1), "Identifier, unique in the graph.").required(),
];

/// Keys of version 1.0 tensors that 2.0 dropped.
pub(super) const TENSOR_V1: &[Key] = &[key("uid_assigned", Kind::Bool, "Whether `uid` was chosen.")];

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

/// An operation with a table: its tag, its keys, and what it is.
pub(super) struct Operation {
    pub tag: &'static str,
    pub keys: &'static [Key],
    pub doc: &'static str,
}

/// Every operation that is read and written.
pub(super) const OPERATIONS: &[Operation] = &[
    Operation { tag: "SDPA", keys: FORWARD, doc: "Scaled dot-product attention, forward." },
    Operation { tag: "SDPA_BWD", keys: BACKWARD, doc: "Scaled dot-product attention, backward." },
    Operation {
        tag: "NVFP4_ATTENTION_QAT",
        keys: QAT_FORWARD,
        doc: "frostgraph: attention forward with NVFP4 fake quantisation of Q, K, V and P.",
    },
    Operation { tag: "NVFP4_ATTENTION_QAT_BWD", keys: QAT_BACKWARD, doc: "frostgraph: the backward of NVFP4_ATTENTION_QAT." },
    Operation {
        tag: "GROUPED_GEMM_DSRELU",
        keys: GROUPED_GEMM_DSRELU,
        doc: "frostgraph: grouped block-scaled matrix product with the dsReLU backward epilogue.",
    },
    Operation { tag: "MOE_GROUPED_MATMUL", keys: MOE_GROUPED_MATMUL, doc: "Grouped matrix product of a mixture of experts." },
];

/// Read where an operation of the table reads its result, and folded into it.
pub(super) const DEQUANTIZE: Operation = Operation {
    tag: "BLOCK_SCALE_DEQUANTIZE",
    keys: BLOCK_SCALE_DEQUANTIZE,
    doc: "Block scales of an operand of MOE_GROUPED_MATMUL; served there only.",
};

const BLOCK_SCALE_DEQUANTIZE: &[Key] = &[
    key(
        "block_size",
        Kind::Ints,
        "Values that share a scale along each of the last extents: [1, 32] of a token, [32, 1] of weights.",
    )
    .required(),
    key("compute_data_type", Kind::DType, "Recorded by cudnn-frontend; the product of value and scale is exact here.").or_null(),
    key("inputs", Kind::Ports(&["X", "scale"]), "Operands read.").required(),
    key("is_negative_scale", Kind::Bool, "false; negative scales are not served.").or_null(),
    key("name", Kind::Text, "Label."),
    key("outputs", Kind::Ports(&["Y"]), "The virtual tensor that the product reads.").required(),
    key("tag", Kind::Choice(&["BLOCK_SCALE_DEQUANTIZE"]), "Operation.").required(),
];

const MOE_GROUPED_MATMUL: &[Key] = &[
    key("compute_data_type", Kind::DType, "frostgraph: written only when set; DOUBLE accumulates in f64.").or_null(),
    key("inputs", Kind::Inputs(MOE_PORTS_IN), "Operands read.").required(),
    key(
        "mode",
        Kind::Choice(MOE_MODES),
        "NONE: rows lie group by group; GATHER: read through TokenIndex; SCATTER: written through TokenIndex and TokenKs.",
    )
    .required(),
    key("name", Kind::Text, "Label."),
    key("outputs", Kind::Outputs(&[OutPort::Output, OutPort::Status]), "Operands written; Status is frostgraph's own.")
        .required(),
    key("tag", Kind::Choice(&["MOE_GROUPED_MATMUL"]), "Operation.").required(),
    key("top_k", Kind::Int(0), "Rows of the output that each token has; read in mode SCATTER.").or_null(),
];

pub(super) const MOE_MODES: &[&str] = &["NONE", "GATHER", "SCATTER"];

/// Scales are not among them: they come from a dequantisation.
const MOE_PORTS_IN: &[InPort] = &[InPort::Token, InPort::Weight, InPort::FirstTokenOffset, InPort::TokenIndex, InPort::TokenKs];

pub(super) const GROUPED_GEMM_DSRELU: &[Key] = &[
    key("b_data_type", Kind::DType, "Element type of B where pointers do not tell; null is A's.").or_null(),
    key("b_major", Kind::Choice(B_MAJORS), "Contiguous extent of B where its strides do not tell."),
    key("compute_data_type", Kind::DType, "Written only when set; DOUBLE accumulates in f64.").or_null(),
    key("d_data_type", Kind::DType, "Element type of D where its tensors name none."),
    key("discrete_col_sfd", Kind::Bool, "Column scales laid out expert by expert."),
    key(
        "formula",
        Kind::Choice(FORMULAS),
        "PREACTIVATION_G: D = 2 prob C relu(G), dprob = sum C relu(G)^2; PREACTIVATION_C: G and C exchanged.",
    ),
    key("inputs", Kind::Inputs(GEMM_PORTS_IN), "Operands read.").required(),
    key("is_deterministic_algorithm", Kind::Bool, "dprob and dbias of equal bits in every run."),
    key("m_aligned", Kind::Int(1), "Multiple of rows that every expert ends at; 256."),
    key("n", Kind::Int(1), "Columns of B where pointers do not tell.").or_null(),
    key("name", Kind::Text, "Label."),
    key("outputs", Kind::Outputs(GEMM_PORTS_OUT), "Operands written.").required(),
    key("sf_vec_size", Kind::Int(1), "Values of K that share a scale: 16 or 32; absent is 16."),
    key("tag", Kind::Choice(&["GROUPED_GEMM_DSRELU"]), "Operation.").required(),
    key("tanh_clamp_scale", Kind::HexFloat, "s of the soft clamp s tanh(relu(x) / s).").or_null(),
];

pub(super) const B_MAJORS: &[&str] = &["K", "N"];
pub(super) const FORMULAS: &[&str] = &["PREACTIVATION_G", "PREACTIVATION_C"];

const GEMM_PORTS_IN: &[InPort] = &[
    InPort::A,
    InPort::B,
    InPort::C,
    InPort::Sfa,
    InPort::Sfb,
    InPort::BPtrs,
    InPort::SfbPtrs,
    InPort::PaddedOffsets,
    InPort::Alpha,
    InPort::Prob,
    InPort::NormConst,
];

const GEMM_PORTS_OUT: &[OutPort] = &[
    OutPort::DRow,
    OutPort::DCol,
    OutPort::DSrelu,
    OutPort::DProb,
    OutPort::DBias,
    OutPort::Amax,
    OutPort::SfdRow,
    OutPort::SfdCol,
    OutPort::SfdColDSrelu,
    OutPort::Status,
];

pub(super) const FORWARD_INPUTS: &[InPort] = &[
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
pub(super) const BACKWARD_INPUTS: &[InPort] = &[
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

pub(super) const FORWARD_OUTPUTS: &[OutPort] = &[OutPort::O, OutPort::Stats, OutPort::Max, OutPort::SumExp, OutPort::RngDump];

pub(super) const BACKWARD_OUTPUTS: &[OutPort] =
    &[OutPort::DQ, OutPort::DK, OutPort::DV, OutPort::DBias, OutPort::RngDump, OutPort::DSink];

pub(super) const REORDERINGS: &[&str] = &["NONE", "INT8x32", "F16x16", "F8_128x4"];
pub(super) const ALIGNMENTS: &[&str] = &["TOP_LEFT", "BOTTOM_RIGHT"];
pub(super) const IMPLEMENTATIONS: &[&str] = &["AUTO", "COMPOSITE", "UNIFIED"];

/// Tags that cudnn-frontend 1.32 writes and that are not served, so that the error can tell a missing engine from a typing mistake.
pub(super) const UNSERVED_TAGS: &[&str] = &[
    "ADA_LAYER_NORM",
    "ADA_LAYER_NORM_BPROP",
    "BATCHNORM",
    "BATCHNORM_INFERENCE",
    "BLOCK_SCALE_DEQUANTIZE",
    "BLOCK_SCALE_QUANTIZE",
    "BN_FINALIZE",
    "CONCATENATE",
    "CONV_DGRAD",
    "CONV_FPROP",
    "CONV_WGRAD",
    "DBN",
    "DBN_WEIGHT",
    "GENSTATS",
    "INSTANCE_NORM",
    "INSTANCE_NORM_BPROP",
    "LAYER_NORM",
    "LAYER_NORM_BPROP",
    "MATMUL",
    "MATMUL_FP8",
    "MOE_GROUPED_MATMUL_BWD",
    "POINTWISE",
    "REDUCTION",
    "RESAMPLE",
    "RESHAPE",
    "RMS_NORM",
    "RMS_NORM_BPROP",
    "RNG",
    "ROPE",
    "ROPE_BWD",
    "SDPA_FP8_BWD",
    "SDPA_FP8_FWD",
    "SDPA_MXFP8_BWD",
    "SDPA_MXFP8_FWD",
    "SLICE",
    "TRANSPOSE",
];
