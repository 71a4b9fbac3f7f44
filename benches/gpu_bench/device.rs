//! Buffers with plausible data, and event timing.

use crate::rounds::{alternate, median, Aside, Outcome, Pace, Turn};
use frostgraph::exec::{Bindings, Executable, Operand, Stream, Workspace};
use frostgraph::runtime::{CudaDevice, CudaEvent, CudaStream, DeviceBuffer, DeviceRange};
use frostgraph::{DType, Error, ErrorCode, Result};
use std::sync::OnceLock;
use std::time::Instant;

/// The L2 cache is overwritten so many times before a run, as the peers' scripts do (there it covers a slow caller).
const FLUSHES: usize = 4;
/// Of the plans of one graph beside each other.
const SWEEP: Pace = Pace { rounds: 3, turn: Turn { warm_ms: 4.0, measure_ms: 6.0 }, seldom: &[], aside: Aside::NOBODY };
/// Launches of one turn, as the peers take them.
const LAUNCHES: (f64, f64) = (2.0, 100.0);
/// Launches are waited for in batches so long or up to twice as long, as the peers' are: a warm-up ends at most one batch late.
const BATCH_MS: f64 = 8.0;

pub struct Gpu {
    pub device: CudaDevice,
    pub stream: CudaStream,
    flush: DeviceBuffer,
}

impl Gpu {
    pub fn open() -> Result<Gpu> {
        let device = CudaDevice::open(0)?;
        let stream = CudaStream::new(&device)?;
        let flush = DeviceBuffer::new(&device, 256 << 20)?;
        Ok(Gpu { device, stream, flush })
    }

    /// Puts other bytes into the L2 cache.
    pub fn overwrite_cache(&self, byte: u8) -> Result<()> {
        (0..FLUSHES).try_for_each(|_| self.flush.fill(&self.stream, 0, self.flush.bytes(), byte))
    }

    /// Milliseconds of each of so many runs of `work`, all queued before the first is waited for.
    fn launch(&self, times: usize, work: &mut impl FnMut() -> Result<()>) -> Result<Vec<f64>> {
        let event = || CudaEvent::new(&self.device);
        let mut marks = Vec::new();
        for n in 0..times {
            let (start, stop) = (event()?, event()?);
            self.overwrite_cache(n as u8)?;
            start.record(&self.stream)?;
            work()?;
            stop.record(&self.stream)?;
            marks.push((start, stop));
        }
        self.stream.synchronize()?;
        marks.iter().map(|(start, stop)| stop.ms_since(start).map(f64::from)).collect()
    }

    /// `work` for a while unmeasured, then the median milliseconds of the launches that fill the rest of the turn.
    pub fn turn(&self, turn: Turn, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
        let ms = |since: Instant| since.elapsed().as_secs_f64() * 1e3;
        let (began, mut batch) = (Instant::now(), 1);
        let took = loop {
            let at = Instant::now();
            self.launch(batch, &mut work)?;
            let took = ms(at);
            if ms(began) >= turn.warm_ms {
                break took;
            }
            if took < (turn.warm_ms / 8.0).min(BATCH_MS) {
                batch *= 2;
            }
        };
        let launches = (turn.measure_ms * batch as f64 / took).round().clamp(LAUNCHES.0, LAUNCHES.1);
        let times = self.launch(launches as usize, &mut work)?;
        median(&times).ok_or_else(|| Error::new(ErrorCode::CheckFailed, "no launch", "a time"))
    }

    /// Bytes a second that a large device copy reads and writes together.
    pub fn copy_bandwidth(&self) -> Result<f64> {
        const BYTES: u64 = 2 << 30;
        let (from, to) = (DeviceBuffer::new(&self.device, BYTES)?, DeviceBuffer::new(&self.device, BYTES)?);
        let ms = self.turn(Turn { warm_ms: 60.0, measure_ms: 60.0 }, || to.copy(&self.stream, 0, from.range()))?;
        Ok(2.0 * BYTES as f64 / ms * 1e3)
    }
}

/// What executables of one graph need, on the device.
pub struct Buffers {
    tensors: Vec<(i64, String, DeviceBuffer)>,
    workspace: DeviceBuffer,
}

