//! Ranks the rows of the NVFP4 QAT forward. Pure: facts, target and offered rows only.

use crate::caps::Candidate;
use crate::sdpa::ranking;
use crate::sdpa_fwd::{heuristics::scheds, prefill::Sched};
use crate::{Facts, Knob, Knobs, Mode, Row, Target};

/// Plans of each eligible row, in row order, best first: the orders of the tiles, which both walks share.
pub fn recommend(facts: &Facts, target: &Target, rows: &[&'static Row], mode: Mode) -> Vec<Candidate> {
    let Facts::Sdpa(f) = facts else { return Vec::new() };
    ranking::rank(facts, target, rows, super::mismatch, |row| {
        if row.domain(Knob::SchedPolicy).is_none() {
            return vec![Knobs::NONE];
        }
        let scheds = match mode {
            Mode::A | Mode::B | Mode::OpenSource => scheds(f),
            Mode::Fallback => &[Sched::Natural],
        };
        scheds.iter().map(|&s| Knobs::new(&[(Knob::SchedPolicy, s as i64)])).collect()
    })
}
