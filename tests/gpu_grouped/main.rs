//! Proof of the grouped product on a GPU: the case list against the f64 oracle, repeated bits, untouched bytes.
//!
//! A plain program (`harness = false`), so that the built binary runs on a machine without Rust:
//!
//! ```text
//! gpu_grouped                      what `cargo test` does: every case must lower; with a GPU, every 10th case
//! gpu_grouped all [--evidence DIR] the whole list and the specials
//! gpu_grouped cases FROM TO        a part of the list
//! gpu_grouped list                 the cases by number
//! options: --seed N, --bundle FILE
//! ```
//!
//! Exit code 0 when nothing failed, 1 otherwise.

mod cases;
#[allow(dead_code, reason = "shared with the attention program")]
#[path = "../gpu/evidence.rs"]
mod evidence;
mod inputs;
mod judge;
mod run;
mod want;
mod work;

use cases::Case;
use frostgraph::engines::{row_by_name, Caps, Facts, Knobs, LaunchPlan, Target};
use frostgraph::runtime::{compile_bundle, Bundle, CudaDevice};
use frostgraph::{Error, ErrorCode, Result};
use work::{Tally, Verdict};

/// The row under test.
pub const ENGINE: &str = "grouped_gemm_dsrelu_sm90";

/// The launches of a case.
pub fn lower(case: &Case, target: &Target) -> Result<(Facts, LaunchPlan)> {
    let row = row_by_name(ENGINE).ok_or_else(|| Error::new(ErrorCode::UnknownEngine, ENGINE, "a row of MANIFEST"))?;
    let facts = Facts::GroupedGemm(Box::new(case.facts()));
    let family =
        frostgraph::engines::family_of(row.id).ok_or_else(|| Error::new(ErrorCode::UnknownEngine, ENGINE, "a family"))?;
    let refused = |d: String| Error::new(ErrorCode::CheckFailed, d, "a case that the row serves").at(case.to_string());
    if let Some(d) = (family.mismatch)(row, &facts, &Knobs::NONE, target) {
        return Err(refused(d.to_string()));
    }
    let plan = (row.lower)(&facts, &Knobs::NONE, target).map_err(|d| refused(d.to_string()))?;
    Ok((facts, plan))
}

/// Rule S6: whatever the row claims, some case of the list asks for. Input kinds, types of C and D, features.
fn claims_have_cases(list: &[(String, Case)]) -> Result<()> {
    let row = row_by_name(ENGINE).ok_or_else(|| Error::new(ErrorCode::UnknownEngine, ENGINE, "a row of MANIFEST"))?;
    let Caps::GroupedGemm(caps) = &row.caps else {
        return Err(Error::new(ErrorCode::CheckFailed, ENGINE, "a row of the grouped product"));
    };
    let facts: Vec<_> = list.iter().map(|(_, c)| c.facts()).collect();
    let mut bare: Vec<String> = Vec::new();
    let mut need = |what: String, has: bool| {
        if !has {
            bare.push(what);
        }
    };
    for feature in caps.features.iter() {
        need(feature.to_string(), facts.iter().any(|f| f.features.has(feature)));
    }
    for &(ab, sf, vec) in caps.inputs {
        need(format!("{ab} {sf}/{vec}"), facts.iter().any(|f| (f.ab, f.sf, f.sf_vec) == (ab, sf, vec)));
    }
    for &c in caps.c {
        need(format!("C {c}"), facts.iter().any(|f| f.c == c));
    }
    for &d in caps.d {
        need(format!("D {d}"), facts.iter().any(|f| f.d == d));
    }
    if bare.is_empty() {
        return Ok(());
    }
    Err(Error::new(ErrorCode::CheckFailed, format!("no case for {}", bare.join(", ")), "a case for all that the row claims (S6)"))
}

fn option<'a>(args: &'a [String], name: &str) -> Option<&'a str> {
    args.iter().position(|a| a == name).and_then(|i| args.get(i + 1)).map(String::as_str)
}

