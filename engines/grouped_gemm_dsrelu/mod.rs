//! Family `grouped_gemm_dsrelu`: grouped block-scaled matrix product with the dsReLU backward epilogue.

pub mod cpu;
pub(crate) mod cpu_tile;
pub mod rows;
mod sm90;

#[cfg(test)]
mod tests;

use crate::caps::Candidate;
use crate::grouped_gemm::matching::mismatch;
use crate::sdpa::ranking;
use crate::{Facts, Family, Knobs, Mode, Row, Target};

/// The family record.
pub static FAMILY: Family = Family { name: "grouped_gemm_dsrelu", base: 20900, rows: rows::ROWS, serves, mismatch, recommend };

fn serves(facts: &Facts) -> bool {
    matches!(facts, Facts::GroupedGemm(_))
}

/// Every eligible row once, by position, without knobs: a row with tuning axes brings its own sets here.
fn recommend(facts: &Facts, target: &Target, rows: &[&'static Row], _mode: Mode) -> Vec<Candidate> {
    ranking::rank(facts, target, rows, mismatch, |_| vec![Knobs::NONE])
}
