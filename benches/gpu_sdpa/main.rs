//! The backward on a GPU beside its peers: event-timed, L2 overwritten before each run, peers in the same command.
//!
//! ```text
//! gpu_sdpa [--only SUBSTRING] [--peers benches/peers_sdpa.py] [--python python3] [--out DIR] [--host]
//! ```
//! `--peers` runs the script with the same cases on the same device; `--out` writes DIR/<gpu>-sdpa_bwd.json; `--host` measures host costs
//! alone. Without a GPU it says so and exits with 0.

mod cases;
mod device;
mod host;

use cases::Case;
use device::{stream, Buffers, Gpu};
use frostgraph::engines::{row_by_name, Knob};
use frostgraph::plan::{BuildOptions, Plan};
use frostgraph::runtime::CudaDevice;
use frostgraph::{Device, Error, ErrorCode, Result};
use serde_json::{json, Map, Value};
use std::io::Write;
use std::path::PathBuf;

const ENGINE: &str = "sdpa_bwd_sm120";

#[derive(Default)]
struct Args {
    words: Vec<String>,
    only: Option<String>,
    peers: Option<PathBuf>,
    python: Option<String>,
    out: Option<PathBuf>,
    host: bool,
}

fn parse() -> Args {
    let mut args = Args::default();
    let mut given = std::env::args().skip(1);
    while let Some(a) = given.next() {
        match a.as_str() {
            "--only" => args.only = given.next(),
            "--peers" => args.peers = given.next().map(Into::into),
            "--python" => args.python = given.next(),
            "--out" => args.out = given.next().map(Into::into),
            "--host" => args.host = true,
            // `cargo bench` hands its own flags to every bench binary.
            flag if flag.starts_with('-') => {}
            word => args.words.push(word.to_owned()),
        }
    }
    args
}

/// Tiles that fit the SM120 line's shared memory, by padded d_qk (the specification's table).
fn sm120_tiles(d_qk: i64) -> (i64, i64) {
    match d_qk {
        ..=32 => (128, 64),
        33..=64 => (64, 128),
        65..=128 => (64, 64),
        _ => (32, 64),
    }
}

/// Modes of one case: name and plan.
fn modes(case: &Case, device: &Device) -> Result<Vec<(&'static str, Plan)>> {
    let mut out = Vec::new();
    for deterministic in [false, true] {
        let built = case.graph(deterministic)?.build_with(device, &BuildOptions::all_engines())?;
        let ours: Vec<Plan> = built.plans().filter(|p| p.entries().all(|e| e.row.name == ENGINE)).collect();
        let best = ours.first().cloned();
        let (m, n) = sm120_tiles(case.d_qk);
        let sm120 = ours
            .into_iter()
            .find(|p| p.entries().all(|e| e.knobs.get(Knob::TileM) == Some(m) && e.knobs.get(Knob::TileN) == Some(n)));
        let names =
            if deterministic { ["deterministic", "deterministic_sm120_tiles"] } else { ["default", "default_sm120_tiles"] };
        let same = best.as_ref().map(ToString::to_string) == sm120.as_ref().map(ToString::to_string);
        out.extend(best.map(|p| (names[0], p)));
        if !same {
            out.extend(sm120.map(|p| (names[1], p)));
        }
    }
    if out.is_empty() {
        return Err(Error::new(ErrorCode::NoPlan, case.name(), ENGINE));
    }
    Ok(out)
}

fn measure(gpu: &Gpu, case: &Case, plan: &Plan) -> Result<Value> {
    let exe = plan.compile()?;
    let buffers = Buffers::new(gpu, case, &exe, "Stats")?;
    let (mut bindings, mut workspace, s) = (buffers.bindings(), buffers.workspace(), stream(gpu));
    let ms = gpu.median_ms(|| exe.execute(&s, &mut bindings, &mut workspace))?;
    Ok(
        json!({ "plan": plan.to_string(), "bwd_ms": ms, "tflops": case.flops() / ms / 1e9, "workspace_bytes": exe.workspace_bytes() }),
    )
}

/// The peers' lines, from the script.
fn peers(args: &Args, cases: &[Case]) -> Result<Vec<Value>> {
    let Some(script) = &args.peers else { return Ok(Vec::new()) };
    let fail =
        |what: String| Error::new(ErrorCode::FileRead, what, "a script that measures the peers").at(script.display().to_string());
    let mut child = std::process::Command::new(args.python.as_deref().unwrap_or("python3"))
        .arg(script)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .map_err(|e| fail(e.to_string()))?;
    let list = Value::Array(cases.iter().map(Case::json).collect()).to_string();
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(list.as_bytes()).map_err(|e| fail(e.to_string()))?;
    }
    let out = child.wait_with_output().map_err(|e| fail(e.to_string()))?;
    if !out.status.success() {
        return Err(fail(format!("{}", out.status)));
    }
    Ok(String::from_utf8_lossy(&out.stdout).lines().filter_map(|l| serde_json::from_str(l).ok()).collect())
}

