//! Proof on a GPU: the case lists of the CUDA rows and the behaviours that a list cannot show, against the f64 oracle.
//!
//! A plain program (`harness = false`), so that the built binary runs on a machine without Rust:
//!
//! ```text
//! gpu                              what `cargo test` does: check the lists; with a GPU, every 20th case and every special
//! gpu all [--evidence DIR]         the whole lists and the specials; writes DIR/<gpu>-<suite>.json
//! gpu cases FROM TO | special N | specials    a part of a suite, in worker processes
//! gpu one N ..                     these cases in this process (for compute-sanitizer and debuggers)
//! gpu list                         the cases by number
//! gpu check                        plan every case and count the declines by reason: no GPU needed
//! gpu cpu STEP                     every STEP-th case on the CPU engine: a test of this program itself
//! gpu compile sm_90a,.. FILE [FROM TO]    every kernel of the lists (of these cases of one suite), ahead of time, without a GPU
//! options: --suite sdpa_bwd|sdpa_fwd|qat_fwd|qat_bwd (default: all; numbers count in sdpa_bwd), --seed N (default: random, printed),
//!          --workers N, --bundle FILE, --engine ROW (all, cases, specials, compile: the cases and specials of one row alone)
//! ```
//!
//! A suite whose rows are not in MANIFEST has no eligible case and runs nothing. Exit code 0 when nothing failed, 1 otherwise, 2 for
//! wrong usage.

mod args;
mod build;
mod cases;
mod counting;
mod evidence;
mod far;
mod image;
mod judge;
mod on_cpu;
mod plan;
mod problem;
mod report;
mod rng;
mod rounding;
mod run;
mod special;
mod spin;
mod suite;
mod values;
mod verdict;
mod work;

use args::Args;
use frostgraph::runtime::{compile_bundle, Bundle, CudaDevice};
use frostgraph::{Device, Result};
use plan::{plan, Planned};
use report::{print_declined, run, seed};
use suite::Suite;
use work::Item;

fn compile(args: &Args, arches: &str, file: &str, part: Option<(usize, usize)>) -> Result<()> {
    let arches: Vec<&str> = arches.split(',').collect();
    let device = Device::describe(arches[0].trim_end_matches('a'))?;
    let mut lowered = Vec::new();
    let wanted = |c: &cases::Case| args.engine.as_deref().is_none_or(|e| c.engine == e);
    let mut listed: Vec<cases::Case> = match part {
        Some((from, to)) => args.one_suite().cases().into_iter().take(to).skip(from).collect(),
        None => args.suites().into_iter().flat_map(Suite::cases).collect(),
    };
    listed.retain(wanted);
    for case in listed {
        if let Planned::Ready(p) = plan(&case, &device)? {
            lowered.push(p.1.lower()?);
        }
    }
    let plans: Vec<_> = lowered.iter().flat_map(|l| l.nodes.iter().map(|n| &n.launches)).collect();
    let bundle = compile_bundle(&arches, &plans)?;
    bundle.save(file.as_ref())?;
    println!("{} kernels in {file}", bundle.kernels().count());
    Ok(())
}

/// Every `step`-th case on the CPU engine.
fn on_cpu(suite: Suite, step: usize, seed: u64) -> Result<()> {
    let (mut n, mut worst) = (0, 0.0f64);
    for (i, case) in suite.cases().iter().enumerate().step_by(step) {
        let error = on_cpu::run(case, seed ^ (i as u64) << 20);
        worst = worst.max(error.map_err(|e| e.at(format!("{} case {i} ({case}) on the CPU, seed {seed}", suite.name())))?);
        n += 1;
    }
    println!("{}: {n} cases on the CPU engine, worst error {worst:.2e}, seed {seed}", suite.name());
    Ok(())
}

fn list(suite: Suite) {
    let name = suite.name();
    suite.cases().iter().enumerate().for_each(|(i, c)| println!("{name} {i} {c}"));
    suite.specials().iter().enumerate().for_each(|(i, s)| println!("{name} special {i}: {} ({})", s.name, s.engine));
}

fn number(w: &str) -> usize {
    w.parse().unwrap_or(usize::MAX)
}

/// These cases in this process, for a debugger or a sanitizer around it.
fn some(args: &Args, suite: Suite, numbers: &[&str]) -> Result<bool> {
    let (cases, gpu, seed) = (suite.cases(), run::Gpu::open(0)?, seed(args));
    for n in numbers.iter().map(|n| number(n)).filter(|n| *n < cases.len()) {
        let outcome = run::run_case(&gpu, &cases[n], seed ^ (n as u64) << 20)?;
        println!("{} case {n} ({}), seed {seed}: {outcome:?}", suite.name(), cases[n]);
    }
    Ok(true)
}

