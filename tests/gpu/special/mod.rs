//! What a case list cannot show: determinism under disturbance, capture and replay, streams, threads, devices, huge strides, faults.
//! The behaviours are here, over any case; each suite lists the ones it is asked for.

pub mod backward;
mod behaviour;
mod codec;
mod faults;
pub mod forward;
mod life;
pub mod qat;

pub use crate::spin::{launch, sm_count, spin, test_kernel, test_plan};
pub use behaviour::{missing, of, Beside, Shows, Special};

use crate::cases::Case;
use crate::problem::prepare;
use crate::run::{ready, Gpu, Ready};
use frostgraph::runtime::CudaStream;
use frostgraph::{Error, ErrorCode, Result};

pub fn failed(given: impl Into<String>, expected: impl Into<String>) -> Error {
    Error::new(ErrorCode::CheckFailed, given, expected)
}

pub fn must(gpu: &Gpu, case: &Case, seed: u64) -> Result<Ready> {
    ready(gpu, case, seed)?.map_err(|why| failed(why, "a plan for this case"))
}

/// One run, compared with the oracle, and nothing else touched.
pub fn once(gpu: &Gpu, case: &Case, seed: u64) -> Result<()> {
    let mut r = must(gpu, case, seed)?;
    let after = r.run(&gpu.stream, 0xff)?;
    r.image.untouched(&after, &r.prepared.owned)?;
    r.judge(&after).map(|_| ())
}

/// 50 runs with equal bits, idle and then beside a stream that takes half of the SMs, or all but one.
pub fn fifty_runs(gpu: &Gpu, cases: &[Case], seed: u64) -> Result<()> {
    let noise = CudaStream::new(&gpu.device)?;
    let sms = sm_count(&gpu.device);
    // For longer than the chain takes. Made once: unloading a program waits for it.
    let hogs = [spin(&gpu.device, sms / 2, 3)?, spin(&gpu.device, sms - 1, 3)?];
    for case in cases {
        let mut r = must(gpu, case, seed)?;
        let first = r.run(&gpu.stream, 0xff)?;
        r.judge(&first)?;
        let first = r.outputs(&first);
        for run in 0..50 {
            if run >= 25 {
                launch(&hogs[run % 2], &noise)?;
            }
            let after = r.run(&gpu.stream, run as u8)?;
            if r.outputs(&after) != first {
                return Err(failed(format!("run {run} of {case} has other bits"), "50 equal runs"));
            }
        }
        noise.synchronize()?;
    }
    Ok(())
}

/// Captures one execution of the first case, then replays it with the data of each case in turn: the geometry is the same, values and
/// lengths are not.
pub fn replays(gpu: &Gpu, cases: &[Case], seed: u64) -> Result<()> {
    let Some(first) = cases.first() else { return Ok(()) };
    let mut r = must(gpu, first, seed)?;
    r.image.upload(0xff)?;
    let graph = gpu.stream.capture(|| r.queue(&gpu.stream))?;
    for (n, next) in cases.iter().enumerate() {
        let facts = frostgraph::engines::Facts::Sdpa(Box::new(r.prepared.facts.clone()));
        r.prepared = prepare(next, &facts, seed + n as u64)?;
        r.case = next.clone();
        for (uid, bytes) in r.prepared.tensors.clone() {
            r.image.replace(uid, &bytes)?;
        }
        graph.launch(&gpu.stream)?;
        gpu.stream.synchronize()?;
        let after = r.image.download()?;
        r.judge(&after).map_err(|e| e.at(format!("replay {n}: {next}")))?;
        r.image.untouched(&after, &r.prepared.owned)?;
    }
    Ok(())
}
