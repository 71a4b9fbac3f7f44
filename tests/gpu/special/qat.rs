//! Specials of NVFP4 QAT.

use super::{codec, failed, faults, fifty_runs, life, must, of, replays, Shows, Special};
use crate::build::{DV, D_O, HIGH, K, O, Q, STATS, V};
use crate::cases::{Case, Layout, Lens, MaskKind, QAT_BWD, QAT_BWD_SM90, QAT_FWD, QAT_FWD_SM90};
use crate::far::{check, check_further, Far};
use crate::rng::Rng;
use crate::run::Gpu;
use frostgraph::{DType, Result};

/// The specification's geometry, which the specials vary.
fn plain(engine: &'static str) -> Case {
    Case { engine, mask: MaskKind::Causal, d_qk: 128, d_v: 128, layout: Layout::Bhsd, ..Case::default() }
}

/// More blocks than fit, so that they are scheduled in waves.
fn big(engine: &'static str, deterministic: bool) -> Case {
    Case { b: 5, h_q: 8, h_kv: 8, s_q: 390, s_kv: 390, deterministic, ..plain(engine) }
}

pub const FORWARD: &[Special] = &[
    of(QAT_FWD, Shows::FiftyRuns, "determinism: 50 runs, idle and beside a busy stream", fifty_forward),
    of(QAT_FWD, Shows::Replay, "capture, replay with other inputs and newly dead rows", capture),
    of(QAT_FWD, Shows::Streams, "work goes to the caller's stream alone (report 126)", streams),
    of(QAT_FWD, Shows::Threads, "two threads, one executable", threads),
    of(QAT_FWD, Shows::Workspace, "workspace faults leave the device usable (report 125)", workspace),
    of(QAT_FWD, Shows::Misaligned, "misaligned operands are typed errors (report 45)", misaligned_forward),
    of(QAT_FWD, Shows::Allocations, "execute allocates nothing on the host (I5)", allocations),
    of(QAT_FWD, Shows::Devices, "device 0, device 1, device 0 (reports 113, 128)", devices),
    of(QAT_FWD, Shows::Far, "batch offsets and strides above 2^32 elements, far tokens (rule S7, report 23)", far),
    of(QAT_FWD_SM90, Shows::FiftyRuns, "Hopper: determinism: 50 runs, idle and beside a busy stream", fifty_forward),
    of(QAT_FWD_SM90, Shows::Replay, "Hopper: capture, replay with other inputs and newly dead rows", capture),
    of(QAT_FWD_SM90, Shows::Streams, "Hopper: work goes to the caller's stream alone (report 126)", streams),
    of(QAT_FWD_SM90, Shows::Threads, "Hopper: two threads, one executable", threads),
    of(QAT_FWD_SM90, Shows::Workspace, "Hopper: workspace faults leave the device usable (report 125)", workspace),
    of(QAT_FWD_SM90, Shows::Misaligned, "Hopper: misaligned operands are typed errors (report 45)", misaligned_forward),
    of(QAT_FWD_SM90, Shows::Allocations, "Hopper: execute allocates nothing on the host (I5)", allocations),
    of(QAT_FWD_SM90, Shows::Devices, "Hopper: device 0, device 1, device 0 (reports 113, 128)", devices),
    of(QAT_FWD_SM90, Shows::Far, "Hopper: batch offsets and strides above 2^32 elements, far tokens (rule S7, report 23)", far),
];

pub const BACKWARD: &[Special] = &[
    of(QAT_BWD, Shows::FiftyRuns, "determinism: 50 runs, idle and beside a busy stream", fifty_backward),
    of(QAT_BWD, Shows::Replay, "capture, replay with other inputs and newly dead rows", capture),
    of(QAT_BWD, Shows::Streams, "work goes to the caller's stream alone (report 126)", streams),
    of(QAT_BWD, Shows::Threads, "two threads, one executable", threads),
    of(QAT_BWD, Shows::Workspace, "workspace faults leave the device usable (report 125)", workspace),
    of(QAT_BWD, Shows::Misaligned, "misaligned operands are typed errors (report 45)", misaligned_backward),
    of(QAT_BWD, Shows::Allocations, "execute allocates nothing on the host (I5)", allocations),
    of(QAT_BWD, Shows::Other, "the GPU's forward feeds the GPU's backward", |g, e, s| pair(g, QAT_FWD, e, s)),
    of(QAT_BWD, Shows::Other, "NVFP4 conversions: equal bits in CUDA and in Rust", |g, _, s| codec::nvfp4_bits(g, s)),
    of(QAT_BWD, Shows::Devices, "device 0, device 1, device 0 (reports 113, 128)", devices),
    of(QAT_BWD, Shows::Far, "batch offsets and strides above 2^32 elements, far tokens (rule S7, report 23)", far),
    of(QAT_BWD_SM90, Shows::FiftyRuns, "Hopper: determinism: 50 runs, idle and beside a busy stream", fifty_backward),
    of(QAT_BWD_SM90, Shows::Replay, "Hopper: capture, replay with other inputs and newly dead rows", capture),
    of(QAT_BWD_SM90, Shows::Streams, "Hopper: work goes to the caller's stream alone (report 126)", streams),
    of(QAT_BWD_SM90, Shows::Threads, "Hopper: two threads, one executable", threads),
    of(QAT_BWD_SM90, Shows::Workspace, "Hopper: workspace faults leave the device usable (report 125)", workspace),
    of(QAT_BWD_SM90, Shows::Misaligned, "Hopper: misaligned operands are typed errors (report 45)", misaligned_backward),
    of(QAT_BWD_SM90, Shows::Allocations, "Hopper: execute allocates nothing on the host (I5)", allocations),
    of(QAT_BWD_SM90, Shows::Other, "Hopper: the GPU's forward feeds the GPU's backward", |g, e, s| pair(g, QAT_FWD_SM90, e, s)),
    of(QAT_BWD_SM90, Shows::Devices, "Hopper: device 0, device 1, device 0 (reports 113, 128)", devices),
    of(QAT_BWD_SM90, Shows::Far, "Hopper: batch offsets and strides above 2^32 elements, far tokens (rule S7, report 23)", far),
];

