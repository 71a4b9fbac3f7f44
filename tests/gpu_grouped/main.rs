//! Proof of the grouped product on a GPU: the case list against the f64 oracle, repeated bits, untouched bytes.
//!
//! A plain program (`harness = false`), so that the built binary runs on a machine without Rust; its arguments are those of `program.rs`.

mod cases;
#[path = "../gpu/counting.rs"]
mod counting;
mod device;
#[allow(dead_code, reason = "shared with the attention program")]
#[path = "../gpu/evidence.rs"]
mod evidence;
mod far;
mod inputs;
mod judge;
mod library;
mod program;
mod random;
mod repeated;
mod run;
#[allow(dead_code, reason = "shared with the attention program")]
#[path = "../gpu/spin.rs"]
mod spin;
#[path = "../gpu/verdict.rs"]
mod verdict;
mod want;

use cases::Case;
use frostgraph::engines::grouped_gemm::GroupedGemmFacts;
use frostgraph::engines::{family_of, row_by_name, Caps, DType, Facts, Feature, Knobs, LaunchPlan, Target};
use frostgraph::Result;

/// The rows that this program proves: the first by default, the other with `--engine NAME`, over the cases that it serves.
const ENGINES: [&str; 2] = ["grouped_gemm_dsrelu_sm90", "grouped_gemm_dsrelu_mma"];

/// The row under test.
fn engine() -> &'static str {
    let args: Vec<String> = std::env::args().collect();
    let named = args.windows(2).find(|w| w[0] == "--engine").map(|w| w[1].as_str());
    let Some(named) = named else { return ENGINES[0] };
    ENGINES.into_iter().find(|e| named == *e).unwrap_or_else(|| {
        // The other row's evidence is not what was asked for.
        eprintln!("--engine {named}: this program proves {}", ENGINES.join(" and "));
        std::process::exit(2)
    })
}

/// The case list of the row. The first row serves every case; of the other its declines are left out.
fn all() -> Vec<(String, Case)> {
    let list = cases::all();
    let (Some(row), Some(hopper)) = (row_by_name(engine()), Target::describe(90)) else { return list };
    if first() {
        return list;
    }
    let serves = |c: &Case| {
        let facts = Facts::GroupedGemm(Box::new(c.facts()));
        family_of(row.id).is_some_and(|f| (f.mismatch)(row, &facts, &Knobs::NONE, &hopper).is_none())
    };
    list.into_iter().filter(|(_, c)| c.cluster == 1 && serves(c)).collect()
}

/// Facts and launches of a case.
pub fn lower(case: &Case, target: &Target) -> Result<(Facts, LaunchPlan)> {
    let facts = Facts::GroupedGemm(Box::new(case.facts()));
    let plan = program::lower(engine(), &facts, &knobs(case), case, target)?;
    Ok((facts, plan))
}

/// Whether the row under test is the first, which has everything.
pub fn first() -> bool {
    engine() == ENGINES[0]
}

/// Knobs of a case: the cluster is an axis of the first row.
fn knobs(case: &Case) -> Knobs {
    if first() {
        case.knobs()
    } else {
        Knobs::NONE
    }
}

/// Input kinds, types of C and D, features that the row claims and nobody asks for.
fn bare(caps: &Caps, list: &[Facts]) -> Vec<String> {
    let Caps::GroupedGemm(caps) = caps else { return vec![format!("{} as a grouped product", engine())] };
    let facts: Vec<_> = list.iter().map(Facts::expect_grouped_gemm).collect();
    let features = caps.features.iter().filter(|x| !facts.iter().any(|f| f.features.has(*x))).map(|x| x.to_string());
    let inputs = caps.inputs.iter().filter(|x| !facts.iter().any(|f| (f.ab, f.sf, f.sf_vec) == **x)).map(|x| format!("{x:?}"));
    let c = caps.c.iter().filter(|x| !facts.iter().any(|f| f.c == **x)).map(|x| format!("C {x}"));
    let d = caps.d.iter().filter(|x| !facts.iter().any(|f| f.d == **x)).map(|x| format!("D {x}"));
    // Two by two, where the operation has both: FP8 results and their scales come of FP8 inputs, and FP8 alone may be n-major.
    let fp8 = DType::is_fp8;
    let narrow = |x: &Feature| matches!(x, Feature::OutputScales | Feature::DiscreteColSfd | Feature::NMajorB);
    let mut pairs = Vec::new();
    let mut note = |what: String, own: &dyn Fn(&GroupedGemmFacts) -> bool, is_fp8: bool| {
        let own: Vec<_> = facts.iter().filter(|f| own(f)).collect();
        let features = caps.features.iter().filter(|x| is_fp8 || !narrow(x));
        pairs.extend(features.filter(|x| !own.iter().any(|f| f.features.has(*x))).map(|x| format!("{what} with {x}")));
        pairs.extend(caps.c.iter().filter(|c| !own.iter().any(|f| f.c == **c)).map(|c| format!("{what} with C {c}")));
        let d = caps.d.iter().filter(|d| fp8(**d) == is_fp8 && !own.iter().any(|f| f.d == **d));
        pairs.extend(d.filter(|_| what.contains('/')).map(|d| format!("{what} with D {d}")));
    };
    for &(ab, sf, vec) in caps.inputs {
        note(format!("{ab} {sf}/{vec}"), &|f| (f.ab, f.sf, f.sf_vec) == (ab, sf, vec), fp8(ab));
    }
    for &d in caps.d {
        note(format!("D {d}"), &|f| f.d == d, fp8(d));
    }
    features.chain(inputs).chain(c).chain(d).chain(pairs).collect()
}

fn main() {
    program::Suite {
        engine: engine(),
        name: if first() { "grouped_gemm_dsrelu" } else { "grouped_gemm_dsrelu_mma" },
        seed: 20_900,
        all,
        bare,
        samples: run::samples,
        facts: |c: &Case| Facts::GroupedGemm(Box::new(c.facts())),
        knobs,
        case: run::case,
        specials: run::SPECIALS,
    }
    .main();
}
