//! Our rows on a GPU beside their peers: both take turns within every case (see `rounds`), event-timed, L2 overwritten before each launch.
//!
//! ```text
//! gpu_bench [--suite sdpa_bwd|sdpa_fwd|nvfp4_qat|grouped_gemm|crossover] [--only SUBSTRING,..] [--modes MODE,..] [--peers benches]
//!           [--python python3] [--rounds N] [--warm MS] [--measure MS] [--out DIR] [--host | --no-host] [--sweep]
//!           [--bundle FILE] [--once | --limits FILE | --metrics]
//! ```
//! Without `--suite` every suite but `crossover` runs. `--peers` is the folder with the peers' scripts (see `peers`); `--modes` keeps the
//! plans of these names; `--rounds`, `--warm` and `--measure` change how a case is timed; `--out` writes DIR/<gpu>-<suite>.json, anew after
//! every case; `--host` measures host costs alone and `--no-host` leaves them out; `--sweep` times the forward's other plans too; `--bundle`
//! compiles the kernels of the suites for an H200 into FILE and ends; `--once` launches every plan once and `--limits` reads what a profiler
//! counted then (see `limits`). Without a GPU it says so and exits with 0.

mod backward;
mod blocks;
mod cases;
mod crossover;
mod decode;
mod device;
mod forward;
mod grouped;
mod host;
mod job;
mod limits;
mod paces;
mod peers;
mod plain;
mod prefill;
mod qat;
mod rounds;
mod variants;

use device::Gpu;
use frostgraph::engines::row_by_name;
use frostgraph::plan::Plan;
use frostgraph::runtime::{compile_bundle, CudaDevice};
use frostgraph::{Device, Error, ErrorCode, Result};
use job::Job;
use peers::Peers;
use rounds::{Pace, Turn};
use serde_json::{json, Map, Value};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(Default)]
pub(crate) struct Args {
    words: Vec<String>,
    suite: Option<String>,
    only: Option<String>,
    modes: Option<String>,
    pub(crate) peers: Option<PathBuf>,
    pub(crate) python: Option<String>,
    out: Option<PathBuf>,
    bundle: Option<PathBuf>,
    limits: Option<PathBuf>,
    rounds: Option<usize>,
    warm: Option<f64>,
    measure: Option<f64>,
    once: bool,
    metrics: bool,
    pub(crate) host: bool,
    pub(crate) no_host: bool,
    pub(crate) sweep: bool,
}

impl Args {
    fn parse() -> Args {
        let mut args = Args::default();
        let mut given = std::env::args().skip(1);
        while let Some(a) = given.next() {
            match a.as_str() {
                "--suite" => args.suite = given.next(),
                "--only" => args.only = given.next(),
                "--modes" => args.modes = given.next(),
                "--peers" => args.peers = given.next().map(Into::into),
                "--python" => args.python = given.next(),
                "--out" => args.out = given.next().map(Into::into),
                "--bundle" => args.bundle = given.next().map(Into::into),
                "--limits" => args.limits = given.next().map(Into::into),
                "--rounds" => args.rounds = given.next().and_then(|n| n.parse().ok()),
                "--warm" => args.warm = given.next().and_then(|n| n.parse().ok()),
                "--measure" => args.measure = given.next().and_then(|n| n.parse().ok()),
                "--once" => args.once = true,
                "--metrics" => args.metrics = true,
                "--host" => args.host = true,
                "--no-host" => args.no_host = true,
                "--sweep" => args.sweep = true,
                // `cargo bench` hands its own flags to every bench binary.
                flag if flag.starts_with('-') => {}
                word => args.words.push(word.to_owned()),
            }
        }
        args
    }

    pub(crate) fn wants(&self, case: &str) -> bool {
        self.only.as_ref().is_none_or(|o| o.split(',').any(|part| case.contains(part)))
    }

    /// Whether a plan of this name is timed.
    pub(crate) fn wants_mode(&self, mode: &str) -> bool {
        self.modes.as_ref().is_none_or(|m| m.split(',').any(|part| mode == part))
    }

    /// How a case is timed, where the command line says nothing else; turns aside are as long as usual.
    pub(crate) fn pace(&self, usual: Pace) -> Pace {
        let turn =
            Turn { warm_ms: self.warm.unwrap_or(usual.turn.warm_ms), measure_ms: self.measure.unwrap_or(usual.turn.measure_ms) };
        Pace { rounds: self.rounds.unwrap_or(usual.rounds), turn, ..usual }
    }

