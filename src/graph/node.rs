//! Nodes: an operation with its operands.

use super::{GroupedGemmDsreluAttrs, InPort, MoeGroupedMatmulAttrs, OutPort, QatAttrs, SdpaAttrs, SdpaBackwardAttrs, TensorId};
use crate::DType;
use std::collections::BTreeMap;

/// What a node computes.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// `SDPA`: attention forward.
    Sdpa(SdpaAttrs),
    /// `SDPA_BWD`: attention backward.
    SdpaBackward(SdpaBackwardAttrs),
    /// `NVFP4_ATTENTION_QAT`: attention forward with NVFP4 fake quantisation.
    Nvfp4Qat(QatAttrs),
    /// `NVFP4_ATTENTION_QAT_BWD`: its backward.
    Nvfp4QatBackward(QatAttrs),
    /// `GROUPED_GEMM_DSRELU`: grouped block-scaled product with the dsReLU backward epilogue.
    GroupedGemmDsrelu(GroupedGemmDsreluAttrs),
    /// `MOE_GROUPED_MATMUL`: plain grouped product of a mixture of experts.
    MoeGroupedMatmul(MoeGroupedMatmulAttrs),
}

impl Op {
    /// JSON tag.
    pub fn tag(&self) -> &'static str {
        match self {
            Op::Sdpa(_) => "SDPA",
            Op::SdpaBackward(_) => "SDPA_BWD",
            Op::Nvfp4Qat(_) => "NVFP4_ATTENTION_QAT",
            Op::Nvfp4QatBackward(_) => "NVFP4_ATTENTION_QAT_BWD",
            Op::GroupedGemmDsrelu(_) => "GROUPED_GEMM_DSRELU",
            Op::MoeGroupedMatmul(_) => "MOE_GROUPED_MATMUL",
        }
    }

    /// The mask spelling; `None` where there are no scores to mask.
    pub fn mask(&self) -> Option<&super::Mask> {
        match self {
            Op::Sdpa(a) => Some(&a.mask),
            Op::SdpaBackward(a) => Some(&a.mask),
            Op::Nvfp4Qat(a) | Op::Nvfp4QatBackward(a) => Some(&a.mask),
            Op::GroupedGemmDsrelu(_) | Op::MoeGroupedMatmul(_) => None,
        }
    }

    /// Whether the node computes gradients.
    pub fn is_backward(&self) -> bool {
        match self {
            Op::Sdpa(_) | Op::Nvfp4Qat(_) | Op::MoeGroupedMatmul(_) => false,
            Op::SdpaBackward(_) | Op::Nvfp4QatBackward(_) | Op::GroupedGemmDsrelu(_) => true,
        }
    }
}

/// One operation of a graph.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Label; automatic output names are `<node>::<port>`.
    pub name: String,
    /// Operation with its attributes.
    pub op: Op,
    /// Operands read.
    pub inputs: BTreeMap<InPort, TensorId>,
    /// Operands written.
    pub outputs: BTreeMap<OutPort, TensorId>,
    /// Node-level compute type; `None` takes the graph's.
    pub compute_dtype: Option<DType>,
}
