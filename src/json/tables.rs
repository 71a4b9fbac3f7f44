//! Which keys the format has and what they hold: the one source of the reader's checks and of the JSON Schema.

mod attention;
mod grouped;

use crate::graph::{InPort, OutPort};
use attention::{BACKWARD, FORWARD, QAT_BACKWARD, QAT_FORWARD};
use grouped::{BLOCK_SCALE_DEQUANTIZE, GROUPED_GEMM_DSRELU, MOE_GROUPED_MATMUL};

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

pub(super) const REORDERINGS: &[&str] = &["NONE", "INT8x32", "F16x16", "F8_128x4"];

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
