//! Ranks the rows of the NVFP4 QAT backward. Pure: facts, target and offered rows only.

use crate::caps::Candidate;
use crate::sdpa::ranking;
use crate::sdpa_bwd::heuristics::knob_sets;
use crate::{Facts, Mode, Row, Target};

/// One plan for each eligible row, in row order, with the tiles of the plain backward: the quantisation rides in issue slots that its main
/// kernel leaves idle, so what is best there is best here (measured on an H200, `kernels/PERFORMANCE.md`).
pub fn recommend(facts: &Facts, target: &Target, rows: &[&'static Row], mode: Mode) -> Vec<Candidate> {
    let Facts::Sdpa(f) = facts else { return Vec::new() };
    ranking::rank(facts, target, rows, super::mismatch, |row| knob_sets(row, f, target, mode))
}
