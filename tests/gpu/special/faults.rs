//! What must fail, and how: workspaces, alignments, a faulting kernel; and that nothing is allocated on the way.

use super::{failed, launch, must, test_plan};
use crate::build::Q;
use crate::cases::Case;
use crate::run::Gpu;
use frostgraph::engines::launch::{Arg, Base, TensorMapSpec};
use frostgraph::exec::{Bindings, Stream, Workspace};
use frostgraph::runtime::{DeviceBuffer, DeviceRange, Program};
use frostgraph::{DType, ErrorCode, Result};

pub fn parameters(gpu: &Gpu, _: u64) -> Result<()> {
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

fn expect_code(result: Result<()>, code: ErrorCode, what: &str) -> Result<()> {
    match result {
        Err(e) if e.code == code => Ok(()),
        Err(e) => Err(failed(format!("{what}: {e}"), code.code())),
        Ok(()) => Err(failed(format!("{what} was accepted"), code.code())),
    }
}

pub fn workspace_faults(gpu: &Gpu, case: &Case, seed: u64) -> Result<()> {
    let mut r = must(gpu, case, seed)?;
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

pub fn misaligned(gpu: &Gpu, case: &Case, uids: [i64; 3], seed: u64) -> Result<()> {
    let mut r = must(gpu, case, seed)?;
    let stream = Stream::cuda(gpu.stream.raw());
    let Workspace::Device { address, .. } = r.image.workspace() else { return Err(failed("a host workspace", "a device one")) };
    let base = address - r.image.workspace.offset;
    for uid in uids {
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

pub fn allocations(gpu: &Gpu, cases: &[Case], seed: u64) -> Result<()> {
    for case in cases {
        let mut r = must(gpu, case, seed)?;
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

pub fn faulting(gpu: &Gpu, case: &Case, seed: u64) -> Result<()> {
    let r = must(gpu, case, seed)?;
    let fault = Program::compile(&gpu.device, &[&test_plan("fg_test_fault", 1, 0, vec![Arg::I64(64)])])?.label("a faulting plan");
    launch(&fault, &gpu.stream)?;
    expect_code(gpu.stream.synchronize(), ErrorCode::CudaDriver, "an illegal access")?;
    // The context is lost: the next call says so and names the plan and the kernel.
    match r.queue(&gpu.stream) {
        Err(e)
            if e.code == ErrorCode::CudaDriver && e.to_string().contains("CUDA_ERROR") && e.to_string().contains(case.engine) => {
        }
        Err(e) => return Err(failed(e.to_string(), "FG6003 with the driver's words")),
        Ok(()) => return Err(failed("an execution after a fault", "FG6003")),
    }
    // Dropping all of it must not panic.
    drop((r, fault));
    Ok(())
}
