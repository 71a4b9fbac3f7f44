//! What a row shows through the library's own path, from a graph file to `execute`: typed errors for misaligned operands and bad workspaces, the
//! caller's stream alone, two threads, two devices, capture, nothing allocated.

use crate::counting::allocations;
use crate::device::{fault, Gpu};
use crate::spin::{launch, spin};
use frostgraph::engines::{row_by_name, Knobs, Uid};
use frostgraph::exec::{Bindings, Executable, Stream, Workspace};
use frostgraph::json::{self, Strictness};
use frostgraph::plan::BuildOptions;
use frostgraph::runtime::{CudaDevice, CudaStream, DeviceBuffer, DeviceRange};
use frostgraph::sample::{check, expected, inputs, outputs, Expectation, HostTensors};
use frostgraph::{Device, Error, ErrorCode, Result};
use std::collections::BTreeMap;

/// A graph file and the row that runs it.
#[derive(Clone, Copy)]
pub struct Subject {
    pub engine: &'static str,
    pub graph: &'static str,
}

/// Its executable, operands on the device, and what the oracle says.
struct Loaded {
    exe: Executable,
    data: HostTensors,
    empty: HostTensors,
    want: Vec<Expectation>,
    buffers: BTreeMap<Uid, DeviceBuffer>,
    workspace: DeviceBuffer,
}

impl Loaded {
    fn new(device: &CudaDevice, ordinal: u32, subject: Subject, seed: u64) -> Result<Loaded> {
        let graph = json::from_str(subject.graph, Strictness::Strict)?.graph;
        let built = graph.build_with(&Device::cuda(ordinal)?, &BuildOptions::all_engines())?;
        let row = row_by_name(subject.engine).ok_or_else(|| fault("no such row"))?;
        let exe = built.create_plan(row.id, &Knobs::NONE)?.compile()?;
        let data = inputs(built.graph(), seed, HostTensors::default())?;
        let want = expected(built.graph(), &data)?;
        let mut buffers = BTreeMap::new();
        for operand in exe.operands() {
            let buffer = DeviceBuffer::new(device, operand.bytes)?;
            if let Some(bytes) = data.bytes(operand.uid) {
                buffer.write(0, &bytes[..operand.bytes as usize])?;
            }
            buffers.insert(operand.uid, buffer);
        }
        let workspace = DeviceBuffer::new(device, exe.workspace_bytes().max(1))?;
        let empty = outputs(built.graph(), &data)?;
        Ok(Loaded { exe, data, empty, want, buffers, workspace })
    }

    fn bindings(&self) -> Bindings<'static> {
        let mut b = Bindings::new();
        for (uid, buffer) in &self.buffers {
            b.device(*uid, buffer.range().address, buffer.bytes());
        }
        b
    }

    fn scratch(&self) -> Workspace<'static> {
        Workspace::device(self.workspace.range().address, self.exe.workspace_bytes())
    }

    fn queue(&self, stream: &CudaStream) -> Result<()> {
        self.exe.execute(&Stream::cuda(stream.raw()), &mut self.bindings(), &mut self.scratch())
    }

    /// Outputs of queued work, each within the tolerance of its type.
    fn judge(&self, stream: &CudaStream) -> Result<HostTensors> {
        stream.synchronize()?;
        let mut results = self.empty.clone();
        for (uid, tensor) in &mut results.0 {
            self.buffers[uid].read(0, tensor.bytes_mut())?;
        }
        let compared = check(&self.want, &self.data, &results)?;
        match compared.iter().find(|c| !c.passed()) {
            Some(c) => Err(fault(format!("{} is off by {:.2e}, allowed {:.2e}", c.name, c.error, c.tolerance))),
            None if compared.is_empty() => Err(fault("no output was judged")),
            None => Ok(results),
        }
    }

    fn run(&self, stream: &CudaStream) -> Result<HostTensors> {
        self.queue(stream)?;
        self.judge(stream)
    }
}

fn expect(result: Result<()>, code: ErrorCode, what: &str) -> Result<()> {
    match result {
        Err(e) if e.code == code => Ok(()),
        Err(e) => Err(fault(format!("{what}: {e} instead of {}", code.code()))),
        Ok(()) => Err(fault(format!("{what} was accepted"))),
    }
}

/// Every operand a few bytes past a multiple of 16 (report 45).
pub fn misaligned(gpu: &Gpu, subject: Subject, seed: u64) -> Result<f64> {
    let l = Loaded::new(&gpu.device, 0, subject, seed)?;
    for operand in l.exe.operands() {
        for off in [1, 4, 8] {
            let mut b = l.bindings();
            b.device(operand.uid, l.buffers[&operand.uid].range().address + off, operand.bytes);
            let result = l.exe.execute(&Stream::cuda(gpu.stream.raw()), &mut b, &mut l.scratch());
            expect(result, ErrorCode::BufferAlignment, &format!("{} off by {off}", operand.name))?;
        }
    }
    l.run(&gpu.stream).map(|_| 0.0)
}

