//! Attention on a GPU beside its peers: event-timed, L2 overwritten before each run, peers in the same command.
//!
//! ```text
//! gpu_sdpa [--suite sdpa_bwd|sdpa_fwd|nvfp4_qat] [--only SUBSTRING,..] [--peers benches/peers_sdpa.py] [--python python3] [--out DIR]
//!          [--host | --no-host] [--sweep] [--bundle FILE]
//! ```
//! Without `--suite` the backward runs, then the forward, then NVFP4 QAT. `--peers` runs the script with the same cases on the same device;
//! `--out` writes DIR/<gpu>-<suite>.json; `--host` measures host costs alone and `--no-host` leaves them out; `--sweep` times the forward's
//! other plans too; `--bundle` compiles the kernels of both attention suites for an H200 into FILE and ends. Without a GPU it says so and
//! exits with 0.

mod backward;
mod cases;
mod decode;
mod device;
mod forward;
mod host;
mod peers;
mod prefill;
mod qat;

use device::Gpu;
use frostgraph::engines::row_by_name;
use frostgraph::plan::Plan;
use frostgraph::runtime::{compile_bundle, CudaDevice};
use frostgraph::{Device, Error, ErrorCode, Result};
use serde_json::{json, Map, Value};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

#[derive(Default)]
pub(crate) struct Args {
    words: Vec<String>,
    suite: Option<String>,
    only: Option<String>,
    pub(crate) peers: Option<PathBuf>,
    pub(crate) python: Option<String>,
    out: Option<PathBuf>,
    bundle: Option<PathBuf>,
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
                "--peers" => args.peers = given.next().map(Into::into),
                "--python" => args.python = given.next(),
                "--out" => args.out = given.next().map(Into::into),
                "--bundle" => args.bundle = given.next().map(Into::into),
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

    fn runs(&self, suite: &str) -> bool {
        self.suite.as_ref().is_none_or(|s| s == suite)
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
}

/// The rows that ran, from the plans of the joined cases.
pub(crate) fn rows_of<'a>(cases: impl IntoIterator<Item = &'a Value>) -> BTreeSet<String> {
    let modes = cases.into_iter().flat_map(|c| c["ours"].as_object().into_iter().flatten());
    modes.filter_map(|(_, m)| m["plan"].as_str()).filter_map(|p| p.split('[').next()).map(str::to_owned).collect()
}

impl Results {
    fn save(mut self, dir: &Path) -> Result<()> {
        let mut digests = Map::new();
        for engine in &self.engines {
            let row =
                row_by_name(engine).ok_or_else(|| Error::new(ErrorCode::UnknownEngine, engine.clone(), "a row of MANIFEST"))?;
            let digest = frostgraph_kernels::digest(row.sources)
                .map_err(|e| Error::new(ErrorCode::Nvrtc, e.to_string(), "embedded sources"))?;
            digests.insert(engine.clone(), json!(digest));
        }
        let Machine { name, arch, driver } = self.machine;
        for (key, value) in [
            ("suite", json!(self.suite)),
            ("engines", Value::Object(digests)),
            ("gpu", json!(name)),
            ("arch", json!(arch)),
            ("driver", json!(driver)),
        ] {
            self.body[key] = value;
        }
        let short: String = name.rsplit(' ').next().unwrap_or("gpu").to_ascii_lowercase();
        let path = dir.join(format!("{short}-{}.json", self.suite));
        let text = serde_json::to_string_pretty(&self.body).unwrap_or_default() + "\n";
        std::fs::create_dir_all(dir).and_then(|()| std::fs::write(&path, text)).map_err(|e| {
            Error::new(ErrorCode::FileWrite, e.to_string(), "a folder that can be written").at(path.display().to_string())
        })?;
        println!("results: {}", path.display());
        Ok(())
    }
}

/// Compiles what the attention suites run into a bundle, without a GPU.
fn bundle(args: &Args, path: &Path) -> Result<()> {
    let device = Device::describe("sm_90")?;
    let mut plans = Vec::new();
    if args.runs("sdpa_bwd") {
        plans.extend(backward::plans(args, &device)?);
    }
    if args.runs("sdpa_fwd") {
        plans.extend(forward::plans(args, &device)?);
    }
    let lowered: Vec<_> = plans.iter().map(Plan::lower).collect::<Result<_>>()?;
    let launches: Vec<_> = lowered.iter().flat_map(|l| l.nodes.iter().map(|n| &n.launches)).collect();
    let bundle = compile_bundle(&["sm_90a"], &launches)?;
    println!("{} kernels", bundle.kernels().count());
    bundle.save(path)
}

fn go(args: &Args) -> Result<()> {
    match args.words.first().map(String::as_str) {
        Some("warm-child") => return host::warm_child(),
        Some("cold-child") => return host::cold_child(),
        Some(_) | None => {}
    }
    if let Some(path) = &args.bundle {
        return bundle(args, path);
    }
    if CudaDevice::count().unwrap_or(0) == 0 {
        println!("SKIPPED, NOT MEASURED: no CUDA device");
        return Ok(());
    }
    let device = Device::cuda(0)?;
    type Run = fn(&Args, Gpu, &Device) -> Result<Option<Results>>;
    let suites: [(&str, Run); 3] = [("sdpa_bwd", backward::run), ("sdpa_fwd", forward::run), ("nvfp4_qat", qat::run)];
    for (_, run) in suites.iter().filter(|(name, _)| args.runs(name)) {
        if let (Some(results), Some(dir)) = (run(args, Gpu::open()?, &device)?, &args.out) {
            results.save(dir)?;
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
