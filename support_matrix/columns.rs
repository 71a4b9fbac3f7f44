//! Columns of the matrix: which features belong to which group and to which direction.

use frostgraph_engines::sdpa::Direction;
use frostgraph_engines::{DType, Feature};

/// Element types with a column; all that some row of an attention family could serve today.
pub const DTYPES: &[DType] = &[DType::F32, DType::F16, DType::BF16];

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
        | Feature::BroadcastInput => Group::Feature,
    }
}

/// Whether a graph of this direction can use a feature at all.
pub fn applies(f: Feature, direction: Direction) -> bool {
    let forward = direction == Direction::Forward;
    match f {
        Feature::Deterministic | Feature::DBias | Feature::DSink => !forward,
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

/// Features of one group that apply to a direction, in matching order.
pub fn features(direction: Direction, g: Group) -> Vec<Feature> {
    Feature::ALL.iter().copied().filter(|f| applies(*f, direction) && group(*f) == g).collect()
}
