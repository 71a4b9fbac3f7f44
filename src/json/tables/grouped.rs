//! Keys and ports of the grouped products, and of the dequantisation in front of one.

use super::{key, Key, Kind};
use crate::graph::{InPort, OutPort};

pub(super) const BLOCK_SCALE_DEQUANTIZE: &[Key] = &[
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

pub(super) const MOE_GROUPED_MATMUL: &[Key] = &[
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

const MOE_MODES: &[&str] = &["NONE", "GATHER", "SCATTER"];

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

const B_MAJORS: &[&str] = &["K", "N"];

const FORMULAS: &[&str] = &["PREACTIVATION_G", "PREACTIVATION_C"];

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
