//! One case on the device: prepare, run, compare, and check that nothing else was touched.

use crate::cases::Case;
use crate::image::Image;
use crate::judge::{judge, Distance};
use crate::plan::{plan, Planned};
use crate::problem::{prepare, Prepared};
use frostgraph::engines::Facts;
use frostgraph::exec::{Executable, Stream};
use frostgraph::plan::Plan;
use frostgraph::runtime::{CudaDevice, CudaStream};
use frostgraph::{Device, Error, ErrorCode, Result};
use std::collections::BTreeMap;

/// A device with a stream.
pub struct Gpu {
    pub device: CudaDevice,
    pub planned: Device,
    pub stream: CudaStream,
}

impl Gpu {
    pub fn open(ordinal: u32) -> Result<Gpu> {
        let device = CudaDevice::open(ordinal)?;
        let stream = CudaStream::new(&device)?;
        Ok(Gpu { planned: Device::cuda(ordinal)?, device, stream })
    }
}

/// A case that is ready to run.
pub struct Ready {
    pub case: Case,
    pub exe: Executable,
    pub prepared: Prepared,
    pub image: Image,
}

/// Compiles and fills a case; the engine's reason where it declines.
pub fn ready(gpu: &Gpu, case: &Case, seed: u64) -> Result<std::result::Result<Ready, String>> {
    match plan(case, &gpu.planned)? {
        Planned::Ready(p) => ready_with(gpu, case, &p.1, p.0.nodes()[0].facts(), seed).map(Ok),
        Planned::Declined(why) => Ok(Err(why)),
    }
}

/// As [`ready`] with a plan that the caller chose.
pub fn ready_with(gpu: &Gpu, case: &Case, plan: &Plan, facts: &Facts, seed: u64) -> Result<Ready> {
    let exe = plan.compile()?;
    let prepared = prepare(case, facts, seed)?;
    let image = Image::new(&gpu.device, &prepared.tensors, exe.workspace_bytes())?;
    Ok(Ready { case: case.clone(), exe, prepared, image })
}

impl Ready {
    /// Queues one execution.
    pub fn queue(&self, stream: &CudaStream) -> Result<()> {
        self.exe.execute(&Stream::cuda(stream.raw()), &mut self.image.bindings(), &mut self.image.workspace())
    }

    /// Runs once on freshly poisoned memory and gives what the device then holds.
    pub fn run(&mut self, stream: &CudaStream, workspace_poison: u8) -> Result<Vec<u8>> {
        self.image.upload(workspace_poison)?;
        self.queue(stream)?;
        stream.synchronize()?;
        self.image.download()
    }

    /// Compares every output with the oracle; the worst error of all.
    pub fn judge(&self, after: &[u8]) -> Result<Distance> {
        let mut worst = Distance::default();
        for &uid in self.prepared.owned.keys() {
            let d = judge(&self.case, &self.prepared, uid, self.image.part(after, uid))?;
            worst = Distance { frobenius: worst.frobenius.max(d.frobenius), peak: worst.peak.max(d.peak) };
        }
        Ok(worst)
    }

    /// The outputs' own bytes, for bitwise comparison.
    pub fn outputs(&self, after: &[u8]) -> BTreeMap<i64, Vec<u8>> {
        let own = |(&uid, mask): (&i64, &Vec<bool>)| {
            let bytes = self.image.part(after, uid).iter().zip(mask).filter(|(_, &m)| m).map(|(&b, _)| b);
            (uid, bytes.collect())
        };
        self.prepared.owned.iter().map(own).collect()
    }
}

/// What one case showed.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    Passed {
        error: f64,
    },
    /// The engine's reason.
    Skipped(String),
}

/// Runs a case twice, with different garbage in the workspace; a forward or a deterministic backward must give the same bits both times.
pub fn run_case(gpu: &Gpu, case: &Case, seed: u64) -> Result<Outcome> {
    let mut r = match ready(gpu, case, seed)? {
        Ok(r) => r,
        Err(why) => return Ok(Outcome::Skipped(why)),
    };
    let first = r.run(&gpu.stream, 0xff)?;
    r.image.untouched(&first, &r.prepared.owned)?;
    let error = r.judge(&first)?.frobenius;
    let second = r.run(&gpu.stream, 0x00)?;
    r.judge(&second)?;
    if case.repeats() && r.outputs(&first) != r.outputs(&second) {
        return Err(Error::new(ErrorCode::CheckFailed, "two runs with other bits", "a deterministic plan to repeat its bits"));
    }
    Ok(Outcome::Passed { error })
}
