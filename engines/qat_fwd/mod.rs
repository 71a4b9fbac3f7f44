//! Family `nvfp4_qat_fwd`: the forward of NVFP4 attention for quantisation-aware training ([`crate::qat`]).

mod chain;
pub mod cpu;
mod cpu_tile;
pub mod heuristics;
mod mma;
mod quantize;
pub mod rows;
mod sm90;

#[cfg(test)]
mod goldens;
#[cfg(test)]
mod tests;

use crate::sdpa::{matching, Direction, Recipe};
use crate::{Decline, Facts, Family, Knobs, Row, Target};

/// The family record.
pub static FAMILY: Family =
    Family { name: "nvfp4_qat_fwd", base: 20700, rows: rows::ROWS, serves, mismatch, recommend: heuristics::recommend };

fn serves(facts: &Facts) -> bool {
    matches!(facts, Facts::Sdpa(f) if (f.direction, f.recipe) == (Direction::Forward, Recipe::Nvfp4Qat))
}

fn mismatch(row: &Row, facts: &Facts, knobs: &Knobs, target: &Target) -> Option<Decline> {
    matching::mismatch((Direction::Forward, Recipe::Nvfp4Qat), row, facts, knobs, target)
}
