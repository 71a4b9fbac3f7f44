//! Ranks the rows of the NVFP4 QAT forward. Pure: facts, target and offered rows only.

use crate::caps::Candidate;
use crate::sdpa::ranking;
use crate::{Facts, Knobs, Mode, Row, Target};

/// One plan for each eligible row, in row order.
pub fn recommend(facts: &Facts, target: &Target, rows: &[&'static Row], _: Mode) -> Vec<Candidate> {
    ranking::rank(facts, target, rows, super::mismatch, |_| vec![Knobs::NONE])
}
