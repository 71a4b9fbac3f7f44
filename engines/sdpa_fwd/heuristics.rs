//! Ranks the forward rows. Pure: facts, target and offered rows only.

use crate::caps::Candidate;
use crate::sdpa::ranking;
use crate::{Facts, Knobs, Mode, Row, Target};

/// One plan for each eligible row, in row order: no forward row has a tuning axis yet.
pub fn recommend(facts: &Facts, target: &Target, rows: &[&'static Row], _mode: Mode) -> Vec<Candidate> {
    ranking::rank(facts, target, rows, super::mismatch, |_| vec![Knobs::NONE])
}
