//! Ranks the rows of the NVFP4 QAT backward. Pure: facts, target and offered rows only.

use crate::caps::Candidate;
use crate::sdpa::ranking;
use crate::sdpa_bwd::heuristics::knob_sets;
use crate::{Facts, Mode, Row, Target};

/// One plan for each eligible row, in row order, with the tiles of the plain backward: the quantisation rides in issue slots that its main
/// kernel leaves idle, so what is best there is best here. The wgmma row stands first: it was ahead in every shape measured on an H200, 1.05 to 1.5 x
/// from 128 rows on (`kernels/PERFORMANCE.md` section 16).
pub fn recommend(facts: &Facts, target: &Target, rows: &[&'static Row], mode: Mode) -> Vec<Candidate> {
    let Facts::Sdpa(f) = facts else { return Vec::new() };
    ranking::rank(facts, target, rows, super::mismatch, |row| knob_sets(row, f, target, mode))
}
