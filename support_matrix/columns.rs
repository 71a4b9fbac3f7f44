//! Columns of the matrix: which features belong to which group and to which direction.

use frostgraph_engines::sdpa::Direction;
use frostgraph_engines::{DType, Feature};

/// Element types with a column; all that some row of an attention family could serve today.
pub const DTYPES: &[DType] = &[DType::F32, DType::F16, DType::BF16];

/// Inputs of the grouped product with a column: element type of A and B, element type of the scales, values a scale.
pub const GEMM_INPUTS: &[(DType, DType, i64)] = &[
    (DType::F8E4M3, DType::F8E8M0, 32),
    (DType::F8E5M2, DType::F8E8M0, 32),
    (DType::F4E2M1, DType::F8E4M3, 16),
    (DType::F4E2M1, DType::F8E8M0, 16),
    (DType::F4E2M1, DType::F8E8M0, 32),
];

/// Element types of C and D of the grouped product with a column.
pub const GEMM_DTYPES: &[DType] = &[DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2];

/// Inputs of the plain grouped product with a column: element type, and of block-scaled ones type of the scales and values a scale.
pub const MOE_INPUTS: &[(DType, Option<(DType, i64)>)] = &[
    (DType::F32, None),
    (DType::F16, None),
    (DType::BF16, None),
    (DType::F8E4M3, None),
    (DType::F8E5M2, None),
    (DType::F8E4M3, Some((DType::F8E8M0, 32))),
    (DType::F8E5M2, Some((DType::F8E8M0, 32))),
    (DType::F4E2M1, Some((DType::F8E4M3, 16))),
    (DType::F4E2M1, Some((DType::F8E8M0, 16))),
    (DType::F4E2M1, Some((DType::F8E8M0, 32))),
];

/// What the nodes of a family compute: it decides about the columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Attention.
    Attention(Direction),
    /// Grouped matrix product.
    GroupedGemm,
    /// Plain grouped matrix product; its output has the columns of [`DTYPES`].
    Moe,
}

/// Memory layouts with a column, from the strictest.
pub const LAYOUTS: &[&str] = &["B,S,H,D", "any B,H,S order", "any strides"];

/// How a column is grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Which scores count.
    Mask,
    /// Everything else.
    Feature,
}

/// The group of a feature.
pub fn group(f: Feature) -> Group {
    match f {
        Feature::Causal
        | Feature::RightBand
        | Feature::BottomRight
        | Feature::Window
        | Feature::Padding
        | Feature::CuSeqLen
        | Feature::SeqQTrim
        | Feature::KvMask
        | Feature::BlockMask
        | Feature::Alibi => Group::Mask,
        Feature::Deterministic
        | Feature::DBias
        | Feature::DSink
        | Feature::Bias
        | Feature::BroadcastBias
        | Feature::Dropout
        | Feature::ScoreMod
        | Feature::PagedKv
        | Feature::RngDump
        | Feature::ScoreMax
        | Feature::ScoreSumExp
        | Feature::DynamicScale
        | Feature::ZeroScale
        | Feature::PrefoldedScale
        | Feature::SoftmaxPrecision
        | Feature::UnfuseFma
        | Feature::StatsLog2
        | Feature::Sink
        | Feature::Stats
        | Feature::Thd
        | Feature::ThdPaddedStats
        | Feature::StridedStats
        | Feature::Gqa
        | Feature::Decode
        | Feature::UnequalHeadDims
        | Feature::StridedHeadDim
        | Feature::BroadcastInput
        | Feature::OutputScales
        | Feature::DiscreteColSfd
        | Feature::Amax
        | Feature::DSrelu
        | Feature::TanhClamp
        | Feature::PreactivationC
        | Feature::PooledWeights
        | Feature::WeightAddresses
        | Feature::NMajorB
        | Feature::F64Accumulate
        | Feature::StatusWord
        | Feature::GatherTokens
        | Feature::ScatterTokens => Group::Feature,
    }
}

/// Whether an attention graph of this direction can use a feature at all.
pub fn applies(f: Feature, direction: Direction) -> bool {
    let forward = direction == Direction::Forward;
    match f {
        Feature::Deterministic | Feature::DBias | Feature::DSink => !forward,
        Feature::OutputScales
        | Feature::DiscreteColSfd
        | Feature::Amax
        | Feature::DSrelu
        | Feature::TanhClamp
        | Feature::PreactivationC
        | Feature::PooledWeights
        | Feature::WeightAddresses
        | Feature::NMajorB
        | Feature::F64Accumulate
        | Feature::StatusWord
        | Feature::GatherTokens
        | Feature::ScatterTokens => false,
        Feature::PagedKv
        | Feature::BlockMask
        | Feature::KvMask
        | Feature::ScoreMax
        | Feature::ScoreSumExp
        | Feature::PrefoldedScale
        | Feature::SoftmaxPrecision
        | Feature::UnfuseFma
        | Feature::StatsLog2
        | Feature::CuSeqLen
        | Feature::Stats => forward,
        Feature::Bias
        | Feature::BroadcastBias
        | Feature::Dropout
        | Feature::ScoreMod
        | Feature::Alibi
        | Feature::RngDump
        | Feature::DynamicScale
        | Feature::ZeroScale
        | Feature::SeqQTrim
        | Feature::Causal
        | Feature::RightBand
        | Feature::BottomRight
        | Feature::Window
        | Feature::Padding
        | Feature::Sink
        | Feature::Thd
        | Feature::ThdPaddedStats
        | Feature::StridedStats
        | Feature::Gqa
        | Feature::Decode
        | Feature::UnequalHeadDims
        | Feature::StridedHeadDim
        | Feature::BroadcastInput => true,
    }
}

/// Whether a grouped product can use a feature.
fn gemm_feature(f: Feature) -> bool {
    let attention = applies(f, Direction::Forward) || applies(f, Direction::Backward);
    let plain = matches!(f, Feature::GatherTokens | Feature::ScatterTokens);
    !attention && !plain || matches!(f, Feature::Deterministic | Feature::DBias)
}

/// Whether a plain grouped product can use a feature.
fn moe_feature(f: Feature) -> bool {
    matches!(f, Feature::NMajorB | Feature::F64Accumulate | Feature::StatusWord | Feature::GatherTokens | Feature::ScatterTokens)
}

/// Features of one group that apply to an operation, in matching order.
pub fn features(operation: Operation, g: Group) -> Vec<Feature> {
    let applies = |f: Feature| match operation {
        Operation::Attention(direction) => applies(f, direction),
        Operation::GroupedGemm => gemm_feature(f),
        Operation::Moe => moe_feature(f),
    };
    Feature::ALL.iter().copied().filter(|f| applies(*f) && group(*f) == g).collect()
}
