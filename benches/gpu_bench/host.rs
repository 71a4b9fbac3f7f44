//! What the host pays: `execute` beside bare launches, graph launches, a cold compilation, a warm start from the disk cache.

use crate::backward::plan_of;
use crate::cases::Case;
use crate::device::{stream, Buffers, Gpu};
use crate::rounds::median;
use frostgraph::exec::Executable;
use frostgraph::runtime::{CubinCache, CudaDevice, Nvrtc, Program};
use frostgraph::{Device, Error, ErrorCode, Result};
use serde_json::{json, Value};
use std::time::Instant;

/// Launches in flight before the queue is drained: few enough that the driver's queue never fills.
const BATCH: usize = 100;
const ROUNDS: usize = 40;

/// Launches whose device time is far below their host time: three of the backward, one of the forward.
pub const SMALL: Case = Case { b: 1, h_q: 1, h_kv: 1, s: 64, d_qk: 64, d_v: 64, causal: false, window: None };

/// Microseconds a call, median over rounds; the queue is drained between rounds.
fn us(gpu: &Gpu, mut batch: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        gpu.stream.synchronize()?;
        let start = Instant::now();
        batch()?;
        times.push(start.elapsed().as_secs_f64() * 1e6 / BATCH as f64);
    }
    gpu.stream.synchronize()?;
    median(&times).ok_or_else(|| Error::new(ErrorCode::CheckFailed, "no round", "a time"))
}

/// Costs of an executable whose device time is far below its host time.
pub fn launches(gpu: &Gpu, exe: &Executable, buffers: &Buffers) -> Result<Value> {
    let (mut bindings, mut workspace, s) = (buffers.bindings(), buffers.workspace(), stream(gpu));
    let program = exe.program().ok_or_else(|| Error::new(ErrorCode::BadDevice, "a host plan", "a CUDA plan"))?;
    let lookup = |uid| buffers.range(uid);
    let mut bare = program.bare(&lookup, buffers.scratch())?;
    let raw = gpu.stream.raw();
    // Interleaved twice, so that a clock that moves meets both.
    let mut rows = Vec::new();
    for _ in 0..2 {
        let execute = us(gpu, || (0..BATCH).try_for_each(|_| exe.execute(&s, &mut bindings, &mut workspace)))?;
        let direct = us(gpu, || (0..BATCH).try_for_each(|_| program.execute(raw, &lookup, buffers.scratch())))?;
        let floor = us(gpu, || bare.launch(raw, BATCH))?;
        rows.push((execute, direct, floor));
    }
    let best = |f: fn(&(f64, f64, f64)) -> f64| rows.iter().map(f).fold(f64::INFINITY, f64::min);
    let (execute, direct, floor) = (best(|r| r.0), best(|r| r.1), best(|r| r.2));
    let graph = gpu.stream.capture(|| exe.execute(&s, &mut bindings, &mut workspace))?;
    let replay = us(gpu, || (0..BATCH).try_for_each(|_| graph.launch(&gpu.stream)))?;
    Ok(json!({
        "launches": program.launches(), "execute_us": execute, "program_execute_us": direct, "bare_launches_us": floor,
        "execute_over_bare": execute / floor, "graph_launch_us": replay,
    }))
}

/// For a child process: seconds of a cold NVRTC compilation of each kernel of a plan.
pub fn cold_child() -> Result<()> {
    let (device, planned) = (CudaDevice::open(0)?, Device::cuda(0)?);
    let cc = frostgraph::runtime::compile::compute_capability(&device.arch())?;
    let nvrtc = Nvrtc::get(cc)?;
    let mut out = Vec::new();
    for d in [64, 128, 256] {
        let case = Case { d_qk: d, d_v: d, causal: true, ..SMALL };
        for spec in plan_of(&case, &planned)?.kernels()? {
            let start = Instant::now();
            CubinCache::new(None, 0).kernel(&nvrtc, &device.arch(), &spec)?;
            out.push(json!({ "d": d, "kernel": spec.entry, "seconds": start.elapsed().as_secs_f64() }));
        }
    }
    println!("{}", Value::Array(out));
    Ok(())
}

/// The last line of this program run again with these words and variables.
fn child(words: &[&str], variables: &[(&str, &str)]) -> Result<Value> {
    let fail = |what: String| Error::new(ErrorCode::CheckFailed, what, "a child process that reports a result");
    let exe = std::env::current_exe().map_err(|e| fail(e.to_string()))?;
    let mut command = std::process::Command::new(exe);
    // A bundle would be read and checked whole: neither a cold compilation nor a start from the disk cache.
    command.args(words).env_remove("FROSTGRAPH_BUNDLE").envs(variables.iter().copied());
    let out = command.output().map_err(|e| fail(e.to_string()))?;
    serde_json::from_slice(&out.stdout).map_err(|e| fail(format!("{e}: {}", String::from_utf8_lossy(&out.stderr))))
}

/// Runs [`cold_child`] without the cache that NVRTC keeps of its own, in the driver's: with it a kernel takes a tenth of the time.
pub fn cold() -> Result<Value> {
    child(&["cold-child"], &[("CUDA_CACHE_DISABLE", "1")])
}

/// For a child process: milliseconds from an open device to a loaded program, everything in the disk cache.
pub fn warm_child() -> Result<()> {
    let device = CudaDevice::open(0)?;
    let planned = Device::cuda(0)?;
    let lowered = plan_of(&SMALL, &planned)?.lower()?;
    let plans: Vec<_> = lowered.nodes.iter().map(|n| &n.launches).collect();
    // The context exists; the first allocation would otherwise be charged to the load.
    drop(frostgraph::runtime::DeviceBuffer::new(&device, 1)?);
    let start = Instant::now();
    let program = Program::compile(&device, &plans)?;
    println!("{}", json!({ "warm_start_ms": start.elapsed().as_secs_f64() * 1e3, "kernels": program.cubins().len() }));
    Ok(())
}

/// Runs [`warm_child`] three times and takes the median.
pub fn warm() -> Result<Value> {
    let mut times = Vec::new();
    for _ in 0..4 {
        let line = child(&["warm-child"], &[])?;
        let ms = line["warm_start_ms"].as_f64();
        times.push(ms.ok_or_else(|| Error::new(ErrorCode::CheckFailed, line.to_string(), "a time"))?);
    }
    // The first child fills the cache.
    Ok(json!({ "median_ms": median(&times[1..]), "first_ms": times[0] }))
}
