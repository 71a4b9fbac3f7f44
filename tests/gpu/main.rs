//! Proof on a GPU: the backward's case list and the behaviours that a list cannot show, against the f64 oracle.
//!
//! A plain program (`harness = false`), so that the built binary runs on a machine without Rust:
//!
//! ```text
//! gpu                              what `cargo test` does: check the list; with a GPU, every 20th case and every special
//! gpu all [--evidence DIR]         the whole list and the specials; writes DIR/<gpu>-sdpa_bwd.json
//! gpu cases FROM TO | special N    a part, in worker processes
//! gpu one N                        one case in this process (for compute-sanitizer and debuggers)
//! gpu list                         the cases by number
//! gpu cpu STEP                     every STEP-th case on the CPU engine: a test of this program itself
//! gpu compile sm_90a,.. FILE       every kernel of the list, ahead of time, without a GPU
//! options: --seed N (default: random, printed), --workers N, --bundle FILE
//! ```
//!
//! Exit code 0 when nothing failed, 1 otherwise, 2 for wrong usage.

mod build;
mod cases;
mod counting;
mod evidence;
mod far;
mod image;
mod on_cpu;
mod plan;
mod problem;
mod rng;
mod rounding;
mod run;
mod special;
mod work;

use frostgraph::runtime::{compile_bundle, Bundle, CudaDevice};
use frostgraph::{Device, Result};
use std::collections::BTreeMap;
use std::path::PathBuf;
use work::{Item, Verdict};

#[derive(Debug, Default)]
struct Args {
    words: Vec<String>,
    seed: Option<u64>,
    workers: Option<usize>,
    evidence: Option<PathBuf>,
    bundle: Option<PathBuf>,
}

fn parse() -> Option<Args> {
    let mut args = Args::default();
    let mut given = std::env::args().skip(1);
    while let Some(a) = given.next() {
        match a.as_str() {
            "--seed" => args.seed = Some(given.next()?.parse().ok()?),
            "--workers" => args.workers = Some(given.next()?.parse().ok()?),
            "--evidence" => args.evidence = Some(given.next()?.into()),
            "--bundle" => args.bundle = Some(given.next()?.into()),
            // `cargo test` hands its own flags to every test binary.
            flag if flag.starts_with('-') => {}
            word => args.words.push(word.to_owned()),
        }
    }
    Some(args)
}

/// Every case is accepted by the planner for a described device: no GPU needed, and a case that silently vanished would show.
fn check_list() -> Result<BTreeMap<usize, Vec<String>>> {
    let device = Device::describe("sm_90")?;
    let mut features = BTreeMap::new();
    let mut without_tiles = 0;
    let all = cases::all();
    for (i, case) in all.iter().enumerate() {
        match plan::plan(case, &device).map_err(|e| e.at(format!("case {i} ({case})")))? {
            Some((built, plan)) => {
                plan.lower()?;
                features.insert(i, evidence::features(built.nodes()[0].facts()));
            }
            None => without_tiles += 1,
        }
    }
    assert!(features.len() >= 500, "the proof needs 500 cases, the list has {}", features.len());
    assert!(without_tiles <= 30, "{without_tiles} tile cases have no plan");
    evidence::self_check();
    Ok(features)
}

fn seed(args: &Args) -> u64 {
    args.seed.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        rng::Rng(now.map_or(1, |d| d.as_nanos() as u64)).next() >> 24
    })
}

fn run(args: &Args, items: &[Item], suite: &str, features: &BTreeMap<usize, Vec<String>>) -> Result<bool> {
    let device = CudaDevice::open(0)?;
    let seed = seed(args);
    let cores = std::thread::available_parallelism().map_or(4, usize::from);
    let workers = args.workers.unwrap_or((cores * 3 / 4).clamp(1, 12)).min(items.len());
    println!(
        "{} ({}), driver for CUDA {}, seed {seed}, {} items, {workers} workers",
        device.name(),
        device.arch(),
        device.driver_version(),
        items.len()
    );
    // Specials disturb each other's timing and take much memory: one at a time, after the cases.
    let (specials, listed): (Vec<Item>, Vec<Item>) = items.iter().partition(|i| matches!(i, Item::Special(_)));
    let mut verdicts = work::run_all(&listed, workers, seed, true);
    verdicts.extend(work::run_all(&specials, 1, seed, true));
    let all = cases::all();
    let mut table: BTreeMap<String, (u64, u64, u64, f64)> = BTreeMap::new();
    let mut results = Vec::new();
    for (item, verdict) in listed.iter().chain(&specials).zip(&verdicts) {
        let name = match item {
            Item::Case(i) => {
                if let Some(f) = features.get(i) {
                    results.push((f.clone(), verdict));
                }
                evidence::group(&all[*i])
            }
            Item::Special(i) => special::ALL[*i].0.to_owned(),
        };
        let row = table.entry(name).or_default();
        match verdict {
            Verdict::Passed(e) => {
                row.0 += 1;
                row.3 = row.3.max(*e);
            }
            Verdict::Failed(why) => {
                row.1 += 1;
                let what = match item {
                    Item::Case(i) => format!("case {i} ({})", all[*i]),
                    Item::Special(i) => format!("special {i} ({})", special::ALL[*i].0),
                };
                println!("FAILED {what}\n  {}", why.replace('\n', "\n  "));
            }
            Verdict::Skipped(_) => row.2 += 1,
        }
    }
    if let Some(dir) = &args.evidence {
        let path = dir.join(format!("{}-{suite}.json", evidence::short_name(device.name())));
        let text = serde_json::to_string_pretty(&evidence::records(&device, suite, seed, &results)?).unwrap_or_default();
        std::fs::create_dir_all(dir).and_then(|()| std::fs::write(&path, text + "\n")).map_err(|e| {
            frostgraph::Error::new(frostgraph::ErrorCode::FileWrite, e.to_string(), "a folder that can be written")
                .at(path.display().to_string())
        })?;
        println!("evidence: {}", path.display());
    }
    let mut sum = (0, 0, 0, 0.0f64);
    println!("{:<70} passed failed skipped worst error", "group");
    for (name, (passed, failed, skipped, worst)) in &table {
        println!("{name:<70} {passed:>6} {failed:>6} {skipped:>7} {worst:>11.2e}");
        sum = (sum.0 + passed, sum.1 + failed, sum.2 + skipped, sum.3.max(*worst));
    }
    println!("{:<70} {:>6} {:>6} {:>7} {:>11.2e}", "all", sum.0, sum.1, sum.2, sum.3);
    Ok(sum.1 == 0)
}

