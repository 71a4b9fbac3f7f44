//! The backward rows. Position is rank, id is identity.

use crate::caps::{HeadDims, KnobDomain, LayoutRule};
use crate::{Arch, Caps, DType, Feature as F, FeatureSet, Knob, Maturity, Row, SdpaCaps};

/// Every backward row.
pub static ROWS: &[Row] = &[SM90, SM120, CPU];

const fn square(d: i64) -> (i64, i64) {
    (d, d)
}

/// What both CUDA chains serve beside the plain backward.
const CUDA_FEATURES: FeatureSet = FeatureSet::of(&[
    F::Deterministic,
    F::DBias,
    F::DSink,
    F::Bias,
    F::BroadcastBias,
    F::Causal,
    F::RightBand,
    F::BottomRight,
    F::Window,
    F::Padding,
    F::Sink,
    F::Thd,
    F::StridedStats,
    F::Gqa,
    F::Decode,
    F::UnequalHeadDims,
]);

/// Five-GEMM mma.sync chain for 99 KB of shared memory; nothing in it needs more than compute capability 9.0 has.
const SM120: Row = Row {
    id: 20600,
    name: "sdpa_bwd_sm120",
    maturity: Maturity::Default,
    reproducible: false,
    caps: Caps::Sdpa(SdpaCaps {
        arch: Arch::Sm { lo: 90, hi: 129 },
        dtypes: &[DType::F16, DType::BF16],
        head_dims: HeadDims {
            native: &[square(32), square(64), square(128), (192, 128), square(192), square(256)],
            pad_multiple: 8,
            dqk_ge_dv: true,
        },
        layout: LayoutRule::DenseFlex,
        aligned_16: true,
        features: CUDA_FEATURES,
        thd_needs_totals: false,
    }),
    knobs: &[KnobDomain { knob: Knob::TileM, values: &[32, 64, 128] }, KnobDomain { knob: Knob::TileN, values: &[64, 128] }],
    note: Some(
        "One source for compute capability 9.0 to 12.x. Deterministic dBias of a batch-broadcast bias sums one plane a batch in a second pass. \
         Packed operands: no bias, one width of ragged offsets, and every sequence ends at or before max_total_seq_len (B·S where undeclared).",
    ),
    sources: super::lower::SOURCES,
    extra: super::rules::extra,
    lower: |facts, knobs, target| super::lower::lower(&SM120, facts, knobs, target),
};

/// Name of the wgmma row.
pub const SM90_NAME: &str = "sdpa_bwd_sm90";

/// The same chain on wgmma: Hopper alone has it.
const SM90: Row = Row {
    id: 20617,
    name: SM90_NAME,
    maturity: Maturity::Default,
    reproducible: false,
    caps: Caps::Sdpa(SdpaCaps {
        arch: Arch::Sm { lo: 90, hi: 90 },
        dtypes: &[DType::F16, DType::BF16],
        head_dims: HeadDims { native: &[square(64), square(128), (192, 128), square(192), square(256)], pad_multiple: 8, dqk_ge_dv: true },
        layout: LayoutRule::DenseFlex,
        aligned_16: true,
        features: CUDA_FEATURES,
        thd_needs_totals: false,
    }),
    knobs: &[],
    note: Some(
        "wgmma; dQ of a deterministic graph is added in key-tile order, with a workspace linear in tokens. Deterministic dBias of a \
         batch-broadcast bias sums one plane a batch in a second pass. Packed operands: no bias, one width of ragged offsets, and every \
         sequence ends at or before max_total_seq_len (B·S where undeclared).",
    ),
    sources: super::sm90::SOURCES,
    extra: super::sm90::extra,
    lower: |facts, knobs, target| super::sm90::lower(&SM90, facts, knobs, target),
};

const CPU: Row = Row {
    id: 20650,
    name: "sdpa_bwd_cpu",
    maturity: Maturity::Default,
    reproducible: true,
    caps: Caps::Sdpa(SdpaCaps {
        arch: Arch::Cpu,
        dtypes: &[DType::F32, DType::F16, DType::BF16],
        head_dims: HeadDims { native: &[], pad_multiple: 0, dqk_ge_dv: false },
        layout: LayoutRule::Any,
        aligned_16: false,
        features: FeatureSet::of(&[
            F::Deterministic,
            F::DBias,
            F::DSink,
            F::Bias,
            F::BroadcastBias,
            F::DynamicScale,
            F::ZeroScale,
            F::SeqQTrim,
            F::Causal,
            F::RightBand,
            F::BottomRight,
            F::Window,
            F::Padding,
            F::CuSeqLen,
            F::Sink,
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