fn work(args: &[String]) -> Result<bool> {
    let list = cases::all();
    let verb = args.first().map_or("", String::as_str);
    let hopper = Target::describe(90).ok_or_else(|| Error::new(ErrorCode::CheckFailed, "90", "a described device"))?;
    let seed = option(args, "--seed").and_then(|s| s.parse().ok()).unwrap_or(20_900);
    if verb == "list" {
        list.iter().enumerate().for_each(|(i, (name, c))| println!("{i} {name}{}{c}", if name.is_empty() { "" } else { ": " }));
        return Ok(true);
    }
    claims_have_cases(&list)?;
    for (name, case) in &list {
        lower(case, &hopper).map_err(|e| e.at(name.clone()))?;
    }
    if verb == "compile" {
        let plans: Vec<LaunchPlan> =
            list.iter().map(|c| &c.1).chain(&run::samples()).map(|c| lower(c, &hopper).map(|p| p.1)).collect::<Result<_>>()?;
        let bundle = compile_bundle(&["sm_90a"], &plans.iter().collect::<Vec<_>>())?;
        let file = args.get(1).map_or("grouped.bundle", String::as_str);
        bundle.save(file.as_ref())?;
        println!("{} kernels in {file}", bundle.kernels().count());
        return Ok(true);
    }
    let device = match CudaDevice::open(0) {
        Ok(d) if matches!(d.target(), Target::Cuda { cc: 90, .. }) => d,
        Ok(d) => {
            println!("{} cases lower; NOT RUN: {} is no Hopper GPU", list.len(), d.name());
            return Ok(true);
        }
        Err(e) => {
            println!("{} cases lower; NOT RUN, no GPU: {e}", list.len());
            return Ok(true);
        }
    };
    if let Some(file) = option(args, "--bundle") {
        Bundle::load(file.as_ref())?.install();
    }
    let number = |i: usize| args.get(i).and_then(|s| s.parse().ok());
    let chosen: Vec<usize> = match verb {
        "all" => (0..list.len()).collect(),
        "one" => (1..args.len()).filter_map(number).filter(|&i| i < list.len()).collect(),
        "cases" => (number(1).unwrap_or(0)..number(2).unwrap_or(list.len()).min(list.len())).collect(),
        _ => (0..list.len()).step_by(10).collect(),
    };
    let gpu = run::Gpu::new(device)?;
    let mut results = Vec::new();
    let mut tally = Tally::default();
    for i in chosen {
        let (name, case) = &list[i];
        let verdict = match run::case(&gpu, case, seed ^ (i as u64) << 20) {
            Ok(error) => Verdict::Passed(error),
            Err(e) => {
                println!("FAILED case {i} {name} ({case}), seed {seed}: {e}");
                Verdict::Failed(e.to_string())
            }
        };
        tally.add(&verdict);
        results.push((ENGINE, evidence::features(&Facts::GroupedGemm(Box::new(case.facts()))), verdict));
    }
    if verb == "all" {
        for (name, special) in run::SPECIALS {
            let verdict = match special(&gpu, seed) {
                Ok(error) => Verdict::Passed(error),
                Err(e) => {
                    println!("FAILED special '{name}', seed {seed}: {e}");
                    Verdict::Failed(e.to_string())
                }
            };
            println!("special '{name}': {verdict:?}");
            tally.add(&verdict);
            results.push((ENGINE, vec!["special".into()], verdict));
        }
    }
    println!(
        "grouped_gemm_dsrelu: {} passed, {} failed, worst relative error of D {:.2e}, seed {seed}",
        tally.passed, tally.failed, tally.worst
    );
    if let Some(folder) = option(args, "--evidence") {
        let list: Vec<_> = results.iter().map(|(e, f, v)| (*e, f.clone(), v)).collect();
        let records = evidence::records(&gpu.device, "grouped_gemm_dsrelu", seed, &list)?;
        let file = format!("{folder}/{}-grouped_gemm_dsrelu.json", evidence::short_name(gpu.device.name()));
        std::fs::write(&file, format!("{records:#}\n"))
            .map_err(|e| Error::new(ErrorCode::CheckFailed, format!("{file}: {e}"), "a file that can be written"))?;
        println!("wrote {file}");
    }
    Ok(tally.failed == 0)
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--nocapture" && a != "--test-threads").collect();
    match work(&args) {
        Ok(true) => {}
        Ok(false) => std::process::exit(1),
        Err(e) => {
            eprintln!("{e}");
            std::process::exit(1);
        }
    }
}
