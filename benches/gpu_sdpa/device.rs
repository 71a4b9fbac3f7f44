//! Buffers with plausible data, and event timing.

use crate::cases::Case;
use frostgraph::exec::{Bindings, Executable, Stream, Workspace};
use frostgraph::runtime::{CudaDevice, CudaEvent, CudaStream, DeviceBuffer};
use frostgraph::{DType, Result};

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

    /// Median milliseconds of `work`, the L2 cache overwritten before each run.
    pub fn median_ms(&self, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
        for _ in 0..3 {
            work()?;
        }
        self.stream.synchronize()?;
        let (start, stop) = (CudaEvent::new(&self.device)?, CudaEvent::new(&self.device)?);
        let mut times: Vec<f64> = Vec::new();
        while (times.iter().sum::<f64>() < 150.0 || times.len() < 5) && times.len() < 100 {
            self.flush.fill(&self.stream, 0, self.flush.bytes(), times.len() as u8)?;
            start.record(&self.stream)?;
            work()?;
            stop.record(&self.stream)?;
            stop.synchronize()?;
            times.push(f64::from(stop.ms_since(&start)?));
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }
}

/// What one executable needs, on the device.
pub struct Buffers {
    tensors: Vec<(i64, DeviceBuffer)>,
    workspace: DeviceBuffer,
}

fn normals(n: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut unit = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) as f64 + 1.0) / (1u64 << 31) as f64
    };
    let mut normal = move || (-2.0 * unit().ln()).sqrt() * (std::f64::consts::TAU * unit()).cos();
    (0..n).flat_map(|_| half::bf16::from_f64(normal()).to_ne_bytes()).collect()
}

impl Buffers {
    /// Random bf16 operands (one random megabyte, repeated), Stats as random scores would have them, outputs and workspace untouched.
    pub fn new(gpu: &Gpu, case: &Case, exe: &Executable, stats: &str) -> Result<Buffers> {
        let mut tensors = Vec::new();
        for (n, operand) in exe.operands().iter().enumerate() {
            let buffer = DeviceBuffer::new(&gpu.device, operand.bytes)?;
            if operand.name == stats {
                // ln of the kept keys plus half the variance of the scores, which is one.
                let row: Vec<f32> = (0..case.s).map(|i| (case.kept(i) as f32).ln() + 0.5).collect();
                let bytes: &[u8] = bytemuck::cast_slice(&row);
                for i in 0..operand.bytes / bytes.len() as u64 {
                    buffer.write(i * bytes.len() as u64, bytes)?;
                }
            } else if !operand.written && operand.dtype == DType::BF16 {
                let block = normals(1 << 19, n as u64 + 1);
                let mut at = 0;
                while at < operand.bytes {
                    let take = (operand.bytes - at).min(block.len() as u64);
                    buffer.write(at, &block[..take as usize])?;
                    at += take;
                }
            }
            tensors.push((operand.uid, buffer));
        }
        Ok(Buffers { tensors, workspace: DeviceBuffer::new(&gpu.device, exe.workspace_bytes())? })
    }

    pub fn bindings(&self) -> Bindings<'static> {
        let mut b = Bindings::new();
        for (uid, buffer) in &self.tensors {
            b.device(*uid, buffer.range().address, buffer.bytes());
        }
        b
    }

    pub fn range(&self, uid: i64) -> Option<frostgraph::runtime::DeviceRange> {
        self.tensors.iter().find(|(u, _)| *u == uid).map(|(_, b)| b.range())
    }

    pub fn scratch(&self) -> frostgraph::runtime::DeviceRange {
        self.workspace.range()
    }

    pub fn workspace(&self) -> Workspace<'static> {
        Workspace::device(self.workspace.range().address, self.workspace.bytes())
    }
}

pub fn stream(gpu: &Gpu) -> Stream {
    Stream::cuda(gpu.stream.raw())
}