/// `ours / peer` throughput of every pair.
fn join(case: &Case, ours: &Map<String, Value>, peers: &[Value]) -> Value {
    let mut of_peers = Map::new();
    let mut ratios = Map::new();
    for p in peers.iter().filter(|p| p["case"] == case.name()) {
        let Some(name) = p["peer"].as_str() else { continue };
        let Some(ms) = p["bwd_ms"].as_f64() else {
            of_peers.insert(name.into(), json!({ "error": p["error"] }));
            continue;
        };
        of_peers.insert(name.into(), json!({ "bwd_ms": ms, "tflops": case.flops() / ms / 1e9 }));
        for (mode, result) in ours {
            if let Some(mine) = result["bwd_ms"].as_f64() {
                ratios.insert(format!("{mode}/{name}"), json!(ms / mine));
            }
        }
    }
    json!({ "case": case.name(), "ours": ours, "peers": of_peers, "throughput_ratio": ratios })
}

fn table_row(case: &Value) -> String {
    let mut row = format!("{:<40}", case["case"].as_str().unwrap_or_default());
    for (mode, r) in case["ours"].as_object().into_iter().flatten() {
        match r["bwd_ms"].as_f64() {
            Some(ms) => row += &format!(" | {mode} {ms:.3} ms {:.0} TF/s", r["tflops"].as_f64().unwrap_or(0.0)),
            None => row += &format!(" | {mode} {}", r["error"].as_str().unwrap_or("failed")),
        }
    }
    for (pair, r) in case["throughput_ratio"].as_object().into_iter().flatten() {
        row += &format!(" | {pair} {:.2}x", r.as_f64().unwrap_or(0.0));
    }
    row
}

fn go(args: &Args) -> Result<()> {
    if args.words.first().is_some_and(|w| w == "warm-child") {
        return host::warm_child();
    }
    if CudaDevice::count().unwrap_or(0) == 0 {
        println!("SKIPPED, NOT MEASURED: no CUDA device");
        return Ok(());
    }
    let gpu = Gpu::open()?;
    let device = Device::cuda(0)?;
    let costs = json!({ "launches": host::launches(&gpu, &device)?, "cold_compile": host::cold(&gpu.device, &device)?, "warm_start": host::warm()? });
    println!("{}", serde_json::to_string_pretty(&costs).unwrap_or_default());
    if args.host {
        return Ok(());
    }
    let wanted = |c: &&Case| args.only.as_ref().is_none_or(|o| c.name().contains(o.as_str()));
    let cases: Vec<Case> = cases::ALL.iter().filter(wanted).copied().collect();
    let mut ours = Vec::new();
    for case in &cases {
        let mut of_case = Map::new();
        for (mode, plan) in modes(case, &device)? {
            // One case that does not fit this device's memory is a result, not the end.
            let result =
                measure(&gpu, case, &plan).unwrap_or_else(|e| json!({ "plan": plan.to_string(), "error": e.to_string() }));
            of_case.insert(mode.into(), result);
        }
        println!("{}", table_row(&json!({ "case": case.name(), "ours": of_case })));
        ours.push(of_case);
    }
    let (name, arch, driver) = (gpu.device.name().to_owned(), gpu.device.arch(), gpu.device.driver_version());
    // The peers get the device to themselves.
    drop(gpu);
    let peers = peers(args, &cases)?;
    let joined: Vec<Value> = cases.iter().zip(&ours).map(|(c, o)| join(c, o, &peers)).collect();
    println!("\nthroughput beside the peers of this run");
    joined.iter().for_each(|c| println!("{}", table_row(c)));
    let Some(dir) = &args.out else { return Ok(()) };
    let row = row_by_name(ENGINE).ok_or_else(|| Error::new(ErrorCode::UnknownEngine, ENGINE, "a row of MANIFEST"))?;
    let digest =
        frostgraph_kernels::digest(row.sources).map_err(|e| Error::new(ErrorCode::Nvrtc, e.to_string(), "embedded sources"))?;
    let about: Vec<&Value> = peers.iter().filter(|p| p.get("peer").is_none()).collect();
    let result = json!({
        "suite": "sdpa_bwd", "engine": ENGINE, "gpu": name, "arch": arch, "driver": driver, "kernel_digest": digest, "peers": about,
        "counting": "2*B*H*S*S*(3*d_qk+2*d_v), halved under a causal mask, the exact band under a window", "host": costs, "cases": joined,
    });
    let short: String = name.rsplit(' ').next().unwrap_or("gpu").to_ascii_lowercase();
    let path = dir.join(format!("{short}-sdpa_bwd.json"));
    let text = serde_json::to_string_pretty(&result).unwrap_or_default() + "\n";
    std::fs::create_dir_all(dir).and_then(|()| std::fs::write(&path, text)).map_err(|e| {
        Error::new(ErrorCode::FileWrite, e.to_string(), "a folder that can be written").at(path.display().to_string())
    })?;
    println!("results: {}", path.display());
    Ok(())
}

fn main() {
    if let Err(e) = go(&parse()) {
        eprintln!("{e}");
        std::process::exit(1);
    }
}
