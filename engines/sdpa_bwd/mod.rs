//! Family `sdpa_bwd`: scaled dot-product attention, backward.

pub mod config;
pub mod cpu;
mod cpu_dbias;
mod cpu_tile;
pub mod heuristics;
pub(crate) mod lower;
pub mod rows;
pub mod rules;
pub(crate) mod sm90;
mod sm90_grid;
pub mod workspace;

#[cfg(test)]
mod abi_tests;
#[cfg(test)]
mod goldens;
#[cfg(test)]
mod sm90_tests;
#[cfg(test)]
mod tests;

use crate::sdpa::{matching, Direction, Recipe};
use crate::{Decline, Facts, Family, Knobs, Row, Target};

/// The family record.
pub static FAMILY: Family =
    Family { name: "sdpa_bwd", base: 20600, rows: rows::ROWS, serves, mismatch, recommend: heuristics::recommend };

fn serves(facts: &Facts) -> bool {
    matches!(facts, Facts::Sdpa(f) if (f.direction, f.recipe) == (Direction::Backward, Recipe::Plain))
}

fn mismatch(row: &Row, facts: &Facts, knobs: &Knobs, target: &Target) -> Option<Decline> {
    matching::mismatch((Direction::Backward, Recipe::Plain), row, facts, knobs, target)
}
