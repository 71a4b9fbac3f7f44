//! What a program of one row's cases does with its arguments: list, compile, run, write evidence.
//!
//! ```text
//! (nothing)              every case must lower; with a GPU, every 10th case runs
//! all [--evidence DIR]   the whole list and the specials
//! cases FROM TO, one N.. parts of the list
//! specials [WORD]        the specials whose name has this word
//! list                   the cases by number
//! compile FILE           the kernels of the list as a bundle; needs no GPU
//! options: --seed N, --bundle FILE, --workers N (threads, each with a stream of its own)
//! ```
//!
//! Exit code 0 when nothing failed, 1 otherwise.

use crate::device::Gpu;
use crate::evidence;
use crate::verdict::{Tally, Verdict};
use frostgraph::engines::{family_of, row_by_name, Caps, Facts, Knobs, LaunchPlan, Row, Target};
use frostgraph::runtime::{compile_bundle, Bundle, CudaDevice};
use frostgraph::{Error, ErrorCode, Result};
use std::fmt::Display;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The cases of one row and how they are run.
pub struct Suite<C> {
    /// The row under test.
    pub engine: &'static str,
    /// Names the case list in evidence records.
    pub name: &'static str,
    pub seed: u64,
    /// Cases with a name; most have an empty one.
    pub all: fn() -> Vec<(String, C)>,
    /// What the row claims and no case of the list asks for (rule S6).
    pub bare: fn(&Caps, &[Facts]) -> Vec<String>,
    /// Cases of the specials.
    pub samples: fn() -> Vec<C>,
    pub facts: fn(&C) -> Facts,
    /// The knobs a case is lowered with.
    pub knobs: fn(&C) -> Knobs,
    /// The relative error of a case.
    pub case: fn(&Gpu, &C, u64) -> Result<f64>,
    pub specials: &'static [Special],
}

/// What no single case shows: a name and a test.
pub type Special = (&'static str, fn(&Gpu, u64) -> Result<f64>);

fn row(engine: &str) -> Result<&'static Row> {
    row_by_name(engine).ok_or_else(|| Error::new(ErrorCode::UnknownEngine, engine, "a row of MANIFEST"))
}

/// The launches of a case.
pub fn lower(engine: &str, facts: &Facts, knobs: &Knobs, case: &dyn Display, target: &Target) -> Result<LaunchPlan> {
    let row = row(engine)?;
    let family = family_of(row.id).ok_or_else(|| Error::new(ErrorCode::UnknownEngine, engine, "a family"))?;
    let refused = |d: String| Error::new(ErrorCode::CheckFailed, d, "a case that the row serves").at(case.to_string());
    if let Some(d) = (family.mismatch)(row, facts, knobs, target) {
        return Err(refused(d.to_string()));
    }
    (row.lower)(facts, knobs, target).map_err(|d| refused(d.to_string()))
}

fn option<'a>(args: &'a [String], name: &str) -> Option<&'a str> {
    args.iter().position(|a| a == name).and_then(|i| args.get(i + 1)).map(String::as_str)
}

/// The device, unless there is none that the row runs on; says so.
fn device(cases: usize) -> Option<CudaDevice> {
    match CudaDevice::open(0) {
        Ok(d) if matches!(d.target(), Target::Cuda { cc: 90, .. }) => Some(d),
        Ok(d) => {
            println!("{cases} cases lower; NOT RUN: {} is no Hopper GPU", d.name());
            None
        }
        Err(e) => {
            println!("{cases} cases lower; NOT RUN, no GPU: {e}");
            None
        }
    }
}