fn compile(arches: &str, file: &str) -> Result<()> {
    let arches: Vec<&str> = arches.split(',').collect();
    let device = Device::describe(arches[0].trim_end_matches('a'))?;
    let mut lowered = Vec::new();
    for case in cases::all() {
        if let Some((_, plan)) = plan::plan(&case, &device)? {
            lowered.push(plan.lower()?);
        }
    }
    let plans: Vec<_> = lowered.iter().flat_map(|l| l.nodes.iter().map(|n| &n.launches)).collect();
    let bundle = compile_bundle(&arches, &plans)?;
    bundle.save(file.as_ref())?;
    println!("{} kernels in {file}", bundle.kernels().count());
    Ok(())
}

/// Every `step`-th case on the CPU engine.
fn on_cpu(step: usize, seed: u64) -> Result<()> {
    let (mut n, mut worst) = (0, 0.0f64);
    for (i, case) in cases::all().iter().enumerate().step_by(step) {
        let error = on_cpu::run(case, seed ^ (i as u64) << 20);
        worst = worst.max(error.map_err(|e| e.at(format!("case {i} ({case}) on the CPU, seed {seed}")))?);
        n += 1;
    }
    println!("{n} cases on the CPU engine, worst error {worst:.2e}, seed {seed}");
    Ok(())
}

fn go(args: &Args) -> Result<bool> {
    if let Some(path) = &args.bundle {
        // Workers inherit it.
        std::env::set_var("FROSTGRAPH_BUNDLE", path);
        Bundle::load(path)?;
    }
    let words: Vec<&str> = args.words.iter().map(String::as_str).collect();
    let number = |w: &str| w.parse::<usize>().unwrap_or(usize::MAX);
    match words[..] {
        ["worker", seed] => {
            work::worker(seed.parse().unwrap_or(0));
            return Ok(true);
        }
        ["list"] => {
            cases::all().iter().enumerate().for_each(|(i, c)| println!("{i} {c}"));
            special::ALL.iter().enumerate().for_each(|(i, s)| println!("special {i}: {}", s.0));
            return Ok(true);
        }
        ["compile", arches, file] => return compile(arches, file).map(|()| true),
        ["cpu", step] => return on_cpu(number(step).max(1), seed(args)).map(|()| true),
        _ => {}
    }
    let features = check_list()?;
    let total = cases::all().len();
    if CudaDevice::count().unwrap_or(0) == 0 {
        on_cpu(97, seed(args))?;
        println!(
            "SKIPPED, NOT TESTED: no CUDA device. {} cases and {} specials were planned, none ran.",
            features.len(),
            special::ALL.len()
        );
        return Ok(true);
    }
    let specials = || (0..special::ALL.len()).map(Item::Special);
    match words[..] {
        ["all"] => run(args, &(0..total).map(Item::Case).chain(specials()).collect::<Vec<_>>(), "sdpa_bwd", &features),
        ["cases", from, to] => {
            run(args, &(number(from)..number(to).min(total)).map(Item::Case).collect::<Vec<_>>(), "sdpa_bwd_part", &features)
        }
        ["specials"] => run(args, &specials().collect::<Vec<_>>(), "sdpa_bwd_special", &features),
        ["special", n] if number(n) < special::ALL.len() => run(args, &[Item::Special(number(n))], "sdpa_bwd_special", &features),
        ["one", n] if number(n) < total => {
            let gpu = run::Gpu::open(0)?;
            let (n, seed) = (number(n), seed(args));
            println!(
                "case {n} ({}), seed {seed}: {:?}",
                cases::all()[n],
                run::run_case(&gpu, &cases::all()[n], seed ^ (n as u64) << 20)?
            );
            Ok(true)
        }
        _ => {
            run(args, &(0..total).step_by(20).map(Item::Case).chain(specials()).collect::<Vec<_>>(), "sdpa_bwd_quick", &features)
        }
    }
}

fn main() {
    let Some(args) = parse() else {
        eprintln!("usage: gpu [all | cases FROM TO | specials | special N | one N | list | compile ARCHES FILE] [--seed N] [--workers N] [--evidence DIR] [--bundle FILE]");
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
