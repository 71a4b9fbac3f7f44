//! Proof of the plain grouped product on a GPU: the case list against the f64 oracle, repeated bits, untouched bytes.
//!
//! A plain program (`harness = false`), so that the built binary runs on a machine without Rust:
//!
//! ```text
//! gpu_moe                      what `cargo test` does: every case must lower; with a GPU, every 10th case
//! gpu_moe all [--evidence DIR] the whole list and the specials
//! gpu_moe cases FROM TO        a part of the list
//! gpu_moe list                 the cases by number
//! gpu_moe compile FILE         the kernels of the list as a bundle; needs no GPU
//! options: --seed N, --bundle FILE
//! ```
//!
//! Exit code 0 when nothing failed, 1 otherwise.

mod cases;
mod data;
#[path = "../gpu_grouped/device.rs"]
mod device;
#[allow(dead_code, reason = "shared with the attention program")]
#[path = "../gpu/evidence.rs"]
mod evidence;
mod judge;
#[path = "../gpu_grouped/program.rs"]
mod program;
#[allow(dead_code, reason = "shared with the program of the other grouped product")]
#[path = "../gpu_grouped/random.rs"]
mod random;
mod run;
#[path = "../gpu_grouped/work.rs"]
mod work;

use cases::Case;
use frostgraph::engines::{Facts, LaunchPlan, Target};
use frostgraph::Result;

/// The row under test.
pub const ENGINE: &str = "moe_grouped_matmul_sm90";

/// Facts and launches of a case.
pub fn lower(case: &Case, target: &Target) -> Result<(Facts, LaunchPlan)> {
    let facts = Facts::Moe(Box::new(case.facts()));
    let plan = program::lower(ENGINE, &facts, case, target)?;
    Ok((facts, plan))
}

fn main() {
    program::Suite {
        engine: ENGINE,
        name: "moe_grouped_matmul",
        seed: 21_000,
        all: cases::all,
        facts: |c: &Case| Facts::Moe(Box::new(c.facts())),
        case: run::case,
        specials: run::SPECIALS,
    }
    .main();
}
