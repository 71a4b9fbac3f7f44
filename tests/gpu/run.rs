//! One case on the device: prepare, run, compare, and check that nothing else was touched.

use crate::cases::Case;
use crate::image::Image;
use crate::plan::plan;
use crate::problem::{is_output, judge, prepare, Distance, Prepared};
use frostgraph::exec::{Executable, Stream};
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

/// Compiles and fills a case; `None` for tiles that its shape does not have.
pub fn ready(gpu: &Gpu, case: &Case, seed: u64) -> Result<Option<Ready>> {
    let Some((built, plan)) = plan(case, &gpu.planned)? else { return Ok(None) };
    let exe = plan.compile()?;
    let prepared = prepare(case, built.nodes()[0].facts(), seed)?;
    let image = Image::new(&gpu.device, &prepared.tensors, exe.workspace_bytes())?;
    Ok(Some(Ready { case: case.clone(), exe, prepared, image }))
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
        self.prepared.owned.iter().filter(|(uid, _)| is_output(**uid)).map(own).collect()
    }
}

/// What one case showed.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    Passed {
        error: f64,
    },
    /// The tiles do not exist for this shape.
    Skipped,
}

/// Runs a case twice, with different garbage in the workspace; a deterministic case must give the same bits both times.
pub fn run_case(gpu: &Gpu, case: &Case, seed: u64) -> Result<Outcome> {
    let Some(mut r) = ready(gpu, case, seed)? else { return Ok(Outcome::Skipped) };
    let first = r.run(&gpu.stream, 0xff)?;
    r.image.untouched(&first, &r.prepared.owned)?;
    let error = r.judge(&first)?.frobenius;
    let second = r.run(&gpu.stream, 0x00)?;
    r.judge(&second)?;
    if case.deterministic && r.outputs(&first) != r.outputs(&second) {
        return Err(Error::new(ErrorCode::CheckFailed, "two runs with other bits", "a deterministic plan to repeat its bits"));
    }
    Ok(Outcome::Passed { error })
}
