//! What a case list cannot show: determinism under disturbance, capture and replay, streams, threads, devices, huge strides, faults.

use crate::build::{DQ, K, Q};
use crate::cases::{Case, Lens, MaskKind};
use crate::problem::prepare;
use crate::rng::Rng;
use crate::run::{ready, Gpu, Ready};
use frostgraph::engines::launch::{Arg, Base, KernelSpec, Launch, LaunchPlan, Step, TensorMapSpec};
use frostgraph::exec::{Bindings, Stream, Workspace};
use frostgraph::runtime::{CudaDevice, CudaStream, DeviceBuffer, DeviceRange, Program};
use frostgraph::{DType, Error, ErrorCode, Result};

pub type Special = (&'static str, fn(&Gpu, u64) -> Result<()>);

/// By name; each runs in a process of its own.
pub const ALL: &[Special] = &[
    ("a kernel reads the parameters that the host passes", parameters),
    ("determinism: 50 runs, idle and beside a busy stream", determinism),
    ("capture, replay with other inputs and newly dead rows", capture),
    ("the first execution of a process is inside a capture (report 136)", first_in_capture),
    ("work goes to the caller's stream alone (report 126)", streams),
    ("two threads, one executable", threads),
    ("dropping a program during another one's capture (report 133)", drop_in_capture),
    ("dropping everything after a graph was destroyed (report 131)", drop_after_graph),
    ("device 0, device 1, device 0 (reports 113, 128)", devices),
    ("workspace faults leave the device usable (report 125)", workspace_faults),
    ("misaligned operands are typed errors (report 45)", misaligned),
    ("execute allocates nothing on the host (I5)", allocations),
    ("a faulting kernel: named error, no panic on drop (report 146)", faulting),
    ("batch 65536 (report 28)", many_batches),
    ("physical batch stride above 2^32 bytes (rule S7)", huge_stride),
    ("batch offset above 2^32 elements (rule S7)", huge_offset),
];

fn failed(given: impl Into<String>, expected: impl Into<String>) -> Error {
    Error::new(ErrorCode::CheckFailed, given, expected)
}

fn must(gpu: &Gpu, case: &Case, seed: u64) -> Result<Ready> {
    ready(gpu, case, seed)?.ok_or_else(|| failed("no plan", "a plan for this case"))
}

/// A test kernel with these parameters.
fn test_plan(entry: &'static str, grid: u32, smem: u32, args: Vec<Arg>) -> LaunchPlan {
    let launch = Launch {
        name: entry,
        kernel: KernelSpec { source: "test/spin.cu", entry, defines: Vec::new() },
        grid: [grid, 1, 1],
        cluster: [1, 1, 1],
        block: [32, 1, 1],
        smem,
        pdl: false,
        names: vec!["value"; args.len()],
        args,
    };
    LaunchPlan { steps: vec![Step::Kernel(launch)], ..LaunchPlan::default() }
}

/// Keeps `blocks` SMs busy for so many milliseconds; the shared memory makes each block take an SM of its own.
fn spin(device: &CudaDevice, blocks: u32, ms: i64) -> Result<Program> {
    Program::compile(device, &[&test_plan("fg_test_spin", blocks, 200 << 10, vec![Arg::I64(ms * 1_000_000)])])
}

fn launch(program: &Program, stream: &CudaStream) -> Result<()> {
    program.execute(stream.raw(), &|_| None, DeviceRange::default())
}

fn parameters(gpu: &Gpu, _: u64) -> Result<()> {
    let map = TensorMapSpec {
        base: Base::Tensor(2),
        dtype: DType::BF16,
        dim: vec![Some(64), None, Some(2), Some(1)],
        stride_bytes: vec![256, 128, 1024],
        tile: vec![64, 32, 1, 1],
        swizzle: 128,
    };
    let args = vec![Arg::Map(map), Arg::Ptr(Base::Tensor(1)), Arg::I32(-3), Arg::I64(-5_000_000_000), Arg::F32(0.5), Arg::Null];
    let program = Program::compile(&gpu.device, &[&test_plan("fg_test_store", 1, 0, args)])?;
    let (out, tensor) = (DeviceBuffer::new(&gpu.device, 160)?, DeviceBuffer::new(&gpu.device, 25_600)?);
    let operand = |uid| Some(if uid == 1 { out.range() } else { tensor.range() });
    program.execute(gpu.stream.raw(), &operand, DeviceRange::default())?;
    gpu.stream.synchronize()?;
    let words: Vec<u64> =
        out.to_vec()?.chunks_exact(8).map(|b| u64::from_ne_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]])).collect();
    let expected = [-3i64 as u64, -5_000_000_000i64 as u64, u64::from(0.5f32.to_bits()), 0];
    if words[16..] != expected || words[..16].iter().all(|&w| w == 0) {
        return Err(failed(format!("{words:x?}"), format!("a tensor map and {expected:x?}")));
    }
    Ok(())
}

