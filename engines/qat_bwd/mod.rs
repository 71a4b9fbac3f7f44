//! Family `nvfp4_qat_bwd`: the backward of NVFP4 attention for quantisation-aware training ([`crate::qat`]).

pub mod heuristics;
mod lower;
pub mod rows;
mod sm90;
mod workspace;

#[cfg(test)]
mod abi_tests;
#[cfg(test)]
mod goldens;
#[cfg(test)]
mod tests;

use crate::sdpa::{matching, Direction, Recipe};
use crate::{Decline, Facts, Family, Knobs, Row, Target};

/// The family record.
pub static FAMILY: Family =
    Family { name: "nvfp4_qat_bwd", base: 20800, rows: rows::ROWS, serves, mismatch, recommend: heuristics::recommend };

fn serves(facts: &Facts) -> bool {
    matches!(facts, Facts::Sdpa(f) if (f.direction, f.recipe) == (Direction::Backward, Recipe::Nvfp4Qat))
}

fn mismatch(row: &Row, facts: &Facts, knobs: &Knobs, target: &Target) -> Option<Decline> {
    matching::mismatch((Direction::Backward, Recipe::Nvfp4Qat), row, facts, knobs, target)
}
