//! Rule S7: batch entries, or tokens, so far apart that an index or a product in 32 bits lands somewhere else. Everything between them is
//! NaN, the wrapped places included, so a narrowed read poisons the result and a narrowed write is seen.

use crate::build::{graph, DK, DQ, DV, D_O, K, O, Q, STATS, V};
use crate::cases::{Case, MaskKind, DECODE};
use crate::judge::judge;
use crate::problem::{prepare, POISON};
use crate::rng::Rng;
use crate::run::Gpu;
use frostgraph::exec::{Bindings, Stream, Workspace};
use frostgraph::plan::{BuildOptions, Plan};
use frostgraph::runtime::DeviceBuffer;
use frostgraph::{DType, Device, Error, ErrorCode, Result};
use std::collections::BTreeMap;

const FAR: [i64; 9] = [Q, K, V, O, D_O, STATS, DQ, DK, DV];

/// A small problem for one engine.
pub fn small(engine: &'static str) -> Case {
    let (s_q, s_kv, mask) = if engine == DECODE { (2, 70, MaskKind::None) } else { (70, 70, MaskKind::Causal) };
    Case { engine, h_q: 2, h_kv: 1, s_q, s_kv, mask, ..Case::default() }
}

/// Tokens instead of batch entries are far apart (reports 23 and 26).
pub fn tokens(gpu: &Gpu, rng: &mut Rng, engine: &'static str, stride: i64) -> Result<()> {
    apart(gpu, rng, &few_tokens(engine), 2, 4, stride)
}

/// Runs a [`small`] problem of `b` batch entries, all strided operands with this batch stride in elements.
pub fn check(gpu: &Gpu, rng: &mut Rng, engine: &'static str, b: i64, stride: i64, dtype: DType) -> Result<()> {
    apart(gpu, rng, &Case { b, dtype, ..small(engine) }, 0, b, stride)
}

/// The plan of a case whose strided operands all have this stride along `axis`.
fn plan_apart(case: &Case, axis: usize, stride: i64, device: &Device) -> Result<Plan> {
    let mut g = graph(case)?;
    let ids: Vec<_> = g.tensors().filter(|(_, t)| t.uid.is_some_and(|u| FAR.contains(&u))).map(|(id, _)| id).collect();
    for id in ids {
        g.get_mut(id)?.stride[axis] = stride;
    }
    let built = g.build_with(device, &BuildOptions::all_engines())?;
    let plan = built.plans().find(|p| p.entries().all(|e| e.row.name == case.engine));
    plan.ok_or_else(|| {
        let reasons: Vec<String> = built.declined().map(ToString::to_string).collect();
        Error::new(ErrorCode::NoPlan, "no plan for far entries", case.engine).details(reasons)
    })
}

/// The far problems of an engine can be planned: no GPU needed.
pub fn check_planned(engine: &'static str, device: &Device) -> Result<()> {
    for (b, stride) in [(2, (1 << 31) + (1 << 10)), (5, (1 << 30) + (1 << 10))] {
        plan_apart(&Case { b, ..small(engine) }, 0, stride, device)?.lower()?;
    }
    plan_apart(&few_tokens(engine), 2, 800_000_000, device)?.lower().map(|_| ())
}

/// One head of one batch entry, four tokens.
fn few_tokens(engine: &'static str) -> Case {
    Case { b: 1, h_q: 1, h_kv: 1, s_q: 4, s_kv: 4, ..small(engine) }
}

/// Runs a case whose `b` entries along `axis` lie this many elements apart in all strided operands, and compares it with the oracle. The
/// entries of each operand are contiguous and in order where the strides are ordinary.
fn apart(gpu: &Gpu, rng: &mut Rng, case: &Case, axis: usize, b: i64, stride: i64) -> Result<()> {
    // The same values with ordinary strides give the expected results and the blocks to copy.
    let near = graph(case)?.build_with(&gpu.planned, &BuildOptions::all_engines())?;
    let prepared = prepare(case, near.nodes()[0].facts(), rng.next())?;
    let exe = plan_apart(case, axis, stride, &gpu.planned)?.compile()?;
    let mut buffers = BTreeMap::new();
    let mut bindings = Bindings::new();
    for operand in exe.operands() {
        let compact = &prepared.tensors[&operand.uid];
        let buffer = DeviceBuffer::new(&gpu.device, operand.bytes)?;
        buffer.fill(&gpu.stream, 0, operand.bytes, POISON)?;
        gpu.stream.synchronize()?;
        let step = stride as u64 * u64::from(operand.dtype.bits() / 8);
        for (i, block) in compact.chunks_exact(compact.len() / b as usize).enumerate() {
            buffer.write(i as u64 * step, block)?;
        }
        bindings.device(operand.uid, buffer.range().address, buffer.bytes());
        buffers.insert(operand.uid, (buffer, step, u64::from(operand.dtype.bits() / 8)));
    }
    let scratch = DeviceBuffer::new(&gpu.device, exe.workspace_bytes())?;
    scratch.fill(&gpu.stream, 0, scratch.bytes(), POISON)?;
    let mut workspace = Workspace::device(scratch.range().address, scratch.bytes());
    exe.execute(&Stream::cuda(gpu.stream.raw()), &mut bindings, &mut workspace)?;
    gpu.stream.synchronize()?;
    for &uid in prepared.owned.keys() {
        let (buffer, step, width) = &buffers[&uid];
        let block = prepared.tensors[&uid].len() / b as usize;
        let mut compact = vec![0; block * b as usize];
        for (i, part) in compact.chunks_exact_mut(block).enumerate() {
            buffer.read(i as u64 * step, part)?;
        }
        judge(case, &prepared, uid, &compact)?;
        // Between the entries nothing was written: behind each entry, and where 32-bit bytes or elements of its offset would land.
        for i in 0..b as u64 {
            let behind = i * step + block as u64;
            let wraps = [behind, (i * step) % (1 << 32) + block as u64, (i * step / width) % (1 << 32) * width + block as u64];
            for at in wraps {
                let Some(room) = buffer.bytes().checked_sub(at) else { continue };
                let inside = (0..b as u64).any(|j| at < j * step + block as u64 && at + (64 << 10) > j * step);
                if inside {
                    continue;
                }
                let mut gap = vec![0; room.min(64 << 10) as usize];
                buffer.read(at, &mut gap)?;
                if gap.iter().any(|&x| x != POISON) {
                    let given = format!("uid {uid}: bytes behind {at} were written");
                    return Err(Error::new(ErrorCode::CheckFailed, given, "only batch entries are written"));
                }
            }
        }
    }
    Ok(())
}
