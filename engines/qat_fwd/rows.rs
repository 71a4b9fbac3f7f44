//! The rows of the NVFP4 QAT forward. Position is rank, id is identity.

use crate::caps::{HeadDims, KnobDomain, LayoutRule};
use crate::{Arch, Caps, DType, Feature as F, FeatureSet, Knob, Maturity, Row, SdpaCaps};

/// Every row.
pub static ROWS: &[Row] = &[SM120, CPU];

/// Quantised copies, the plain mma.sync forward on them, and a second walk for the quantised P.
const SM120: Row = Row {
    id: 20700,
    name: "nvfp4_qat_fwd_sm120",
    maturity: Maturity::OptIn,
    caps: Caps::Sdpa(SdpaCaps {
        arch: Arch::Sm { lo: 90, hi: 129 },
        dtypes: &[DType::BF16],
        head_dims: HeadDims { native: &[(64, 64), (128, 128)], pad_multiple: 16, dqk_ge_dv: false },
        layout: LayoutRule::DenseFlex,
        aligned_16: true,
        features: FeatureSet::of(&[
            F::SeqQTrim,
            F::Causal,
            F::RightBand,
            F::BottomRight,
            F::Window,
            F::Padding,
            F::Stats,
            F::StridedStats,
            F::Gqa,
            F::Decode,
            F::UnequalHeadDims,
        ]),
        thd_needs_totals: false,
    }),
    knobs: &[KnobDomain { knob: Knob::SchedPolicy, values: &[0, 1, 2] }],
    note: Some("One source for compute capability 9.0 to 12.x. Head dims are multiples of 16 up to 128. Bitwise reproducible."),
    sources: super::mma::SOURCES,
    extra: |row, facts, knobs, target| super::mma::lower(row, facts, knobs, target).err(),
    lower: |facts, knobs, target| super::mma::lower(&SM120, facts, knobs, target),
};

const CPU: Row = Row {
    id: 20750,
    name: "nvfp4_qat_fwd_cpu",
    maturity: Maturity::Default,
    caps: Caps::Sdpa(SdpaCaps {
        arch: Arch::Cpu,
        dtypes: &[DType::BF16],
        head_dims: crate::qat::ANY_HEAD_DIM,
        layout: LayoutRule::Any,
        aligned_16: false,
        features: FeatureSet::of(crate::qat::CPU_FEATURES).with(F::Stats),
        thd_needs_totals: false,
    }),
    knobs: &[],
    note: Some("Head dims are multiples of 16, the values of an NVFP4 block."),
    sources: &[],
    extra: |_, facts, knobs, target| super::cpu::lower(facts, knobs, target).err(),
    lower: super::cpu::lower,
};