/// Workspaces that are too small, absent, misaligned, or over an operand (report 125).
pub fn workspace(gpu: &Gpu, subject: Subject, seed: u64) -> Result<f64> {
    let l = Loaded::new(&gpu.device, 0, subject, seed)?;
    let (address, need) = (l.workspace.range().address, l.exe.workspace_bytes());
    let over = l.buffers.values().max_by_key(|b| b.bytes()).ok_or_else(|| fault("no operands"))?.range().address;
    if need > 0 {
        for (mut w, code, what) in [
            (Workspace::device(address, need - 1), ErrorCode::Workspace, "one byte too few"),
            (Workspace::none(), ErrorCode::Workspace, "no workspace"),
            (Workspace::device(address + 1, need), ErrorCode::Workspace, "a base misaligned by one"),
            (Workspace::device(over, need), ErrorCode::BufferOverlap, "a workspace over an operand"),
        ] {
            expect(l.exe.execute(&Stream::cuda(gpu.stream.raw()), &mut l.bindings(), &mut w), code, what)?;
        }
    }
    l.run(&gpu.stream).map(|_| 0.0)
}

/// Busy streams are not waited for (report 126).
pub fn streams(gpu: &Gpu, subject: Subject, seed: u64) -> Result<f64> {
    let l = Loaded::new(&gpu.device, 0, subject, seed)?;
    l.run(&gpu.stream)?;
    let other = CudaStream::new(&gpu.device)?;
    let busy = spin(&gpu.device, 1, 400)?;
    busy.execute(0, &|_| None, DeviceRange::default())?;
    launch(&busy, &other)?;
    let start = std::time::Instant::now();
    l.queue(&gpu.stream)?;
    gpu.stream.synchronize()?;
    let took = start.elapsed();
    other.synchronize()?;
    if took.as_millis() > 200 {
        return Err(fault(format!("an execution took {took:?} beside busy streams")));
    }
    l.judge(&gpu.stream).map(|_| 0.0)
}

/// Four threads, each with operands and a stream of its own, run one executable.
pub fn threads(gpu: &Gpu, subject: Subject, seed: u64) -> Result<f64> {
    let first = Loaded::new(&gpu.device, 0, subject, seed)?;
    let worker = |t: u64| -> Result<()> {
        let (stream, mine) = (CudaStream::new(&gpu.device)?, Loaded::new(&gpu.device, 0, subject, seed + t)?);
        for _ in 0..20 {
            first.exe.execute(&Stream::cuda(stream.raw()), &mut mine.bindings(), &mut mine.scratch())?;
            mine.judge(&stream)?;
        }
        Ok(())
    };
    std::thread::scope(|s| {
        let all: Vec<_> = (1..5).map(|t| s.spawn(move || worker(t))).collect();
        all.into_iter().try_for_each(|h| h.join().unwrap_or_else(|_| Err(fault("a thread panicked"))))
    })?;
    Ok(0.0)
}

/// Host allocations of 20 executions: none (I5).
pub fn allocates_nothing(gpu: &Gpu, subject: Subject, seed: u64) -> Result<f64> {
    let l = Loaded::new(&gpu.device, 0, subject, seed)?;
    l.run(&gpu.stream)?;
    let (mut bindings, mut scratch, stream) = (l.bindings(), l.scratch(), Stream::cuda(gpu.stream.raw()));
    let before = allocations();
    for _ in 0..20 {
        l.exe.execute(&stream, &mut bindings, &mut scratch)?;
    }
    let n = allocations() - before;
    l.judge(&gpu.stream)?;
    if n == 0 {
        Ok(0.0)
    } else {
        Err(fault(format!("{n} allocations in 20 executions")))
    }
}

/// The first execution of an executable is recorded, run eagerly, then replayed (report 136).
pub fn first_in_capture(gpu: &Gpu, subject: Subject, seed: u64) -> Result<f64> {
    let l = Loaded::new(&gpu.device, 0, subject, seed)?;
    let graph = gpu.stream.capture(|| l.queue(&gpu.stream))?;
    l.run(&gpu.stream)?;
    for (uid, tensor) in &l.empty.0 {
        l.buffers[uid].fill(&gpu.stream, 0, tensor.bytes().len() as u64, 0xff)?;
    }
    graph.launch(&gpu.stream)?;
    l.judge(&gpu.stream).map(|_| 0.0)
}

/// Device 0, device 1, device 0 in one process, then both at once (reports 113, 128); skipped where there is one device.
pub fn devices(gpu: &Gpu, subject: Subject, seed: u64) -> Result<f64> {
    if CudaDevice::count()? < 2 {
        return Err(Error::new(ErrorCode::CheckFailed, "one device", "two devices").help("skip"));
    }
    let other = Gpu::new(CudaDevice::open(1)?)?;
    let on = |g: &Gpu, ordinal: u32, seed: u64| Loaded::new(&g.device, ordinal, subject, seed)?.run(&g.stream);
    for (g, ordinal) in [(gpu, 0), (&other, 1), (gpu, 0)] {
        on(g, ordinal, seed)?;
    }
    let run = |g: &Gpu, ordinal: u32| (1..6).try_for_each(|n| on(g, ordinal, seed + n).map(|_| ()));
    let (run, other) = (&run, &other);
    std::thread::scope(|s| {
        let (a, b) = (s.spawn(move || run(gpu, 0)), s.spawn(move || run(other, 1)));
        [a, b].into_iter().try_for_each(|h| h.join().unwrap_or_else(|_| Err(fault("a thread panicked"))))
    })?;
    Ok(0.0)
}