/// More blocks than fit, so that they are scheduled in waves.
fn big(deterministic: bool, d: i64) -> Case {
    Case { b: 4, h_q: 8, h_kv: 2, s_q: 600, s_kv: 600, d_qk: d, d_v: d, mask: MaskKind::Causal, deterministic, ..Case::default() }
}

fn determinism(gpu: &Gpu, seed: u64) -> Result<()> {
    let noise = CudaStream::new(&gpu.device)?;
    let sms = sm_count(&gpu.device);
    // Half of the SMs, then all but one, for longer than the chain takes. Made once: unloading a program waits for it.
    let hogs = [spin(&gpu.device, sms / 2, 3)?, spin(&gpu.device, sms - 1, 3)?];
    for d in [64, 128] {
        let mut r = must(gpu, &big(true, d), seed)?;
        let first = r.run(&gpu.stream, 0xff)?;
        r.judge(&first)?;
        let first = r.outputs(&first);
        for run in 0..50 {
            if run >= 25 {
                launch(&hogs[run % 2], &noise)?;
            }
            let after = r.run(&gpu.stream, run as u8)?;
            if r.outputs(&after) != first {
                return Err(failed(format!("run {run} at d {d} has other bits"), "50 equal runs"));
            }
        }
        noise.synchronize()?;
    }
    // The default mode may differ in bits, never in value, when SMs are taken away (report 138).
    let mut r = must(gpu, &big(false, 64), seed)?;
    let hog = spin(&gpu.device, sms - 1, 50)?;
    launch(&hog, &noise)?;
    let after = r.run(&gpu.stream, 0xff)?;
    r.judge(&after)?;
    noise.synchronize()
}

fn sm_count(device: &CudaDevice) -> u32 {
    match device.target() {
        frostgraph::engines::Target::Cuda { sm_count, .. } => *sm_count,
        frostgraph::engines::Target::Cpu => 1,
    }
}

/// Captures one execution, then replays it with the inputs of another problem, the second time with rows that have died.
fn capture(gpu: &Gpu, seed: u64) -> Result<()> {
    for deterministic in [false, true] {
        let with = |q: Vec<i64>, kv: Vec<i64>| Case {
            lens: Lens::Padded { q, kv },
            mask: MaskKind::CausalBottomRight,
            deterministic,
            h_kv: 2,
            ..Case::default()
        };
        let case = with(vec![130, 130], vec![130, 130]);
        let mut r = must(gpu, &case, seed)?;
        r.image.upload(0xff)?;
        let graph = gpu.stream.capture(|| r.queue(&gpu.stream))?;
        // Lengths fall, so rows past them die; with 40 keys for 130 queries the first 90 rows see none.
        let replays = [case.clone(), with(vec![130, 77], vec![130, 40]), with(vec![130, 1], vec![40, 0])];
        for (n, next) in replays.into_iter().enumerate() {
            let facts = frostgraph::engines::Facts::Sdpa(Box::new(r.prepared.facts.clone()));
            r.prepared = prepare(&next, &facts, seed + n as u64)?;
            r.case = next;
            for (uid, bytes) in r.prepared.tensors.clone() {
                r.image.replace(uid, &bytes)?;
            }
            graph.launch(&gpu.stream)?;
            gpu.stream.synchronize()?;
            let after = r.image.download()?;
            r.judge(&after).map_err(|e| e.at(format!("replay {n}, deterministic {deterministic}")))?;
            r.image.untouched(&after, &r.prepared.owned)?;
        }
    }
    Ok(())
}

fn first_in_capture(gpu: &Gpu, seed: u64) -> Result<()> {
    let mut r = must(gpu, &Case { mask: MaskKind::Causal, ..Case::default() }, seed)?;
    r.image.upload(0xff)?;
    let graph = gpu.stream.capture(|| r.queue(&gpu.stream))?;
    // Eagerly before any replay, then the replay.
    r.queue(&gpu.stream)?;
    gpu.stream.synchronize()?;
    r.judge(&r.image.download()?)?;
    r.image.upload(0x00)?;
    graph.launch(&gpu.stream)?;
    gpu.stream.synchronize()?;
    r.judge(&r.image.download()?).map(|_| ())
}

