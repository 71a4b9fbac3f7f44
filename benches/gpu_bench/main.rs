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

mod args;
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
mod results;
mod rounds;
mod variants;

pub(crate) use args::Args;
use args::CROSSOVER;
use device::Gpu;
use frostgraph::plan::Plan;
use frostgraph::runtime::{compile_bundle, CudaDevice};
use frostgraph::{Device, Result};
use job::Job;
pub(crate) use results::{machine, Results};
use serde_json::json;
use std::path::Path;

/// A suite: its name, how it is timed, and its plans one by one.
struct Suite {
    name: &'static str,
    run: fn(&Args, Gpu, &Device) -> Result<Option<Results>>,
    jobs: fn(&Args, &Device) -> Result<Vec<Job>>,
    limits: &'static str,
}

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
    Ok(Results::new(suite.limits, machine(&Gpu::open()?), body).of(engines))
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
    let args = Args::parse(std::env::args().skip(1), &SUITES.map(|s| s.name)).unwrap_or_else(|why| {
        eprintln!("{why}; the head of benches/gpu_bench/main.rs has the command line");
        std::process::exit(2);
    });
    if let Err(e) = go(&args) {
        eprintln!("{e}");
        std::process::exit(1);
    }
}