    /// The scripts with the peers of a suite, by title and words; none without `--peers`.
    pub(crate) fn groups(&self, script: &str, groups: &[(&str, &[&str])]) -> Vec<Peers> {
        let Some(folder) = &self.peers else { return Vec::new() };
        let seconds = std::env::var("FROSTGRAPH_PEER_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(60.0);
        let start = |(title, words): &(&str, &[&str])| {
            let python = self.python.as_deref().unwrap_or("python3");
            let command = [python.into(), folder.join(script).into_os_string()].into_iter();
            Peers::new(title, command.chain(words.iter().map(Into::into)).collect(), Duration::from_secs_f64(seconds))
        };
        groups.iter().map(start).collect()
    }

    fn runs(&self, suite: &str) -> bool {
        self.suite.as_ref().map_or(suite != CROSSOVER, |s| s == suite)
    }
}

/// Where a suite ran.
pub(crate) struct Machine {
    name: String,
    arch: String,
    driver: String,
}

pub(crate) fn machine(gpu: &Gpu) -> Machine {
    Machine { name: gpu.device.name().to_owned(), arch: gpu.device.arch(), driver: gpu.device.driver_version() }
}

/// What one suite measured.
pub(crate) struct Results {
    pub(crate) suite: &'static str,
    pub(crate) engines: BTreeSet<String>,
    pub(crate) machine: Machine,
    pub(crate) body: Value,
    began: Instant,
}

/// The rows that ran, from the plans of the cases.
pub(crate) fn rows_of<'a>(cases: impl IntoIterator<Item = &'a Value>) -> BTreeSet<String> {
    let lists = cases.into_iter().flat_map(|c| [&c["ours"], &c["forward"]]);
    let modes = lists.flat_map(|l| l.as_object().into_iter().flatten());
    modes.filter_map(|(_, m)| m["plan"].as_str()).filter_map(|p| p.split('[').next()).map(str::to_owned).collect()
}

impl Results {
    pub(crate) fn new(suite: &'static str, machine: Machine, body: Value) -> Results {
        Results { suite, engines: BTreeSet::new(), machine, body, began: Instant::now() }
    }

    /// Adds a case to a list of the body, and writes what there is so far: a run that is cut off leaves it. The peers tell of themselves after
    /// their first case, when all have started.
    pub(crate) fn add(&mut self, args: &Args, list: &str, case: Value, groups: &mut [Peers]) -> Result<()> {
        if self.body["peers"].is_null() {
            self.body["peers"] = rounds::about(groups);
        }
        println!("    {:.0} s since the start of the suite", self.began.elapsed().as_secs_f64());
        self.push(list, case);
        self.save_in(args)
    }

    /// Adds a case to a list of the body.
    pub(crate) fn push(&mut self, list: &str, case: Value) {
        self.engines.extend(rows_of([&case]));
        if !self.body[list].is_array() {
            self.body[list] = json!([]);
        }
        self.body[list].as_array_mut().into_iter().for_each(|l| l.push(case.clone()));
    }

    /// Writes what there is so far, where the command line names a folder.
    pub(crate) fn save_in(&self, args: &Args) -> Result<()> {
        args.out.as_ref().map_or(Ok(()), |dir| self.save(dir).map(drop))
    }

    fn save(&self, dir: &Path) -> Result<PathBuf> {
        let mut digests = Map::new();
        for engine in &self.engines {
            let row =
                row_by_name(engine).ok_or_else(|| Error::new(ErrorCode::UnknownEngine, engine.clone(), "a row of MANIFEST"))?;
            let digest = frostgraph_kernels::digest(row.sources)
                .map_err(|e| Error::new(ErrorCode::Nvrtc, e.to_string(), "embedded sources"))?;
            digests.insert(engine.clone(), json!(digest));
        }
        let Machine { name, arch, driver } = &self.machine;
        let mut body = self.body.clone();
        for (key, value) in [
            ("suite", json!(self.suite)),
            ("engines", Value::Object(digests)),
            ("gpu", json!(name)),
            ("arch", json!(arch)),
            ("driver", json!(driver)),
        ] {
            body[key] = value;
        }
        let short: String = name.rsplit(' ').next().unwrap_or("gpu").to_ascii_lowercase();
        let path = dir.join(format!("{short}-{}.json", self.suite));
        let text = serde_json::to_string_pretty(&body).unwrap_or_default() + "\n";
        // Whole or not at all: a run may be cut off here, too.
        let part = path.with_extension("part");
        let written = std::fs::create_dir_all(dir).and_then(|()| std::fs::write(&part, text));
        written.and_then(|()| std::fs::rename(&part, &path)).map_err(|e| {
            Error::new(ErrorCode::FileWrite, e.to_string(), "a folder that can be written").at(path.display().to_string())
        })?;
        Ok(path)
    }
}

