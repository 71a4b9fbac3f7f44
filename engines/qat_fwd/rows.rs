//! The rows of the NVFP4 QAT forward. Position is rank, id is identity.

use crate::caps::LayoutRule;
use crate::{Arch, Caps, DType, Feature as F, FeatureSet, Maturity, Row, SdpaCaps};

/// Every row.
pub static ROWS: &[Row] = &[CPU];

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
