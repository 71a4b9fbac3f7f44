//! Family `grouped_gemm_dsrelu`: grouped block-scaled matrix product with the dsReLU backward epilogue.

pub mod cpu;
pub(crate) mod cpu_tile;
mod finish;
mod mma;
pub mod rows;
mod sm90;

#[cfg(test)]
mod tests;

use crate::caps::Candidate;
use crate::grouped_gemm::matching::mismatch;
use crate::sdpa::ranking;
use crate::{Facts, Family, Knob, Knobs, Mode, Row, Target};

/// The family record.
pub static FAMILY: Family = Family { name: "grouped_gemm_dsrelu", base: 20900, rows: rows::ROWS, serves, mismatch, recommend };

fn serves(facts: &Facts) -> bool {
    matches!(facts, Facts::GroupedGemm(_))
}

/// Every eligible row by position; the Hopper row with every cluster that serves the facts, the fastest by prediction first.
fn recommend(facts: &Facts, target: &Target, rows: &[&'static Row], _mode: Mode) -> Vec<Candidate> {
    let Facts::GroupedGemm(f) = facts else { return Vec::new() };
    ranking::rank(facts, target, rows, mismatch, |row| {
        if row.domain(Knob::TileCgaM).is_none() {
            return vec![Knobs::NONE];
        }
        let forms = sm90::form::Form::ranked(f, target);
        forms.into_iter().map(|form| Knobs::new(&[(Knob::TileCgaM, form.cluster())])).collect()
    })
}
