//! Proof of the grouped product on a GPU: the case list against the f64 oracle, repeated bits, untouched bytes.
//!
//! A plain program (`harness = false`), so that the built binary runs on a machine without Rust; its arguments are those of `program.rs`.

mod cases;
mod device;
#[allow(dead_code, reason = "shared with the attention program")]
#[path = "../gpu/evidence.rs"]
mod evidence;
mod inputs;
mod judge;
mod program;
mod random;
mod run;
mod want;
mod work;

use cases::Case;
use frostgraph::engines::{Caps, Facts, LaunchPlan, Target};
use frostgraph::Result;

/// The row under test.
pub const ENGINE: &str = "grouped_gemm_dsrelu_sm90";

/// Facts and launches of a case.
pub fn lower(case: &Case, target: &Target) -> Result<(Facts, LaunchPlan)> {
    let facts = Facts::GroupedGemm(Box::new(case.facts()));
    let plan = program::lower(ENGINE, &facts, &case.knobs(), case, target)?;
    Ok((facts, plan))
}

/// Input kinds, types of C and D, features that the row claims and nobody asks for.
fn bare(caps: &Caps, list: &[Facts]) -> Vec<String> {
    let Caps::GroupedGemm(caps) = caps else { return vec![format!("{ENGINE} as a grouped product")] };
    let facts: Vec<_> = list.iter().map(Facts::expect_grouped_gemm).collect();
    let features = caps.features.iter().filter(|x| !facts.iter().any(|f| f.features.has(*x))).map(|x| x.to_string());
    let inputs = caps.inputs.iter().filter(|x| !facts.iter().any(|f| (f.ab, f.sf, f.sf_vec) == **x)).map(|x| format!("{x:?}"));
    let c = caps.c.iter().filter(|x| !facts.iter().any(|f| f.c == **x)).map(|x| format!("C {x}"));
    let d = caps.d.iter().filter(|x| !facts.iter().any(|f| f.d == **x)).map(|x| format!("D {x}"));
    features.chain(inputs).chain(c).chain(d).collect()
}

fn main() {
    program::Suite {
        engine: ENGINE,
        name: "grouped_gemm_dsrelu",
        seed: 20_900,
        all: cases::all,
        bare,
        samples: run::samples,
        facts: |c: &Case| Facts::GroupedGemm(Box::new(c.facts())),
        knobs: Case::knobs,
        case: run::case,
        specials: run::SPECIALS,
    }
    .main();
}
