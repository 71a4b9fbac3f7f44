//! The rows of the plain grouped product. Position is rank, id is identity.

use crate::caps::MoeCaps;
use crate::{Arch, Caps, DType, Feature as F, FeatureSet, Maturity, Row};

/// Every row.
pub static ROWS: &[Row] = &[SM90, CPU];

/// Types of token and weight, with those of their scales and the values a scale: all that the operation knows.
const INPUTS: &[(DType, Option<(DType, i64)>)] = &[
    (DType::F32, None),
    (DType::BF16, None),
    (DType::F16, None),
    (DType::F8E4M3, None),
    (DType::F8E5M2, None),
    (DType::F8E4M3, Some((DType::F8E8M0, 32))),
    (DType::F8E5M2, Some((DType::F8E8M0, 32))),
    (DType::F4E2M1, Some((DType::F8E4M3, 16))),
    (DType::F4E2M1, Some((DType::F8E8M0, 16))),
    (DType::F4E2M1, Some((DType::F8E8M0, 32))),
];

const OUTPUTS: &[DType] = &[DType::F32, DType::F16, DType::BF16];

/// What every row serves.
const SHARED: FeatureSet = FeatureSet::of(&[F::NMajorB, F::StatusWord, F::GatherTokens, F::ScatterTokens]);

const SM90: Row = Row {
    id: 21000,
    name: "moe_grouped_matmul_sm90",
    maturity: Maturity::Default,
    reproducible: true,
    caps: Caps::Moe(MoeCaps {
        // wgmma exists on 9.0 only.
        arch: Arch::Sm { lo: 90, hi: 90 },
        // All but f32.
        inputs: INPUTS.split_at(1).1,
        output: OUTPUTS,
        features: SHARED,
    }),
    knobs: &[],
    note: Some(
        "Multiplies 16-bit operands as they lie, in tiles of 128 rows by 256 columns; groups may end anywhere. K, N and row strides must be multiples \
         of 8. FP8 and FP4 operands are turned into bf16 in the workspace first (k contiguous), which is exact for E8M0 scales from 2^-117 to 2^112: \
         values beyond bf16's range become 0 or infinite.",
    ),
    sources: super::sm90::SOURCES,
    extra: |row, facts, knobs, target| super::sm90::extra(row, facts, knobs, target),
    lower: |facts, knobs, target| super::sm90::lower(&SM90, facts, knobs, target),
};

const CPU: Row = Row {
    id: 21050,
    name: "moe_grouped_matmul_cpu",
    maturity: Maturity::Default,
    reproducible: true,
    caps: Caps::Moe(MoeCaps { arch: Arch::Cpu, inputs: INPUTS, output: OUTPUTS, features: SHARED.with(F::F64Accumulate) }),
    knobs: &[],
    note: Some("Reads and writes operands by any strides; where two rows scatter to one place, the later one is kept."),
    sources: &[],
    extra: |_, facts, knobs, target| super::cpu::lower(facts, knobs, target).err(),
    lower: super::cpu::lower,
};
