//! Family `sdpa_fwd`: scaled dot-product attention, forward.

pub mod config;
pub(crate) mod config_sm90;
pub mod cpu;
mod cpu_tile;
mod decode;
pub mod heuristics;
mod heuristics_sm90;
pub(crate) mod lower;
pub(crate) mod prefill;
pub(crate) mod prefill_sm90;
pub mod rows;
pub mod rules;
pub mod split;
pub mod workspace;

#[cfg(test)]
mod abi_tests;
#[cfg(test)]
mod goldens;
#[cfg(test)]
mod ranking_tests;
#[cfg(test)]
mod tests;

use crate::sdpa::{matching, Direction, Recipe};
use crate::{Decline, Facts, Family, Knobs, Row, Target};

/// The family record.
pub static FAMILY: Family =
    Family { name: "sdpa_fwd", base: 20500, rows: rows::ROWS, serves, mismatch, recommend: heuristics::recommend };

fn serves(facts: &Facts) -> bool {
    matches!(facts, Facts::Sdpa(f) if (f.direction, f.recipe) == (Direction::Forward, Recipe::Plain))
}

fn mismatch(row: &Row, facts: &Facts, knobs: &Knobs, target: &Target) -> Option<Decline> {
    matching::mismatch((Direction::Forward, Recipe::Plain), row, facts, knobs, target)
}
