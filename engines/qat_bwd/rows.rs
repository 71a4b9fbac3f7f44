//! The rows of the NVFP4 QAT backward. Position is rank, id is identity.

use crate::caps::{HeadDims, KnobDomain, LayoutRule};
use crate::{Arch, Caps, DType, Feature as F, FeatureSet, Knob, Maturity, Row, SdpaCaps};

/// Every row.
pub static ROWS: &[Row] = &[SM90, SM120, CPU];

/// What both CUDA rows serve, on these architectures.
const fn cuda(lo: u32, hi: u32) -> Caps {
    Caps::Sdpa(SdpaCaps {
        arch: Arch::Sm { lo, hi },
        dtypes: &[DType::BF16],
        head_dims: HeadDims { native: &[(64, 64), (128, 128)], pad_multiple: 0, dqk_ge_dv: false },
        layout: LayoutRule::DenseFlex,
        aligned_16: true,
        features: FeatureSet::of(&[
            F::Deterministic,
            F::Causal,
            F::RightBand,
            F::BottomRight,
            F::Window,
            F::Padding,
            F::StridedStats,
            F::Gqa,
            F::Decode,
        ]),
        thd_needs_totals: false,
    })
}

/// The wgmma main kernel of the SDPA backward, behind a kernel that quantises its inputs.
const SM90: Row = Row {
    id: 20817,
    name: "nvfp4_qat_bwd_sm90",
    maturity: Maturity::Default,
    reproducible: false,
    caps: cuda(90, 90),
    knobs: &[],
    note: Some("wgmma; dQ of a deterministic graph is added in key-tile order."),
    sources: super::sm90::SOURCES,
    extra: super::sm90::extra,
    lower: |facts, knobs, target| super::sm90::lower(&SM90, facts, knobs, target),
};

/// As [`SM90`], by mma.sync.
const SM120: Row = Row {
    id: 20800,
    name: "nvfp4_qat_bwd_sm120",
    maturity: Maturity::Default,
    reproducible: false,
    caps: cuda(90, 129),
    knobs: &[KnobDomain { knob: Knob::TileM, values: &[64, 128] }, KnobDomain { knob: Knob::TileN, values: &[64, 128] }],
    note: Some(
        "Exact NVFP4 arithmetic without the conversion instruction that only compute capability 10 and later has. Tiles are those of the \
         two configurations a head dim has.",
    ),
    sources: super::lower::SOURCES,
    extra: super::lower::extra,
    lower: |facts, knobs, target| super::lower::lower(&SM120, facts, knobs, target),
};

const CPU: Row = Row {
    id: 20850,
    name: "nvfp4_qat_bwd_cpu",
    maturity: Maturity::Default,
    reproducible: true,
    caps: Caps::Sdpa(SdpaCaps {
        arch: Arch::Cpu,
        dtypes: &[DType::BF16],
        head_dims: crate::qat::ANY_HEAD_DIM,
        layout: LayoutRule::Any,
        aligned_16: false,
        features: FeatureSet::of(crate::qat::CPU_FEATURES).with(F::Deterministic),
        thd_needs_totals: false,
    }),
    knobs: &[],
    note: Some("Head dims are multiples of 16, the values of an NVFP4 block."),
    sources: &[],
    extra: |_, facts, knobs, target| crate::sdpa_bwd::cpu::lower(facts, knobs, target).err(),
    lower: crate::sdpa_bwd::cpu::lower,
};