/// One command on one suite.
fn one(args: &Args, suite: Suite, words: &[&str]) -> Result<bool> {
    if let ["one", numbers @ ..] = words {
        return some(args, suite, numbers);
    }
    let listing = suite.check_list()?;
    let cases = suite.cases();
    if words == ["check"] {
        print_declined(suite, &listing);
        return Ok(true);
    }
    if CudaDevice::count().unwrap_or(0) == 0 {
        on_cpu(suite, 97, seed(args))?;
        println!(
            "{}: SKIPPED, NOT TESTED: no CUDA device. {} cases were planned, none of them ran, nor did the {} specials.",
            suite.name(),
            listing.features.len(),
            suite.specials().len()
        );
        return Ok(true);
    }
    if !suite.has_rows() {
        println!("{}: SKIPPED, NOT TESTED: its rows are not in MANIFEST, 0 eligible cases.", suite.name());
        return Ok(true);
    }
    // Declined cases are counted by reason, not run.
    let wanted = |i: &usize| args.engine.as_deref().is_none_or(|e| e == cases[*i].engine);
    let eligible = |from: usize, to: usize| {
        listing.features.range(from..to.max(from)).filter(|(i, _)| wanted(i)).map(|(&i, _)| Item::Case(suite, i))
    };
    let numbers = suite.specials_of(args.engine.as_deref(), CudaDevice::open(0)?.target());
    let specials = || numbers.iter().map(|&i| Item::Special(suite, i));
    match *words {
        ["all"] => {
            let part = args.engine.as_deref().map_or(String::new(), |e| format!("_{e}"));
            run(args, &eligible(0, cases.len()).chain(specials()).collect::<Vec<_>>(), suite, &part, &listing)
        }
        ["cases", from, to] => run(args, &eligible(number(from), number(to)).collect::<Vec<_>>(), suite, "_part", &listing),
        ["specials"] => run(args, &specials().collect::<Vec<_>>(), suite, "_special", &listing),
        ["special", n] if number(n) < suite.specials().len() => {
            run(args, &[Item::Special(suite, number(n))], suite, "_special", &listing)
        }
        _ => run(args, &eligible(0, cases.len()).step_by(20).chain(specials()).collect::<Vec<_>>(), suite, "_quick", &listing),
    }
}

fn go(args: &Args) -> Result<bool> {
    if let Some(path) = &args.bundle {
        // Workers inherit it.
        std::env::set_var("FROSTGRAPH_BUNDLE", path);
        Bundle::load(path)?;
    }
    let words: Vec<&str> = args.words.iter().map(String::as_str).collect();
    match words[..] {
        ["worker", seed] => {
            work::worker(seed.parse().unwrap_or(0));
            return Ok(true);
        }
        ["list"] => {
            args.suites().into_iter().for_each(list);
            return Ok(true);
        }
        ["compile", arches, file] => return compile(args, arches, file, None).map(|()| true),
        ["compile", arches, file, from, to] => {
            return compile(args, arches, file, Some((number(from), number(to)))).map(|()| true);
        }
        ["cpu", step] => {
            args.suites().into_iter().try_for_each(|s| on_cpu(s, number(step).max(1), seed(args)))?;
            return Ok(true);
        }
        _ => {}
    }
    evidence::self_check();
    let suites = match words[..] {
        ["cases", ..] | ["special", ..] | ["one", ..] => vec![args.one_suite()],
        _ => args.suites(),
    };
    let mut good = true;
    for suite in suites {
        good &= one(args, suite, &words)?;
    }
    Ok(good)
}

fn main() {
    let Some(args) = Args::parse() else {
        eprintln!(
            "usage: gpu [all | cases FROM TO | specials | special N | one N .. | list | check | cpu STEP | compile ARCHES FILE] \
             [--suite sdpa_bwd|sdpa_fwd|qat_fwd|qat_bwd] [--seed N] [--workers N] [--evidence DIR] [--bundle FILE] [--engine ROW]"
        );
        std::process::exit(2);
    };
    match go(&args) {
        Ok(true) => {}
        Ok(false) => std::process::exit(1),
        Err(e) => {
            eprintln!("{e}");
            std::process::exit(1);
        }
    }
}
