//! Family `moe_grouped_matmul`: the plain grouped matrix product of a mixture of experts (`MOE_GROUPED_MATMUL` of cudnn-frontend).
//!
//! `first_token_offset` cuts the routed rows into groups: row `r` of group `g` belongs to expert `g % E`, and its result is
//! `x[r] · weight[g % E]` with weights (E, K, N). Where `x[r]` comes from and where the result goes is the mode's ([`MoeMode`]):
//!
//! | mode | row that is read | row that is written |
//! |---|---|---|
//! | none | `r` | `r` |
//! | gather | `token_index[r]` | `r` |
//! | scatter | `r` | `token_index[r] * top_k + token_ks[r]` |
//!
//! Offsets are device values in one of two forms, told apart by their number: `G + 1` boundaries, the last of which may lie before the end of
//! the routed rows, or `G` starts of which the last group reaches to the end ([`routing`]). Nothing is accumulated onto what the output held
//! before: rows that no routed row leads to stay untouched, and every other one is written once. In scatter mode destinations must differ; what
//! is written where two rows share one is undefined on a device (the CPU row writes the later one).
//!
//! Operands may be block-scaled: FP8 or packed FP4 values with one scale for every 16 or 32 of K, in atoms of 128 rows by 4 blocks
//! ([`crate::grouped_gemm::scales`]) or in plain rows. Atoms of the token's scales count the token's own rows from 0 on, whatever the groups are.

pub mod cpu;
pub mod facts;
pub mod matching;
pub mod oracle;
pub mod routing;
pub mod rows;
mod sm90;
#[cfg(test)]
pub mod testing;

#[cfg(test)]
mod sm90_tests;
#[cfg(test)]
mod tests;

pub use facts::{BlockScales, MoeFacts, MoeMode, MoePorts, ScalePlace};

use crate::caps::Candidate;
use crate::sdpa::ranking;
use crate::{Facts, Family, Knobs, Mode, Row, Target};
use matching::mismatch;

/// The family record.
pub static FAMILY: Family = Family { name: "moe_grouped_matmul", base: 21000, rows: rows::ROWS, serves, mismatch, recommend };

fn serves(facts: &Facts) -> bool {
    matches!(facts, Facts::Moe(_))
}

/// Every eligible row once, by position, without knobs: a row with tuning axes brings its own sets here.
fn recommend(facts: &Facts, target: &Target, rows: &[&'static Row], _mode: Mode) -> Vec<Candidate> {
    ranking::rank(facts, target, rows, mismatch, |_| vec![Knobs::NONE])
}
