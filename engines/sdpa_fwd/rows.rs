//! The forward rows. Position is rank, id is identity.

use crate::caps::{HeadDims, LayoutRule};
use crate::{Arch, Caps, DType, Feature as F, FeatureSet, Maturity, Row, SdpaCaps};

/// Every forward row.
pub static ROWS: &[Row] = &[CPU];

const CPU: Row = Row {
    id: 20550,
    name: "sdpa_fwd_cpu",
    maturity: Maturity::Default,
    caps: Caps::Sdpa(SdpaCaps {
        arch: Arch::Cpu,
        dtypes: &[DType::F32, DType::F16, DType::BF16],
        head_dims: HeadDims { native: &[], pad_multiple: 0, dqk_ge_dv: false },
        layout: LayoutRule::Any,
        aligned_16: false,
        features: FeatureSet::of(&[
            F::Bias,
            F::BroadcastBias,
            F::PagedKv,
            F::ScoreMax,
            F::ScoreSumExp,
            F::DynamicScale,
            F::ZeroScale,
            F::StatsLog2,
            F::SeqQTrim,
            F::Causal,
            F::RightBand,
            F::BottomRight,
            F::Window,
            F::Padding,
            F::CuSeqLen,
            F::Sink,
            F::Stats,
            F::Thd,
            F::StridedStats,
            F::Gqa,
            F::Decode,
            F::UnequalHeadDims,
            F::StridedHeadDim,
            F::BroadcastInput,
        ]),
        thd_needs_totals: false,
    }),
    knobs: &[],
    note: None,
    sources: &[],
    extra: |_, facts, knobs, target| super::cpu::lower(facts, knobs, target).err(),
    lower: super::cpu::lower,
};
