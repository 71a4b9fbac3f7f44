//! What a row serves, cell by cell, and what no row of a family does.

use super::{Engine, FamilyLine, Flavour, Served};
use crate::columns::{features, Group, Operation, DTYPES, GEMM_DTYPES, GEMM_INPUTS, MOE_INPUTS};
use frostgraph_engines::caps::LayoutRule;
use frostgraph_engines::{Caps, DType, Feature, Maturity};

impl Engine {
    /// Whether graphs of this flavour may have an element type; of attention rows.
    pub fn dtype(&self, flavour: &Flavour, d: DType) -> Served {
        when(self.row.caps.sdpa().is_some_and(|c| c.dtypes.contains(&d)), flavour)
    }

    /// Whether a grouped product may have these inputs (of `GEMM_INPUTS`).
    pub fn gemm_inputs(&self, flavour: &Flavour, inputs: (DType, DType, i64)) -> Served {
        when(matches!(&self.row.caps, Caps::GroupedGemm(c) if c.inputs.contains(&inputs)), flavour)
    }

    /// Whether a grouped product may have this type of C.
    pub fn gemm_c(&self, flavour: &Flavour, d: DType) -> Served {
        when(matches!(&self.row.caps, Caps::GroupedGemm(c) if c.c.contains(&d)), flavour)
    }

    /// Whether a grouped product may have this type of D.
    pub fn gemm_d(&self, flavour: &Flavour, d: DType) -> Served {
        when(matches!(&self.row.caps, Caps::GroupedGemm(c) if c.d.contains(&d)), flavour)
    }

    /// Whether a plain grouped product may have these inputs (of `MOE_INPUTS`).
    pub fn moe_inputs(&self, flavour: &Flavour, inputs: (DType, Option<(DType, i64)>)) -> Served {
        when(matches!(&self.row.caps, Caps::Moe(c) if c.inputs.contains(&inputs)), flavour)
    }

    /// Whether a plain grouped product may have this type of output.
    pub fn moe_output(&self, flavour: &Flavour, d: DType) -> Served {
        when(matches!(&self.row.caps, Caps::Moe(c) if c.output.contains(&d)), flavour)
    }

    /// Whether graphs of this flavour may use a feature.
    pub fn feature(&self, flavour: &Flavour, f: Feature) -> Served {
        when(self.row.caps.features().has(f), flavour)
    }

    /// Whether graphs of this flavour may have the layout of this column.
    pub fn layout(&self, flavour: &Flavour, column: usize) -> Served {
        let reach = match self.row.caps.sdpa().map(|c| c.layout) {
            None => 0,
            Some(LayoutRule::Bshd) => 1,
            Some(LayoutRule::DenseFlex) => 2,
            Some(LayoutRule::Any) => 3,
        };
        when(column < reach, flavour)
    }

    /// Whether strides and bases must be multiples of 16 bytes.
    pub fn aligned_16(&self) -> bool {
        self.row.caps.sdpa().is_none_or(|c| c.aligned_16)
    }

    /// `default` or `opt-in`.
    pub fn maturity(&self) -> &'static str {
        match self.row.maturity {
            Maturity::Default => "default",
            Maturity::OptIn => "opt-in",
        }
    }
}

/// `e4m3 e8m0/32`: element type, scale type, values a scale.
pub(crate) fn gemm_inputs_label((ab, sf, vec): &(DType, DType, i64)) -> String {
    format!("{ab} {sf}/{vec}")
}

/// `bf16`, or as [`gemm_inputs_label`].
pub(crate) fn moe_inputs_label((d, scales): &(DType, Option<(DType, i64)>)) -> String {
    scales.map_or(d.to_string(), |(sf, vec)| gemm_inputs_label(&(*d, sf, vec)))
}

fn when(yes: bool, flavour: &Flavour) -> Served {
    if yes {
        flavour.served
    } else {
        Served::Declined
    }
}

impl FamilyLine {
    /// What no engine of this family serves here: element types, then masks, then features.
    pub fn gaps(&self) -> Vec<String> {
        let mut gaps: Vec<String> = Vec::new();
        let none = |test: &dyn Fn(&Engine) -> Served| self.engines.iter().all(|e| test(e) == Served::Declined);
        let whole = Flavour { label: String::new(), served: Served::Native };
        match self.operation {
            Operation::Attention(_) => {
                gaps.extend(DTYPES.iter().filter(|d| none(&|e| e.dtype(&whole, **d))).map(|d| d.short().to_string()));
            }
            Operation::GroupedGemm => {
                gaps.extend(GEMM_INPUTS.iter().filter(|i| none(&|e| e.gemm_inputs(&whole, **i))).map(gemm_inputs_label));
                for (what, test) in [("C", Engine::gemm_c as fn(&Engine, &Flavour, DType) -> Served), ("D", Engine::gemm_d)] {
                    gaps.extend(GEMM_DTYPES.iter().filter(|d| none(&|e| test(e, &whole, **d))).map(|d| format!("{what} {d}")));
                }
            }
            Operation::Moe => {
                gaps.extend(MOE_INPUTS.iter().filter(|i| none(&|e| e.moe_inputs(&whole, **i))).map(moe_inputs_label));
                gaps.extend(DTYPES.iter().filter(|d| none(&|e| e.moe_output(&whole, **d))).map(|d| format!("output {d}")));
            }
        }
        for g in [Group::Mask, Group::Feature] {
            for f in features(self.operation, g) {
                if none(&|e| e.feature(&whole, f)) {
                    gaps.push(f.label().to_string());
                }
            }
        }
        gaps
    }
}
