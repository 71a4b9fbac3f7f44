//! The rows of the NVFP4 QAT forward. Position is rank, id is identity.

use super::chain::lower;
use super::{mma, sm90};
use crate::caps::{HeadDims, KnobDomain, LayoutRule};
use crate::{Arch, Caps, DType, Feature as F, FeatureSet, Knob, Maturity, Row, SdpaCaps};

/// Every row.
pub static ROWS: &[Row] = &[SM90, SM120, CPU];

/// What both CUDA rows serve, on these architectures.
const fn cuda(lo: u32, hi: u32) -> Caps {
    Caps::Sdpa(SdpaCaps {
        arch: Arch::Sm { lo, hi },
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
    })
}

const SCHED: &[KnobDomain] = &[KnobDomain { knob: Knob::SchedPolicy, values: &[0, 1, 2] }];

/// Id of the wgmma row.
pub const SM90_ID: u32 = 20717;

/// Quantised copies, the plain wgmma forward on them, and a second walk for the quantised P.
const SM90: Row = Row {
    id: SM90_ID,
    name: "nvfp4_qat_fwd_sm90",
    maturity: Maturity::Default,
    reproducible: true,
    caps: cuda(90, 90),
    knobs: SCHED,
    note: Some("Head dims are multiples of 16 up to 128. Bitwise reproducible."),
    sources: sm90::SOURCES,
    extra: |row, facts, knobs, target| lower(&sm90::WALKS, row, facts, knobs, target).err(),
    lower: |facts, knobs, target| lower(&sm90::WALKS, &SM90, facts, knobs, target),
};

/// As [`SM90`], by mma.sync.
const SM120: Row = Row {
    id: 20700,
    name: "nvfp4_qat_fwd_sm120",
    maturity: Maturity::Default,
    reproducible: true,
    caps: cuda(90, 129),
    knobs: SCHED,
    note: Some("One source for compute capability 9.0 to 12.x. Head dims are multiples of 16 up to 128. Bitwise reproducible."),
    sources: mma::SOURCES,
    extra: |row, facts, knobs, target| lower(&mma::WALKS, row, facts, knobs, target).err(),
    lower: |facts, knobs, target| lower(&mma::WALKS, &SM120, facts, knobs, target),
};

const CPU: Row = Row {
    id: 20750,
    name: "nvfp4_qat_fwd_cpu",
    maturity: Maturity::Default,
    reproducible: true,
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
