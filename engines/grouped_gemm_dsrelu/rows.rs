//! The rows of the grouped product with the dsReLU epilogue. Position is rank, id is identity.

use crate::caps::GroupedGemmCaps;
use crate::{Arch, Caps, DType, Feature as F, FeatureSet, Maturity, Row};

/// Every row.
pub static ROWS: &[Row] = &[CPU];

const CPU: Row = Row {
    id: 20950,
    name: "grouped_gemm_dsrelu_cpu",
    maturity: Maturity::Default,
    caps: Caps::GroupedGemm(GroupedGemmCaps {
        arch: Arch::Cpu,
        inputs: &[
            (DType::F8E4M3, DType::F8E8M0, 32),
            (DType::F8E5M2, DType::F8E8M0, 32),
            (DType::F4E2M1, DType::F8E4M3, 16),
            (DType::F4E2M1, DType::F8E8M0, 16),
            (DType::F4E2M1, DType::F8E8M0, 32),
        ],
        c: &[DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2],
        d: &[DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2],
        features: FeatureSet::of(&[
            F::Deterministic,
            F::DBias,
            F::OutputScales,
            F::DiscreteColSfd,
            F::Amax,
            F::DSrelu,
            F::TanhClamp,
            F::PreactivationC,
            F::PooledWeights,
            F::NMajorB,
            F::F64Accumulate,
            F::StatusWord,
        ]),
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