fn fifty_forward(gpu: &Gpu, engine: &'static str, seed: u64) -> Result<()> {
    fifty_runs(gpu, &[plain(engine), big(engine, false)], seed)
}

fn fifty_backward(gpu: &Gpu, engine: &'static str, seed: u64) -> Result<()> {
    fifty_runs(gpu, &[big(engine, true), Case { d_qk: 64, d_v: 64, h_kv: 2, ..big(engine, true) }], seed)
}

fn streams(gpu: &Gpu, engine: &'static str, seed: u64) -> Result<()> {
    life::streams(gpu, &plain(engine), seed)
}

fn threads(gpu: &Gpu, engine: &'static str, seed: u64) -> Result<()> {
    life::threads(gpu, &plain(engine), seed)
}

fn devices(gpu: &Gpu, engine: &'static str, seed: u64) -> Result<()> {
    life::devices(gpu, &plain(engine), seed)
}

fn workspace(gpu: &Gpu, engine: &'static str, seed: u64) -> Result<()> {
    faults::workspace_faults(gpu, &plain(engine), seed)
}

fn misaligned_forward(gpu: &Gpu, engine: &'static str, seed: u64) -> Result<()> {
    faults::misaligned(gpu, &plain(engine), [Q, O, HIGH], seed)
}

fn misaligned_backward(gpu: &Gpu, engine: &'static str, seed: u64) -> Result<()> {
    faults::misaligned(gpu, &plain(engine), [Q, D_O, DV], seed)
}

fn allocations(gpu: &Gpu, engine: &'static str, seed: u64) -> Result<()> {
    faults::allocations(gpu, &[plain(engine)], seed)
}

fn far(gpu: &Gpu, engine: &'static str, seed: u64) -> Result<()> {
    for far in [Far::Batches(5, (1 << 30) + (1 << 10)), Far::Batches(2, (1 << 32) + (1 << 10)), Far::Tokens(800_000_000)] {
        check(gpu, &mut Rng(seed), engine, far, DType::BF16)?;
        check_further(gpu, engine, seed, far, DType::BF16)?;
    }
    Ok(())
}

/// Lengths fall, so rows past them die; with 40 keys for 130 queries the first 90 rows see none.
fn capture(gpu: &Gpu, engine: &'static str, seed: u64) -> Result<()> {
    let with = |q: [i64; 2], kv: [i64; 2]| Case {
        lens: Lens::Padded { q: q.to_vec(), kv: kv.to_vec() },
        mask: MaskKind::CausalBottomRight,
        ..plain(engine)
    };
    replays(gpu, &[with([130, 130], [130, 130]), with([130, 77], [130, 40]), with([130, 1], [40, 0])], seed)
}

/// The backward runs on what the GPU's forward made instead of the oracle's auxiliaries, which differ in the last bits.
fn pair(gpu: &Gpu, first: &'static str, second: &'static str, seed: u64) -> Result<()> {
    for d in [64, 128] {
        let of = |engine| Case { d_qk: d, d_v: d, ..plain(engine) };
        let mut forward = must(gpu, &of(first), seed)?;
        let made = forward.run(&gpu.stream, 0xff)?;
        forward.judge(&made)?;
        let mut backward = must(gpu, &of(second), seed)?;
        for uid in [Q, K, V] {
            // One seed draws Q, K and V first in both passes.
            if forward.prepared.tensors[&uid] != backward.prepared.tensors[&uid] {
                return Err(failed(format!("uid {uid} differs"), "one problem in both passes"));
            }
        }
        backward.image.upload(0xff)?;
        for (to, from) in [(O, HIGH), (STATS, STATS)] {
            let bytes = forward.image.part(&made, from).to_vec();
            backward.image.replace(to, &bytes)?;
        }
        backward.queue(&gpu.stream)?;
        gpu.stream.synchronize()?;
        backward.judge(&backward.image.download()?)?;
    }
    Ok(())
}