/// A suite: its name, how it is timed, and its plans one by one.
struct Suite {
    name: &'static str,
    run: fn(&Args, Gpu, &Device) -> Result<Option<Results>>,
    jobs: fn(&Args, &Device) -> Result<Vec<Job>>,
    limits: &'static str,
}

/// Has no peers and is no speed to quote: it runs where it is named.
const CROSSOVER: &str = "crossover";

const SUITES: [Suite; 5] = [
    Suite { name: "sdpa_bwd", run: backward::run, jobs: backward::jobs, limits: "sdpa_bwd_limits" },
    Suite { name: "sdpa_fwd", run: forward::run, jobs: prefill::jobs, limits: "sdpa_fwd_limits" },
    Suite { name: "nvfp4_qat", run: qat::run, jobs: qat::jobs, limits: "nvfp4_qat_limits" },
    Suite { name: "grouped_gemm", run: grouped::run, jobs: grouped::jobs, limits: "grouped_gemm_limits" },
    Suite { name: CROSSOVER, run: crossover::run, jobs: crossover::jobs, limits: "crossover_limits" },
];

/// Compiles what the suites run into a bundle, without a GPU.
fn bundle(args: &Args, path: &Path) -> Result<()> {
    let device = Device::describe("sm_90")?;
    let mut plans = Vec::new();
    for suite in SUITES.iter().filter(|s| args.runs(s.name)) {
        plans.extend((suite.jobs)(args, &device)?.into_iter().map(|j| j.plan));
    }
    if args.runs("sdpa_bwd") {
        plans.push(backward::plan_of(&host::SMALL, &device)?);
    }
    if args.runs("sdpa_fwd") {
        plans.extend(forward::further_plans(args, &device)?);
    }
    let lowered: Vec<_> = plans.iter().map(Plan::lower).collect::<Result<_>>()?;
    let launches: Vec<_> = lowered.iter().flat_map(|l| l.nodes.iter().map(|n| &n.launches)).collect();
    let bundle = compile_bundle(&["sm_90a"], &launches)?;
    println!("{} kernels", bundle.kernels().count());
    bundle.save(path)
}

/// Launches every plan of a suite once.
fn once(args: &Args, suite: &Suite, device: &Device) -> Result<()> {
    let gpu = Gpu::open()?;
    for job in (suite.jobs)(args, device)? {
        println!("{} | {} | {}", job.case, job.mode, job.plan);
        job.once(&gpu)?;
    }
    Ok(())
}

/// A suite's plans with what a profiler counted in [`once`].
fn limits(args: &Args, suite: &Suite, device: &Device, table: &Path) -> Result<Results> {
    let cases = limits::cases(table, &(suite.jobs)(args, device)?)?;
    let engines = cases.iter().filter_map(|c| c["plan"].as_str()?.split('[').next()).map(str::to_owned).collect();
    let body = json!({ "counting": "shares of the peak over the kernel's time, per cent; one launch, clocks not fixed", "cases": cases });
    Ok(Results { engines, ..Results::new(suite.limits, machine(&Gpu::open()?), body) })
}

fn go(args: &Args) -> Result<()> {
    match args.words.first().map(String::as_str) {
        Some("warm-child") => return host::warm_child(),
        Some("cold-child") => return host::cold_child(),
        Some(_) | None => {}
    }
    if args.metrics {
        println!("{}", limits::metrics());
        return Ok(());
    }
    if let Some(path) = &args.bundle {
        return bundle(args, path);
    }
    if CudaDevice::count().unwrap_or(0) == 0 {
        println!("SKIPPED, NOT MEASURED: no CUDA device");
        return Ok(());
    }
    let device = Device::cuda(0)?;
    for suite in SUITES.iter().filter(|s| args.runs(s.name)) {
        let results = match &args.limits {
            _ if args.once => {
                once(args, suite, &device)?;
                None
            }
            Some(table) => Some(limits(args, suite, &device, table)?),
            None => (suite.run)(args, Gpu::open()?, &device)?,
        };
        if let (Some(results), Some(dir)) = (results, &args.out) {
            println!("results: {}", results.save(dir)?.display());
        }
    }
    Ok(())
}

fn main() {
    if let Err(e) = go(&Args::parse()) {
        eprintln!("{e}");
        std::process::exit(1);
    }
}