/// Random normal values.
pub fn normals(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut unit = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) as f64 + 1.0) / (1u64 << 31) as f64
    };
    (0..n).map(|_| ((-2.0 * unit().ln()).sqrt() * (std::f64::consts::TAU * unit()).cos()) as f32).collect()
}

/// A random megabyte of bf16, another one for every operand: the same values from another place on.
fn random_bf16(operand: usize) -> Vec<u8> {
    static VALUES: OnceLock<Vec<u8>> = OnceLock::new();
    let all = VALUES.get_or_init(|| normals(1 << 19, 1).iter().flat_map(|x| half::bf16::from_f32(*x).to_ne_bytes()).collect());
    from_further_on(all, operand)
}

/// The same bytes from another place on, for another operand.
pub fn from_further_on(all: &[u8], operand: usize) -> Vec<u8> {
    let at = operand * 77_776 % all.len();
    [&all[at..], &all[..at]].concat()
}

/// Fills a buffer with copies of `block`.
fn repeat(gpu: &Gpu, buffer: &DeviceBuffer, block: &[u8]) -> Result<()> {
    let mut done = buffer.bytes().min(block.len() as u64);
    buffer.write(0, &block[..done as usize])?;
    while done < buffer.bytes() {
        let take = done.min(buffer.bytes() - done);
        buffer.copy(&gpu.stream, done, DeviceRange { bytes: take, ..buffer.range() })?;
        done += take;
    }
    gpu.stream.synchronize()
}

impl Buffers {
    /// Random bf16 inputs (one random megabyte, repeated); what `given` says for others; outputs and workspace untouched.
    pub fn new(gpu: &Gpu, exe: &Executable, workspace: u64, given: impl Fn(&Operand) -> Option<Vec<u8>>) -> Result<Buffers> {
        let mut tensors = Vec::new();
        for (n, operand) in exe.operands().iter().enumerate() {
            // Packed tensors as well: their sequences have the declared length here.
            let buffer = DeviceBuffer::new(&gpu.device, operand.declared_bytes)?;
            if let Some(block) = given(operand) {
                repeat(gpu, &buffer, &block)?;
            } else if !operand.written && operand.dtype == DType::BF16 {
                repeat(gpu, &buffer, &random_bf16(n))?;
            }
            tensors.push((operand.uid, operand.name.clone(), buffer));
        }
        Ok(Buffers { tensors, workspace: DeviceBuffer::new(&gpu.device, workspace)? })
    }

    pub fn bindings(&self) -> Bindings<'static> {
        let mut b = Bindings::new();
        for (uid, _, buffer) in &self.tensors {
            b.device(*uid, buffer.range().address, buffer.bytes());
        }
        b
    }

    pub fn range(&self, uid: i64) -> Option<DeviceRange> {
        self.tensors.iter().find(|(u, ..)| *u == uid).map(|(.., b)| b.range())
    }

    pub fn named(&self, name: &str) -> Option<&DeviceBuffer> {
        self.tensors.iter().find(|(_, n, _)| n == name).map(|(.., b)| b)
    }

    pub fn scratch(&self) -> DeviceRange {
        self.workspace.range()
    }

    pub fn workspace(&self) -> Workspace<'static> {
        Workspace::device(self.workspace.range().address, self.workspace.bytes())
    }

    /// Milliseconds of one execution, by a turn.
    pub fn turn(&self, gpu: &Gpu, exe: &Executable, turn: Turn) -> Result<f64> {
        let (mut bindings, mut workspace, s) = (self.bindings(), self.workspace(), stream(gpu));
        gpu.turn(turn, || exe.execute(&s, &mut bindings, &mut workspace))
    }

    /// A turn of each executable in each of a few rounds.
    pub fn sweep(&self, gpu: &Gpu, all: &[Executable]) -> Result<Vec<f64>> {
        let outcomes = alternate(&vec![""; all.len()], SWEEP, |n, turn| self.turn(gpu, &all[n], turn).map_err(|e| e.to_string()));
        let time = |o: Outcome| o.ms().ok_or_else(|| Error::new(ErrorCode::CheckFailed, o.error.unwrap_or_default(), "a time"));
        outcomes.into_iter().map(time).collect()
    }
}

pub fn stream(gpu: &Gpu) -> Stream {
    Stream::cuda(gpu.stream.raw())
}
