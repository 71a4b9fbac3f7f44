//! Capability rows, heuristics, lowering and CPU engines of frostgraph.
//!
//! No CUDA, no IO, no unsafe code. Data flows one way: the analyzer of the root crate fills [`Facts`]; a family's
//! rows are matched against them; the family's heuristics rank `(row, knobs)`; the chosen row lowers to a [`LaunchPlan`].
//! [`MANIFEST`] is the only list of engines; the support matrix, `explain`, tests and sweeps are functions of it.
#![forbid(unsafe_code)]

pub mod caps;
pub mod codec;
pub mod decline;
pub mod features;
pub mod grouped_gemm;
pub mod grouped_gemm_dsrelu;
pub mod host;
pub mod ids;
pub mod knobs;
pub mod launch;
pub mod launch_text;
pub mod moe_grouped_matmul;
pub mod qat;
pub mod qat_bwd;
pub mod qat_fwd;
pub mod sdpa;
pub mod sdpa_bwd;
pub mod sdpa_fwd;
pub mod target;
pub mod types;

pub use caps::{Arch, Caps, Family, GroupedGemmCaps, Maturity, Mode, MoeCaps, Row, SdpaCaps};
pub use decline::{Decline, DeclineCode};
pub use features::{Feature, FeatureSet};
pub use grouped_gemm::GroupedGemmFacts;
pub use host::{HostBuffers, HostError};
pub use ids::{family_of, row_by_id, row_by_name, MANIFEST, RETIRED};
pub use knobs::{Knob, Knobs, PublicValue};
pub use launch::{Arg, Base, HostCall, KernelSpec, Launch, LaunchPlan, Region, Step, TensorMapSpec};
pub use moe_grouped_matmul::MoeFacts;
pub use sdpa::SdpaFacts;
pub use target::Target;
pub use types::{DType, Port, Ragged, Uid};

/// What a graph node asks for, one variant per kind of operation. Facts never judge.
#[derive(Debug, Clone, PartialEq)]
pub enum Facts {
    /// Scaled dot-product attention, forward or backward, in half or single precision.
    Sdpa(Box<SdpaFacts>),
    /// Grouped block-scaled matrix product with the dsReLU backward epilogue.
    GroupedGemm(Box<GroupedGemmFacts>),
    /// Plain grouped matrix product of a mixture of experts.
    Moe(Box<MoeFacts>),
}

impl Facts {
    /// Everything beyond geometry and types that the node uses.
    pub fn features(&self) -> FeatureSet {
        match self {
            Facts::Sdpa(f) => f.features,
            Facts::GroupedGemm(f) => f.features,
            Facts::Moe(f) => f.features,
        }
    }

    /// Facts of an attention node.
    ///
    /// # Panics
    /// For another operation: a family's lowering and engines see only facts that the family serves and that its matcher accepted.
    pub fn expect_sdpa(&self) -> &SdpaFacts {
        match self {
            Facts::Sdpa(f) => f,
            Facts::GroupedGemm(_) | Facts::Moe(_) => panic!("facts of a grouped product in an attention engine"),
        }
    }

    /// Facts of a grouped matrix product.
    ///
    /// # Panics
    /// For another operation, as [`Facts::expect_sdpa`].
    pub fn expect_grouped_gemm(&self) -> &GroupedGemmFacts {
        match self {
            Facts::GroupedGemm(f) => f,
            Facts::Sdpa(_) | Facts::Moe(_) => panic!("facts of another operation in an engine of the grouped product"),
        }
    }

    /// Facts of a plain grouped product.
    ///
    /// # Panics
    /// For another operation, as [`Facts::expect_sdpa`].
    pub fn expect_moe(&self) -> &MoeFacts {
        match self {
            Facts::Moe(f) => f,
            Facts::Sdpa(_) | Facts::GroupedGemm(_) => {
                panic!("facts of another operation in an engine of the plain grouped product")
            }
        }
    }
}
