//! Rows and families: what each engine serves, as data.

use crate::{DType, Decline, DeclineCode, Facts, FeatureSet, Knob, Knobs, LaunchPlan, Target};

/// Architectures a row runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arch {
    /// The host.
    Cpu,
    /// CUDA compute capabilities, inclusive, major·10 + minor.
    Sm {
        /// Lowest.
        lo: u32,
        /// Highest.
        hi: u32,
    },
}

/// Whether a row is offered without being asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Maturity {
    /// Offered always.
    Default,
    /// Offered when `FROSTGRAPH_ENABLE_FROST_ENGINES` is on.
    OptIn,
}

/// Heuristic modes (facts §4.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Best-first.
    A,
    /// As A; kept apart because callers name it.
    B,
    /// One conservative plan a row.
    Fallback,
    /// As A without delegating entries.
    OpenSource,
}

/// Memory layouts a row accepts for its four-dimensional operands (facts §3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayoutRule {
    /// Any strides, zero (broadcast) strides of inputs included.
    Any,
    /// Any order of B, H, S with unit head-dim stride and no overlap.
    DenseFlex,
    /// Batch, sequence, head, dim order only.
    Bshd,
}

/// Head dimensions a row serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadDims {
    /// Native flavours `(d_qk, d_v)`; empty means any.
    pub native: &'static [(i64, i64)],
    /// A multiple above 0 opens the envelope: any `(d_qk, d_v)` of that multiple below a native flavour runs on it, zero-padded.
    pub pad_multiple: i64,
    /// Whether `d_qk >= d_v` is required.
    pub dqk_ge_dv: bool,
}

/// What one attention row serves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SdpaCaps {
    /// Architectures.
    pub arch: Arch,
    /// Element types of Q, K, V and O.
    pub dtypes: &'static [DType],
    /// Head dims.
    pub head_dims: HeadDims,
    /// Layouts.
    pub layout: LayoutRule,
    /// Base and strides must be multiples of 16 bytes (the TMA rule, by the operand's own element width).
    pub aligned_16: bool,
    /// Features served, masks included.
    pub features: FeatureSet,
    /// THD needs `max_total_seq_len_*` declared.
    pub thd_needs_totals: bool,
}

/// What one row of the grouped matrix product serves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupedGemmCaps {
    /// Architectures.
    pub arch: Arch,
    /// Element type of A and B, element type of the scales, values a scale.
    pub inputs: &'static [(DType, DType, i64)],
    /// Element types of C.
    pub c: &'static [DType],
    /// Element types of D_row, D_col and D_srelu.
    pub d: &'static [DType],
    /// Features served.
    pub features: FeatureSet,
}

/// What one row of the plain grouped product serves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MoeCaps {
    /// Architectures.
    pub arch: Arch,
    /// Element type of token and weight; element type of their scales and values a scale where they are block-scaled.
    pub inputs: &'static [(DType, Option<(DType, i64)>)],
    /// Element types of the output.
    pub output: &'static [DType],
    /// Features served.
    pub features: FeatureSet,
}

/// Capabilities by kind of operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Caps {
    /// Attention.
    Sdpa(SdpaCaps),
    /// Grouped matrix product.
    GroupedGemm(GroupedGemmCaps),
    /// Plain grouped matrix product.
    Moe(MoeCaps),
}

impl Caps {
    /// Architectures.
    pub const fn arch(&self) -> Arch {
        match self {
            Caps::Sdpa(c) => c.arch,
            Caps::GroupedGemm(c) => c.arch,
            Caps::Moe(c) => c.arch,
        }
    }

    /// Features served.
    pub const fn features(&self) -> FeatureSet {
        match self {
            Caps::Sdpa(c) => c.features,
            Caps::GroupedGemm(c) => c.features,
            Caps::Moe(c) => c.features,
        }
    }

    /// Capabilities of an attention row; `None` for other operations.
    pub const fn sdpa(&self) -> Option<&SdpaCaps> {
        match self {
            Caps::Sdpa(c) => Some(c),
            Caps::GroupedGemm(_) | Caps::Moe(_) => None,
        }
    }
}

