//! The forward rows. Position is rank, id is identity.

use crate::caps::{no_extra_rule, HeadDims, LayoutRule};
use crate::{
    Arch, Caps, DType, Decline, DeclineCode, Facts, Feature as F, FeatureSet, Knobs, LaunchPlan, Maturity, Row, SdpaCaps, Target,
};

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
            F::ZeroScale,
            F::StatsLog2,
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
    extra: no_extra_rule,
    lower: not_linked,
};

fn not_linked(_: &Facts, _: &Knobs, _: &Target) -> Result<LaunchPlan, Decline> {
    Err(CPU.decline(DeclineCode::Resources, "engine=absent", "the CPU engine is not linked in"))
}
