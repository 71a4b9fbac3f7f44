//! The rows of the plain grouped product. Position is rank, id is identity.

use crate::caps::MoeCaps;
use crate::{Arch, Caps, DType, Feature as F, FeatureSet, Maturity, Row};

/// Every row.
pub static ROWS: &[Row] = &[CPU];

const CPU: Row = Row {
    id: 21050,
    name: "moe_grouped_matmul_cpu",
    maturity: Maturity::Default,
    caps: Caps::Moe(MoeCaps {
        arch: Arch::Cpu,
        inputs: &[
            (DType::BF16, None),
            (DType::F16, None),
            (DType::F32, None),
            (DType::F8E4M3, None),
            (DType::F8E5M2, None),
            (DType::F8E4M3, Some((DType::F8E8M0, 32))),
            (DType::F8E5M2, Some((DType::F8E8M0, 32))),
            (DType::F4E2M1, Some((DType::F8E4M3, 16))),
            (DType::F4E2M1, Some((DType::F8E8M0, 16))),
            (DType::F4E2M1, Some((DType::F8E8M0, 32))),
        ],
        output: &[DType::F32, DType::F16, DType::BF16],
        features: FeatureSet::of(&[F::NMajorB, F::F64Accumulate, F::StatusWord, F::GatherTokens, F::ScatterTokens]),
    }),
    knobs: &[],
    note: Some("Reads and writes operands by any strides; where two rows scatter to one place, the later one is kept."),
    sources: &[],
    extra: |_, facts, knobs, target| super::cpu::lower(facts, knobs, target).err(),
    lower: super::cpu::lower,
};
