//! Proof of the plain grouped product on a GPU: the case list against the f64 oracle, repeated bits, untouched bytes.
//!
//! A plain program (`harness = false`), so that the built binary runs on a machine without Rust; its arguments are those of `program.rs`.

mod cases;
#[path = "../gpu/counting.rs"]
mod counting;
mod data;
#[path = "../gpu_grouped/device.rs"]
mod device;
#[allow(dead_code, reason = "shared with the attention program")]
#[path = "../gpu/evidence.rs"]
mod evidence;
mod far;
mod judge;
#[path = "../gpu_grouped/library.rs"]
mod library;
#[path = "../gpu_grouped/program.rs"]
mod program;
#[allow(dead_code, reason = "shared with the program of the other grouped product")]
#[path = "../gpu_grouped/random.rs"]
mod random;
#[path = "../gpu_grouped/repeated.rs"]
mod repeated;
mod run;
#[allow(dead_code, reason = "shared with the attention program")]
#[path = "../gpu/spin.rs"]
mod spin;
#[path = "../gpu/verdict.rs"]
mod verdict;

use cases::Case;
use frostgraph::engines::{Caps, DType, Facts, Feature, Knobs, LaunchPlan, Target};
use frostgraph::Result;

/// The row under test.
pub const ENGINE: &str = "moe_grouped_matmul_sm90";

/// Facts and launches of a case.
pub fn lower(case: &Case, target: &Target) -> Result<(Facts, LaunchPlan)> {
    let facts = Facts::Moe(Box::new(case.facts()));
    let plan = program::lower(ENGINE, &facts, &Knobs::NONE, case, target)?;
    Ok((facts, plan))
}

/// Features, inputs and outputs that the row claims and nobody asks for.
fn bare(caps: &Caps, list: &[Facts]) -> Vec<String> {
    let Caps::Moe(caps) = caps else { return vec![format!("{ENGINE} as a plain grouped product")] };
    let used = |test: &dyn Fn(&Facts) -> bool| list.iter().any(test);
    let features = caps.features.iter().filter(|x| !used(&|f| f.features().has(*x))).map(|x| x.to_string());
    let inputs = caps
        .inputs
        .iter()
        .filter(|x| !used(&|f| (f.expect_moe().input, f.expect_moe().scales.map(|s| (s.dtype, s.vec))) == **x))
        .map(|x| format!("{x:?}"));
    let outputs = caps.output.iter().filter(|x| !used(&|f| f.expect_moe().output == **x)).map(|x| x.to_string());
    // Two by two; narrow operands have k contiguous alone.
    let mut pairs = Vec::new();
    for input in caps.inputs {
        let wide = matches!(input.0, DType::BF16 | DType::F16);
        let own: Vec<&Facts> =
            list.iter().filter(|f| (f.expect_moe().input, f.expect_moe().scales.map(|s| (s.dtype, s.vec))) == *input).collect();
        pairs.extend(
            caps.features
                .iter()
                .filter(|x| wide || *x != Feature::NMajorB)
                .filter(|x| !own.iter().any(|f| f.features().has(*x)))
                .map(|x| format!("{input:?} with {x}")),
        );
        pairs.extend(
            caps.output
                .iter()
                .filter(|x| !own.iter().any(|f| f.expect_moe().output == **x))
                .map(|x| format!("{input:?} with {x}")),
        );
    }
    features.chain(inputs).chain(outputs).chain(pairs).collect()
}

fn main() {
    program::Suite {
        engine: ENGINE,
        name: "moe_grouped_matmul",
        seed: 21_000,
        all: || cases::all().into_iter().map(|c| (String::new(), c)).collect(),
        bare,
        samples: run::samples,
        facts: |c: &Case| Facts::Moe(Box::new(c.facts())),
        knobs: |_| Knobs::NONE,
        case: run::case,
        specials: run::SPECIALS,
    }
    .main();
}