impl<C: Display + Sync> Suite<C> {
    /// Does what the arguments say; whether nothing failed.
    fn work(&self, args: &[String]) -> Result<bool> {
        let list = (self.all)();
        let verb = args.first().map_or("", String::as_str);
        let hopper = Target::describe(90).ok_or_else(|| Error::new(ErrorCode::CheckFailed, "90", "a described device"))?;
        let seed = option(args, "--seed").and_then(|s| s.parse().ok()).unwrap_or(self.seed);
        if verb == "list" {
            list.iter()
                .enumerate()
                .for_each(|(i, (name, c))| println!("{i} {name}{}{c}", if name.is_empty() { "" } else { ": " }));
            return Ok(true);
        }
        let facts: Vec<Facts> = list.iter().map(|(_, c)| (self.facts)(c)).collect();
        let bare = (self.bare)(&row(self.engine)?.caps, &facts);
        if !bare.is_empty() {
            let given = format!("no case for {}", bare.join(", "));
            return Err(Error::new(ErrorCode::CheckFailed, given, "a case for all that the row claims (S6)"));
        }
        let mut plans = Vec::new();
        for ((name, case), facts) in list.iter().zip(&facts) {
            plans.push(lower(self.engine, facts, &(self.knobs)(case), case, &hopper).map_err(|e| e.at(name.clone()))?);
        }
        if verb == "compile" {
            for case in (self.samples)() {
                plans.push(lower(self.engine, &(self.facts)(&case), &(self.knobs)(&case), &case, &hopper)?);
            }
            let bundle = compile_bundle(&["sm_90a"], &plans.iter().collect::<Vec<_>>())?;
            let file = args.get(1).map_or("cases.bundle", String::as_str);
            bundle.save(file.as_ref())?;
            println!("{} kernels in {file}", bundle.kernels().count());
            return Ok(true);
        }
        let Some(device) = device(list.len()) else { return Ok(true) };
        if let Some(file) = option(args, "--bundle") {
            Bundle::load(file.as_ref())?.install();
        }
        let number = |i: usize| args.get(i).and_then(|s| s.parse().ok());
        let chosen: Vec<usize> = match verb {
            "all" => (0..list.len()).collect(),
            "specials" => Vec::new(),
            "one" => (1..args.len()).filter_map(number).filter(|&i| i < list.len()).collect(),
            "cases" => (number(1).unwrap_or(0)..number(2).unwrap_or(list.len()).min(list.len())).collect(),
            _ => (0..list.len()).step_by(10).collect(),
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let workers = option(args, "--workers").and_then(|n| n.parse().ok()).unwrap_or(cores.div_ceil(2)).clamp(1, 8);
        let gpu = Gpu::new(device)?;
        let (mut results, mut tally) = (Vec::new(), Tally::default());
        for (i, verdict) in self.verdicts(&gpu.device, &list, &chosen, seed, workers)? {
            tally.add(&verdict);
            results.push((evidence::features(&facts[i]), verdict));
        }
        let word = args.get(1).filter(|w| verb == "specials" && !w.starts_with("--"));
        let wanted = |name: &str| matches!(verb, "all" | "specials") && word.is_none_or(|w| name.contains(w.as_str()));
        for (name, special) in self.specials.iter().filter(|(name, _)| wanted(name)) {
            let verdict = self.verdict(special(&gpu, seed), &format!("special '{name}', seed {seed}"));
            println!("special '{name}': {verdict:?}");
            tally.add(&verdict);
            results.push((vec!["special".into()], verdict));
        }
        println!(
            "{}: {} passed, {} failed, {} skipped, worst relative error {:.2e}, seed {seed}",
            self.name, tally.passed, tally.failed, tally.skipped, tally.worst
        );
        if let Some(folder) = option(args, "--evidence") {
            let list: Vec<_> = results.iter().map(|(f, v)| (self.engine, f.clone(), v)).collect();
            let records = evidence::records(&gpu.device, self.name, seed, &list)?;
            let file = format!("{folder}/{}-{}.json", evidence::short_name(gpu.device.name()), self.name);
            std::fs::write(&file, format!("{records:#}\n"))
                .map_err(|e| Error::new(ErrorCode::CheckFailed, format!("{file}: {e}"), "a file that can be written"))?;
            println!("wrote {file}");
        }
        Ok(tally.failed == 0)
    }

    /// Cases by number with their verdicts, in the order of their numbers. Most of a case is the oracle's work on the host: several run at once.
    fn verdicts(
        &self,
        device: &CudaDevice,
        list: &[(String, C)],
        chosen: &[usize],
        seed: u64,
        workers: usize,
    ) -> Result<Vec<(usize, Verdict)>> {
        let next = AtomicUsize::new(0);
        let work = || -> Result<Vec<(usize, Verdict)>> {
            let (gpu, mut done) = (Gpu::new(device.clone())?, Vec::new());
            while let Some(&i) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                let (name, case) = &list[i];
                let result = (self.case)(&gpu, case, seed ^ (i as u64) << 20);
                done.push((i, self.verdict(result, &format!("case {i} {name} ({case}), seed {seed}"))));
            }
            Ok(done)
        };
        let mut all = std::thread::scope(|s| {
            let threads: Vec<_> = (0..workers).map(|_| s.spawn(work)).collect();
            let stopped = || Error::new(ErrorCode::CheckFailed, "a worker stopped", "verdicts");
            threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(stopped()))).collect::<Result<Vec<_>>>()
        })?
        .concat();
        all.sort_by_key(|(i, _)| *i);
        Ok(all)
    }

    fn verdict(&self, result: Result<f64>, what: &str) -> Verdict {
        match result {
            Ok(error) => Verdict::Passed(error),
            Err(e) if e.help == "skip" => Verdict::Skipped(e.given.clone()),
            Err(e) => {
                println!("FAILED {what}: {e}");
                Verdict::Failed(e.to_string())
            }
        }
    }

    /// The program: exit code 0 when nothing failed, 1 otherwise.
    pub fn main(&self) {
        let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--nocapture" && a != "--test-threads").collect();
        match self.work(&args) {
            Ok(true) => {}
            Ok(false) => std::process::exit(1),
            Err(e) => {
                eprintln!("{e}");
                std::process::exit(1);
            }
        }
    }
}