impl Arch {
    /// Whether plans for this device may use the row.
    pub fn serves(self, target: &Target) -> bool {
        match (self, target) {
            (Arch::Cpu, Target::Cpu) => true,
            (Arch::Sm { lo, hi }, Target::Cuda { cc, .. }) => (lo..=hi).contains(cc),
            (Arch::Cpu, Target::Cuda { .. }) | (Arch::Sm { .. }, Target::Cpu) => false,
        }
    }

    /// The decline of a row that the device is outside of.
    pub fn mismatch(self, row: &Row, target: &Target) -> Option<Decline> {
        (!self.serves(target)).then(|| {
            let serves = match self {
                Arch::Cpu => "the host CPU".to_string(),
                Arch::Sm { lo, hi } => format!("compute capability {lo} to {hi}"),
            };
            row.decline(
                DeclineCode::Arch,
                format!("device={}", target.name()),
                format!("the device is {}; this row serves {serves}", target.name()),
            )
        })
    }
}

/// A knob axis of a row with its allowed values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnobDomain {
    /// Axis.
    pub knob: Knob,
    /// Allowed values, ascending.
    pub values: &'static [i64],
}

/// One engine.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Append-only identity (I3).
    pub id: u32,
    /// Name; dtype and model names do not belong in it.
    pub name: &'static str,
    /// Offered by default or on request.
    pub maturity: Maturity,
    /// Whether equal inputs give equal bits in every run without the graph asking for it ([`Feature::Deterministic`](crate::Feature)): no sum
    /// depends on the order in which threads arrive. The GPU suites compare the bits of two runs of every such case.
    pub reproducible: bool,
    /// What it serves.
    pub caps: Caps,
    /// Tuning axes.
    pub knobs: &'static [KnobDomain],
    /// Footnote of the support matrix.
    pub note: Option<&'static str>,
    /// Kernel sources (paths below `kernels/`) whose include closure identifies the implementation; empty for CPU rows.
    pub sources: &'static [&'static str],
    /// Rules of this row alone, asked after everything that capabilities express as data; [`no_extra_rule`] for rows without any.
    pub extra: fn(&Row, &Facts, &Knobs, &Target) -> Option<Decline>,
    /// Turns facts and complete knobs into launches. Called only after `mismatch` returned `None`.
    pub lower: fn(&Facts, &Knobs, &Target) -> Result<LaunchPlan, Decline>,
}

impl Row {
    /// A decline of this row.
    pub fn decline(&self, code: DeclineCode, fact: impl Into<String>, reason: impl Into<String>) -> Decline {
        Decline { engine: self.name, code, reason: reason.into(), fact: fact.into() }
    }

    /// The decline of a graph that uses more than the row serves; it names the first feature in their order.
    pub fn lacks(&self, used: FeatureSet, served: FeatureSet) -> Option<Decline> {
        let missing = used.minus(served).iter().next()?;
        let reason = format!("the graph uses {missing}, which this row does not serve");
        Some(self.decline(DeclineCode::Feature, format!("feature={missing}"), reason))
    }

    /// The domain of a knob, if the row has that axis.
    pub fn domain(&self, knob: Knob) -> Option<&'static [i64]> {
        self.knobs.iter().find(|d| d.knob == knob).map(|d| d.values)
    }
}

/// The `extra` hook of a row whose capabilities say everything.
pub fn no_extra_rule(_row: &Row, _facts: &Facts, _knobs: &Knobs, _target: &Target) -> Option<Decline> {
    None
}

/// A ranked proposal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Row.
    pub id: u32,
    /// Complete knobs.
    pub knobs: Knobs,
}

/// A family: rows that serve the same operation, how they are matched, and how they are ranked.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// Name, such as `sdpa_fwd`.
    pub name: &'static str,
    /// First id of the family's block of 100.
    pub base: u32,
    /// Rows; position is rank, id is identity.
    pub rows: &'static [Row],
    /// Whether these facts belong to the family.
    pub serves: fn(&Facts) -> bool,
    /// First reason why a row cannot serve the facts with these knobs on this device, in a fixed order.
    pub mismatch: fn(&Row, &Facts, &Knobs, &Target) -> Option<Decline>,
    /// Ranks proposals over the offered rows. Pure: facts, rows and target only.
    pub recommend: fn(&Facts, &Target, &[&'static Row], Mode) -> Vec<Candidate>,
}
