//! Two forms of the main kernel: one CTA makes 256 x 128 of D, or a cluster of two makes 256 x 256 and dequantises each column of B once.

use crate::grouped_gemm::GroupedGemmFacts;
use crate::sdpa::arith::ceil_div;
use crate::{DType, Knob, Knobs, Target};

/// Which main kernel runs; its knob is the cluster's extent along M.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::grouped_gemm_dsrelu) enum Form {
    /// One CTA a tile: `main.cu`.
    Single,
    /// Two CTAs a tile: `pair/main.cu`.
    Pair,
}

/// Rows of a tile.
const ROWS: i64 = 256;
/// k of a step.
const STEP: i64 = 128;
/// Most parts a tile is split into along k, and the fewest steps of one (`pair/schedule.cuh`).
const MOST_PARTS: i64 = 8;
const LEAST_STEPS: i64 = 4;

impl Form {
    /// Every form.
    pub const ALL: [Form; 2] = [Form::Pair, Form::Single];

    /// `TILE_CGA_M` of the form.
    pub fn cluster(self) -> i64 {
        match self {
            Form::Single => 1,
            Form::Pair => 2,
        }
    }

    /// Columns of a tile.
    fn columns(self) -> i64 {
        128 * self.cluster()
    }

    /// Whether the form has everything these facts ask for.
    pub fn serves(self, f: &GroupedGemmFacts) -> bool {
        match self {
            Form::Single => true,
            Form::Pair => f.ab == DType::F4E2M1 && f.ports.d_srelu.is_none() && Form::staged(f),
        }
    }

    /// Whether D has C's places in shared memory to leave from, and its registers are there (`pair/epilogue.cuh`).
    fn staged(f: &GroupedGemmFacts) -> bool {
        f.c.bytes() == f.d.bytes() && !f.quantised && !(f.tanh_clamp_scale.is_some() && f.ports.dbias.is_some())
    }

    /// The form that the knobs ask for, or the one predicted to be fastest.
    pub fn chosen(f: &GroupedGemmFacts, knobs: &Knobs, target: &Target) -> Form {
        match knobs.get(Knob::TileCgaM) {
            Some(1) => Form::Single,
            Some(_) => Form::Pair,
            None => Form::ranked(f, target)[0],
        }
    }

    /// Forms that serve the facts, the fastest by prediction first.
    pub fn ranked(f: &GroupedGemmFacts, target: &Target) -> Vec<Form> {
        let sms = match target {
            Target::Cuda { sm_count, .. } => i64::from(*sm_count).max(2),
            Target::Cpu => 2,
        };
        let mut forms: Vec<Form> = Form::ALL.into_iter().filter(|form| form.serves(f)).collect();
        forms.sort_by(|a, b| a.cost(f, sms).total_cmp(&b.cost(f, sms)));
        forms
    }

    /// Predicted time of main in microseconds, from measurements on an H200 (`kernels/PERFORMANCE.md`, section 14): rounds of tiles, each some time a step
    /// of 128 k and some for the epilogue. The number of tiles that the offsets leave is not known here: as many as M has.
    fn cost(self, f: &GroupedGemmFacts, sms: i64) -> f64 {
        let (step, epilogue) = match (self, f.ab == DType::F4E2M1) {
            (Form::Single, false) => (1.44, 4.6),
            (Form::Single, true) => (1.79, 8.4),
            (Form::Pair, _) => (1.38, 5.2),
        };
        let tiles = ceil_div(f.m, ROWS).max(1) * ceil_div(f.n, self.columns());
        let (workers, steps) = (sms / self.cluster(), ceil_div(f.k, STEP));
        let (whole, left) = (tiles / workers, tiles % workers);
        let parts = match self {
            Form::Pair if left > 0 => MOST_PARTS.min(workers / left).min(steps / LEAST_STEPS).max(1),
            Form::Pair | Form::Single => 1,
        };
        let last =
            if left > 0 { ceil_div(steps, parts) as f64 * step + epilogue * if parts > 1 { 3.0 } else { 1.0 } } else { 0.0 };
        whole as f64 * (steps as f64 * step + epilogue) + last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grouped_gemm::testing::Case;

    fn ranked(case: &Case) -> Vec<Form> {
        Form::ranked(case.facts().expect_grouped_gemm(), &Target::describe(90).expect("a known device"))
    }

    #[test]
    fn what_only_single_ctas_do() {
        let fp4 = Case { dbias: false, ..Case::nvfp4() };
        assert_eq!(ranked(&fp4).len(), 2);
        let wide = Case { d: DType::F32, ..fp4.clone() };
        for case in [Case { d_srelu: true, ..fp4.clone() }, wide, Case { dbias: false, ..Case::default() }] {
            assert_eq!(ranked(&case), [Form::Single]);
        }
    }

    /// Large problems are the cluster's; one tile of 128 columns is not worth two CTAs.
    #[test]
    fn the_prediction_follows_the_tiles() {
        let large = Case { m: 65_536, n: 2048, k: 7168, ends: vec![65_536], dbias: false, ..Case::nvfp4() };
        assert_eq!(ranked(&large)[0], Form::Pair);
        let narrow = Case { n: 128, k: 1024, ..large };
        assert_eq!(ranked(&narrow)[0], Form::Single);
    }
}
