//! Streams, threads, devices and lifetimes.

use super::{failed, launch, must, spin};
use crate::cases::Case;
use crate::run::Gpu;
use frostgraph::exec::Stream;
use frostgraph::runtime::{CudaDevice, CudaStream, DeviceRange};
use frostgraph::Result;

pub fn first_in_capture(gpu: &Gpu, case: &Case, seed: u64) -> Result<()> {
    let mut r = must(gpu, case, seed)?;
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

pub fn streams(gpu: &Gpu, case: &Case, seed: u64) -> Result<()> {
    let mut r = must(gpu, case, seed)?;
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

pub fn threads(gpu: &Gpu, case: &Case, seed: u64) -> Result<()> {
    let first = must(gpu, case, seed)?;
    let exe = &first.exe;
    let worker = |t: u64| -> Result<()> {
        let stream = CudaStream::new(&gpu.device)?;
        let mut mine = must(gpu, case, seed + t)?;
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

pub fn drop_in_capture(gpu: &Gpu, case: &Case, seed: u64) -> Result<()> {
    let doomed = must(gpu, &Case { d_qk: 128, d_v: 128, ..case.clone() }, seed)?;
    let mut r = must(gpu, case, seed)?;
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

pub fn drop_after_graph(gpu: &Gpu, case: &Case, seed: u64) -> Result<()> {
    let mut r = must(gpu, case, seed)?;
    r.image.upload(0xff)?;
    let graph = gpu.stream.capture(|| r.queue(&gpu.stream))?;
    graph.launch(&gpu.stream)?;
    gpu.stream.synchronize()?;
    drop(graph);
    drop(r);
    let mut r = must(gpu, &Case { d_qk: 128, d_v: 128, ..case.clone() }, seed)?;
    let after = r.run(&gpu.stream, 0xff)?;
    r.judge(&after).map(|_| ())
}

pub fn devices(gpu: &Gpu, case: &Case, seed: u64) -> Result<()> {
    if CudaDevice::count()? < 2 {
        return Err(failed("one device", "two devices").help("skip"));
    }
    let other = Gpu::open(1)?;
    for (n, g) in [gpu, &other, gpu].into_iter().enumerate() {
        let mut r = must(g, case, seed + n as u64)?;
        let after = r.run(&g.stream, 0xff)?;
        r.judge(&after)?;
    }
    let run = |g: &Gpu| -> Result<()> {
        for n in 0..10 {
            let mut r = must(g, case, seed + n)?;
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
