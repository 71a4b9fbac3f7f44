//! What the heuristics of both attention families share: rows in rank order, each proposal judged again with its knobs.

use crate::caps::Candidate;
use crate::{Decline, Facts, Knobs, Row, Target};

/// Most proposals a row may make, so that building every plan stays affordable (facts §7.2).
pub const MAX_SETS_PER_ROW: usize = 6;

/// Proposals of every eligible row: rows by position, knob sets best-first, at most [`MAX_SETS_PER_ROW`] a row, without duplicates, each
/// one passing `mismatch`.
pub fn rank(
    facts: &Facts,
    target: &Target,
    rows: &[&'static Row],
    mismatch: fn(&Row, &Facts, &Knobs, &Target) -> Option<Decline>,
    knob_sets: impl Fn(&Row) -> Vec<Knobs>,
) -> Vec<Candidate> {
    let mut ranked: Vec<Candidate> = Vec::new();
    for &row in rows {
        if mismatch(row, facts, &Knobs::NONE, target).is_some() {
            continue;
        }
        for knobs in knob_sets(row).into_iter().take(MAX_SETS_PER_ROW) {
            let candidate = Candidate { id: row.id, knobs };
            if mismatch(row, facts, &candidate.knobs, target).is_none() && !ranked.contains(&candidate) {
                ranked.push(candidate);
            }
        }
    }
    ranked
}
