//! The rows of the grouped product with the dsReLU epilogue. Position is rank, id is identity.

use crate::caps::{GroupedGemmCaps, KnobDomain};
use crate::{Arch, Caps, DType, Feature as F, FeatureSet, Knob, Maturity, Row};

/// Every row.
pub static ROWS: &[Row] = &[SM90, MMA, SM120, CPU];

/// Types of A and B, of their scales, and values a scale: all that the operation knows.
const INPUTS: &[(DType, DType, i64)] = &[
    (DType::F8E4M3, DType::F8E8M0, 32),
    (DType::F8E5M2, DType::F8E8M0, 32),
    (DType::F4E2M1, DType::F8E4M3, 16),
    (DType::F4E2M1, DType::F8E8M0, 32),
    (DType::F4E2M1, DType::F8E8M0, 16),
];

/// Types of C and of D.
const RESULTS: &[DType] = &[DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2];

/// What every row serves.
const SHARED: FeatureSet = FeatureSet::of(&[
    F::Deterministic,
    F::DBias,
    F::OutputScales,
    F::DiscreteColSfd,
    F::Amax,
    F::TanhClamp,
    F::PreactivationC,
    F::PooledWeights,
    F::StatusWord,
]);

const SM90: Row = Row {
    id: 20900,
    name: "grouped_gemm_dsrelu_sm90",
    maturity: Maturity::Default,
    reproducible: false,
    caps: Caps::GroupedGemm(GroupedGemmCaps {
        // wgmma exists on 9.0 only.
        arch: Arch::Sm { lo: 90, hi: 90 },
        inputs: INPUTS,
        c: RESULTS,
        d: RESULTS,
        features: SHARED.union(FeatureSet::of(&[F::DSrelu, F::WeightAddresses, F::NMajorB])),
    }),
    // Cluster of one or two CTAs: tiles of 256 x 128 or 256 x 256.
    knobs: &[KnobDomain { knob: Knob::TileCgaM, values: &[1, 2] }],
    note: Some(
        "Multiplies in f16 what the block scales make of FP8 and FP4 values, normalised by row and by tile so that E8M0's range cannot overflow; \
         tiles whose scales span more than f16 represents exactly are multiplied in bf16. Rows of C and D must be multiples of 16 bytes, and so must addresses and pool offsets of weights.",
    ),
    sources: super::sm90::SOURCES,
    extra: |row, facts, knobs, target| super::sm90::extra(row, facts, knobs, target),
    lower: |facts, knobs, target| super::sm90::lower(&SM90, facts, knobs, target),
};

/// What the portable kernel serves beside its architectures.
const fn mma_caps(lo: u32, hi: u32) -> Caps {
    Caps::GroupedGemm(GroupedGemmCaps {
        arch: Arch::Sm { lo, hi },
        // All but FP4 with E8M0 per 16.
        inputs: INPUTS.split_at(4).0,
        c: RESULTS,
        d: RESULTS,
        features: SHARED.with(F::WeightAddresses),
    })
}

const MMA: Row = Row {
    id: 20908,
    name: "grouped_gemm_dsrelu_mma",
    maturity: Maturity::Default,
    reproducible: false,
    caps: mma_caps(90, 129),
    knobs: &[],
    note: Some(
        "mma.sync with what f16 makes of the FP8 and FP4 values: FP4's E4M3 scales are multiplied in, exactly; E8M0 scales multiply each block's sum in fp32. \
         Rows of C and D must be multiples of 16 bytes, and so must addresses and pool offsets of weights.",
    ),
    sources: super::mma::SOURCES,
    extra: |row, facts, _, target| super::mma::extra(row, facts, target),
    lower: |facts, _, target| super::mma::lower(&MMA, facts, target, false),
};

const SM120: Row = Row {
    id: 20920,
    name: "grouped_gemm_dsrelu_sm120",
    maturity: Maturity::OptIn,
    reproducible: false,
    // mma with block scales exists on 12.0 and 12.1 only.
    caps: mma_caps(120, 121),
    knobs: &[],
    note: Some(
        "The kernel of grouped_gemm_dsrelu_mma with the block scales applied by the matrix instruction of compute capability 12: compiled, never executed. \
         E4M3 scales must not be negative.",
    ),
    sources: super::mma::SOURCES,
    extra: |row, facts, _, target| super::mma::extra(row, facts, target),
    lower: |facts, _, target| super::mma::lower(&SM120, facts, target, true),
};

const CPU: Row = Row {
    id: 20950,
    name: "grouped_gemm_dsrelu_cpu",
    maturity: Maturity::Default,
    reproducible: true,
    caps: Caps::GroupedGemm(GroupedGemmCaps {
        arch: Arch::Cpu,
        inputs: INPUTS,
        c: RESULTS,
        d: RESULTS,
        features: SHARED.union(FeatureSet::of(&[F::DSrelu, F::NMajorB, F::F64Accumulate])),
    }),
    knobs: &[],
    note: Some(
        "Reads weights of its experts from one tensor or from a pool with offsets; raw addresses need a CUDA row. \
         Sums dprob and dbias in a fixed order, so it is deterministic whether asked or not.",
    ),
    sources: &[],
    extra: |_, facts, knobs, target| super::cpu::lower(facts, knobs, target).err(),
    lower: super::cpu::lower,
};
