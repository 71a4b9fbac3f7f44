//! The forward rows. Position is rank, id is identity.

use crate::caps::{HeadDims, KnobDomain, LayoutRule};
use crate::{Arch, Caps, DType, Feature as F, FeatureSet, Knob, Maturity, Row, SdpaCaps};

/// Every forward row. Decode leads where it serves: it splits the keys and reads them once a group.
/// The wgmma row comes before the portable one: it is faster but for tiny problems at d 64, where the heuristics change their places.
pub static ROWS: &[Row] = &[DECODE, PREFILL_SM90, PREFILL, CPU];

/// What every CUDA row serves.
const SHARED: FeatureSet = FeatureSet::of(&[
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
    F::StridedStats,
    F::Gqa,
    F::Decode,
    F::UnequalHeadDims,
]);

/// Capabilities of an mma.sync row. Nothing in the kernels needs more than compute capability 8.0 has.
const fn mma(features: FeatureSet) -> Caps {
    Caps::Sdpa(SdpaCaps {
        arch: Arch::Sm { lo: 80, hi: 129 },
        dtypes: &[DType::F16, DType::BF16],
        head_dims: super::config::HEAD_DIMS,
        layout: LayoutRule::DenseFlex,
        aligned_16: true,
        features,
        thd_needs_totals: false,
    })
}

/// Few query tokens against many keys: split keys, packed heads, paged K and V.
const DECODE: Row = Row {
    id: 20551,
    name: "sdpa_fwd_decode_sm80",
    maturity: Maturity::Default,
    reproducible: true,
    caps: mma(SHARED.union(FeatureSet::of(&[F::PagedKv]))),
    knobs: &[KnobDomain { knob: Knob::SplitKv, values: &[1, 2, 4, 8, 16, 32, 64, 128, 256] }],
    note: Some(
        "Up to 16 query tokens and 128 rows a key head (tokens times the heads of its group). Both of K and V paged or neither, with key \
         lengths. Lengths have one form on both sides.",
    ),
    sources: super::decode::SOURCES,
    extra: super::rules::decode_extra,
    lower: |facts, knobs, target| super::decode::lower(&DECODE, facts, knobs, target),
};

/// Any number of query tokens, one launch.
const PREFILL: Row = Row {
    id: 20508,
    name: "sdpa_fwd_prefill_sm80",
    maturity: Maturity::Default,
    reproducible: true,
    caps: mma(SHARED.union(FeatureSet::of(&[F::Bias, F::BroadcastBias, F::ScoreMax, F::ScoreSumExp, F::Thd]))),
    knobs: &[
        KnobDomain { knob: Knob::TileM, values: &[64, 128] },
        KnobDomain { knob: Knob::TileN, values: &[64, 128] },
        KnobDomain { knob: Knob::SchedPolicy, values: &[0, 1, 2] },
        KnobDomain { knob: Knob::PackGqa, values: &[0, 1] },
    ],
    note: Some(
        "Packed operands: no bias, one width of ragged offsets, lengths on both sides, and sequences that begin at multiples of 16 bytes. \
         Lengths have one form on both sides.",
    ),
    sources: super::prefill::SOURCES,
    extra: super::rules::prefill_extra,
    lower: |facts, knobs, target| super::prefill::lower(&PREFILL, facts, knobs, target),
};

/// Id of the wgmma row.
pub const PREFILL_SM90_ID: u32 = 20517;

/// Prefill on Hopper's own matrix instructions.
const PREFILL_SM90: Row = Row {
    id: PREFILL_SM90_ID,
    name: "sdpa_fwd_prefill_sm90",
    maturity: Maturity::Default,
    reproducible: true,
    caps: Caps::Sdpa(SdpaCaps {
        arch: Arch::Sm { lo: 90, hi: 90 },
        dtypes: &[DType::F16, DType::BF16],
        head_dims: super::prefill_sm90::HEAD_DIMS,
        layout: LayoutRule::DenseFlex,
        aligned_16: true,
        features: SHARED.union(FeatureSet::of(&[
            F::Bias,
            F::BroadcastBias,
            F::ScoreMax,
            F::ScoreSumExp,
            F::DynamicScale,
            F::Thd,
        ])),
        thd_needs_totals: false,
    }),
    knobs: &[
        KnobDomain { knob: Knob::TileM, values: &[64, 128, 192] },
        KnobDomain { knob: Knob::SchedPolicy, values: &[0, 1, 2] },
        KnobDomain { knob: Knob::PackGqa, values: &[0, 1] },
    ],
    note: Some(
        "Packed operands: no bias, one width of ragged offsets, lengths on both sides, and sequences that begin at whole tokens of each \
         operand. Lengths have one form on both sides. A scale tensor is f32.",
    ),
    sources: super::prefill_sm90::SOURCES,
    extra: super::rules::prefill_sm90_extra,
    lower: |facts, knobs, target| super::prefill_sm90::lower(&PREFILL_SM90, facts, knobs, target),
};

const CPU: Row = Row {
    id: 20550,
    name: "sdpa_fwd_cpu",
    maturity: Maturity::Default,
    reproducible: true,
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