fn streams(gpu: &Gpu, seed: u64) -> Result<()> {
    let mut r = must(gpu, &Case::default(), seed)?;
    r.image.upload(0xff)?;
    r.queue(&gpu.stream)?;
    gpu.stream.synchronize()?;
    r.image.upload(0xff)?;
    // One SM busy on the legacy stream and one on another; ours must neither wait for them nor run anything there.
    let other = CudaStream::new(&gpu.device)?;
    let spin = spin(&gpu.device, 1, 400)?;
    spin.execute(0, &|_| None, DeviceRange::default())?;
    launch(&spin, &other)?;
    let start = std::time::Instant::now();
    r.queue(&gpu.stream)?;
    gpu.stream.synchronize()?;
    let took = start.elapsed();
    if took.as_millis() > 200 {
        return Err(failed(format!("an execution that took {took:?} beside busy streams"), "one that does not wait for them"));
    }
    other.synchronize()?;
    r.judge(&r.image.download()?).map(|_| ())
}

fn threads(gpu: &Gpu, seed: u64) -> Result<()> {
    let case = Case { mask: MaskKind::Causal, h_kv: 1, ..Case::default() };
    let first = must(gpu, &case, seed)?;
    let exe = &first.exe;
    let worker = |t: u64| -> Result<()> {
        let stream = CudaStream::new(&gpu.device)?;
        let mut mine = must(gpu, &case, seed + t)?;
        for _ in 0..50 {
            mine.image.upload(0xff)?;
            exe.execute(&Stream::cuda(stream.raw()), &mut mine.image.bindings(), &mut mine.image.workspace())?;
            stream.synchronize()?;
            let after = mine.image.download()?;
            mine.judge(&after)?;
            mine.image.untouched(&after, &mine.prepared.owned)?;
        }
        Ok(())
    };
    std::thread::scope(|s| {
        let all: Vec<_> = (1..5).map(|t| s.spawn(move || worker(t))).collect();
        all.into_iter().try_for_each(|h| h.join().unwrap_or_else(|_| Err(failed("a thread that panicked", "a result"))))
    })
}

fn drop_in_capture(gpu: &Gpu, seed: u64) -> Result<()> {
    let doomed = must(gpu, &Case { d_qk: 128, d_v: 128, ..Case::default() }, seed)?;
    let mut r = must(gpu, &Case::default(), seed)?;
    r.image.upload(0xff)?;
    let mut doomed = Some(doomed);
    let graph = gpu.stream.capture(|| {
        r.queue(&gpu.stream)?;
        // Unloads modules and frees memory between begin and end.
        doomed.take();
        r.queue(&gpu.stream)
    })?;
    graph.launch(&gpu.stream)?;
    gpu.stream.synchronize()?;
    r.judge(&r.image.download()?).map(|_| ())
}

fn drop_after_graph(gpu: &Gpu, seed: u64) -> Result<()> {
    let mut r = must(gpu, &Case::default(), seed)?;
    r.image.upload(0xff)?;
    let graph = gpu.stream.capture(|| r.queue(&gpu.stream))?;
    graph.launch(&gpu.stream)?;
    gpu.stream.synchronize()?;
    drop(graph);
    drop(r);
    let mut r = must(gpu, &Case { mask: MaskKind::Causal, ..Case::default() }, seed)?;
    let after = r.run(&gpu.stream, 0xff)?;
    r.judge(&after).map(|_| ())
}

fn devices(gpu: &Gpu, seed: u64) -> Result<()> {
    if CudaDevice::count()? < 2 {
        return Err(failed("one device", "two devices").help("skip"));
    }
    let other = Gpu::open(1)?;
    for (n, g) in [gpu, &other, gpu].into_iter().enumerate() {
        let mut r = must(g, &Case::default(), seed + n as u64)?;
        let after = r.run(&g.stream, 0xff)?;
        r.judge(&after)?;
    }
    let run = |g: &Gpu| -> Result<()> {
        for n in 0..10 {
            let mut r = must(g, &Case::default(), seed + n)?;
            let after = r.run(&g.stream, 0xff)?;
            r.judge(&after)?;
        }
        Ok(())
    };
    std::thread::scope(|s| {
        let (a, b) = (s.spawn(|| run(gpu)), s.spawn(|| run(&other)));
        let join =
            |h: std::thread::ScopedJoinHandle<'_, Result<()>>| h.join().unwrap_or_else(|_| Err(failed("a panic", "a result")));
        join(a).and(join(b))
    })
}

fn expect_code(result: Result<()>, code: ErrorCode, what: &str) -> Result<()> {
    match result {
        Err(e) if e.code == code => Ok(()),
        Err(e) => Err(failed(format!("{what}: {e}"), code.code())),
        Ok(()) => Err(failed(format!("{what} was accepted"), code.code())),
    }
}

fn workspace_faults(gpu: &Gpu, seed: u64) -> Result<()> {
    let mut r = must(gpu, &Case::default(), seed)?;
    let need = r.exe.workspace_bytes();
    let Workspace::Device { address, .. } = r.image.workspace() else { return Err(failed("a host workspace", "a device one")) };
    let stream = Stream::cuda(gpu.stream.raw());
    let q = r.image.slots[&Q];
    let try_with = |mut w: Workspace<'static>, code, what: &str| {
        expect_code(r.exe.execute(&stream, &mut r.image.bindings(), &mut w), code, what)
    };
    try_with(Workspace::device(address, need - 1), ErrorCode::Workspace, "one byte too few")?;
    try_with(Workspace::none(), ErrorCode::Workspace, "no workspace")?;
    try_with(Workspace::device(address + 1, need), ErrorCode::Workspace, "a base misaligned by one")?;
    let over = (address - r.image.workspace.offset + q.offset).next_multiple_of(128);
    try_with(Workspace::device(over, need), ErrorCode::BufferOverlap, "a workspace over Q")?;
    let after = r.run(&gpu.stream, 0xff)?;
    r.image.untouched(&after, &r.prepared.owned)?;
    r.judge(&after).map(|_| ())
}

fn misaligned(gpu: &Gpu, seed: u64) -> Result<()> {
    let mut r = must(gpu, &Case::default(), seed)?;
    let stream = Stream::cuda(gpu.stream.raw());
    let Workspace::Device { address, .. } = r.image.workspace() else { return Err(failed("a host workspace", "a device one")) };
    let base = address - r.image.workspace.offset;
    for uid in [Q, K, DQ] {
        for off in [2, 4, 8, 14] {
            let mut b: Bindings<'static> = r.image.bindings();
            let slot = r.image.slots[&uid];
            b.device(uid, base + slot.offset + off, slot.bytes);
            let result = r.exe.execute(&stream, &mut b, &mut r.image.workspace());
            expect_code(result, ErrorCode::BufferAlignment, &format!("uid {uid} off by {off}"))?;
        }
    }
    let after = r.run(&gpu.stream, 0xff)?;
    r.judge(&after).map(|_| ())
}

fn allocations(gpu: &Gpu, seed: u64) -> Result<()> {
    for case in [Case::default(), big(true, 128), Case { h_kv: 1, sink: true, ..Case::default() }] {
        let mut r = must(gpu, &case, seed)?;
        r.image.upload(0xff)?;
        r.queue(&gpu.stream)?;
        let (mut bindings, mut workspace, stream) = (r.image.bindings(), r.image.workspace(), Stream::cuda(gpu.stream.raw()));
        let before = crate::counting::allocations();
        for _ in 0..20 {
            r.exe.execute(&stream, &mut bindings, &mut workspace)?;
        }
        let n = crate::counting::allocations() - before;
        gpu.stream.synchronize()?;
        if n != 0 {
            return Err(failed(format!("{n} allocations in 20 executions"), "none"));
        }
    }
    Ok(())
}

fn faulting(gpu: &Gpu, seed: u64) -> Result<()> {
    let r = must(gpu, &Case::default(), seed)?;
    let fault = Program::compile(&gpu.device, &[&test_plan("fg_test_fault", 1, 0, vec![Arg::I64(64)])])?.label("a faulting plan");
    launch(&fault, &gpu.stream)?;
    expect_code(gpu.stream.synchronize(), ErrorCode::CudaDriver, "an illegal access")?;
    // The context is lost: the next call says so and names the plan and the kernel.
    match r.queue(&gpu.stream) {
        Err(e)
            if e.code == ErrorCode::CudaDriver
                && e.to_string().contains("CUDA_ERROR")
                && e.to_string().contains("sdpa_bwd_sm120") => {}
        Err(e) => return Err(failed(e.to_string(), "FG6003 with the driver's words")),
        Ok(()) => return Err(failed("an execution after a fault", "FG6003")),
    }
    // Dropping all of it must not panic.
    drop((r, fault));
    Ok(())
}

fn many_batches(gpu: &Gpu, seed: u64) -> Result<()> {
    let case = Case { b: 65_536, h_q: 1, h_kv: 1, s_q: 4, s_kv: 4, d_qk: 8, d_v: 8, mask: MaskKind::Causal, ..Case::default() };
    let mut r = must(gpu, &case, seed)?;
    let after = r.run(&gpu.stream, 0xff)?;
    r.image.untouched(&after, &r.prepared.owned)?;
    r.judge(&after).map(|_| ())
}

/// Every operand with the last batch entry far away, the wrapped places seeded with other values: see [`crate::far`].
fn huge_stride(gpu: &Gpu, seed: u64) -> Result<()> {
    // Elements: two bytes each, so 2^31 + 2^10 of them pass 2^32 bytes with two batch entries.
    crate::far::check(gpu, &mut Rng(seed), 2, (1 << 31) + (1 << 10), DType::BF16)
}

fn huge_offset(gpu: &Gpu, seed: u64) -> Result<()> {
    // Each stride fits 31 bits, four of them pass 2^32 elements.
    crate::far::check(gpu, &mut Rng(seed), 5, (1 << 30) + (1 << 10), DType::F16)
}
