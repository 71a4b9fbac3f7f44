//! Specials of NVFP4 QAT.

use super::{codec, failed, faults, fifty_runs, life, must, replays, Special};
use crate::build::{DV, D_O, HIGH, K, O, Q, STATS, V};
use crate::cases::{Case, Layout, Lens, MaskKind, QAT_BWD, QAT_BWD_SM90, QAT_FWD, QAT_FWD_SM90};
use crate::run::Gpu;
use frostgraph::engines::Target;
use frostgraph::Result;

/// The specification's geometry, which the specials vary.
fn plain(engine: &'static str) -> Case {
    Case { engine, mask: MaskKind::Causal, d_qk: 128, d_v: 128, layout: Layout::Bhsd, ..Case::default() }
}

/// More blocks than fit, so that they are scheduled in waves.
fn big(engine: &'static str, deterministic: bool) -> Case {
    Case { b: 4, h_q: 8, h_kv: 8, s_q: 600, s_kv: 600, deterministic, ..plain(engine) }
}

pub const FORWARD: &[Special] = &[
    ("determinism: 50 runs, idle and beside a busy stream", |g, s| fifty_runs(g, &[plain(QAT_FWD), big(QAT_FWD, false)], s)),
    ("capture, replay with other inputs and newly dead rows", |g, s| capture(g, QAT_FWD, s)),
    ("Hopper row: determinism, capture, streams, workspace faults", hopper),
    ("work goes to the caller's stream alone (report 126)", |g, s| life::streams(g, &plain(QAT_FWD), s)),
    ("two threads, one executable", |g, s| life::threads(g, &plain(QAT_FWD), s)),
    ("workspace faults leave the device usable (report 125)", |g, s| faults::workspace_faults(g, &plain(QAT_FWD), s)),
    ("misaligned operands are typed errors (report 45)", |g, s| faults::misaligned(g, &plain(QAT_FWD), [Q, O, HIGH], s)),
    ("execute allocates nothing on the host (I5)", |g, s| faults::allocations(g, &[plain(QAT_FWD)], s)),
];

pub const BACKWARD: &[Special] = &[
    ("determinism: 50 runs, idle and beside a busy stream", |g, s| fifty_runs(g, &[big(QAT_BWD, true)], s)),
    ("capture, replay with other inputs and newly dead rows", |g, s| capture(g, QAT_BWD, s)),
    ("work goes to the caller's stream alone (report 126)", |g, s| life::streams(g, &plain(QAT_BWD), s)),
    ("two threads, one executable", |g, s| life::threads(g, &plain(QAT_BWD), s)),
    ("workspace faults leave the device usable (report 125)", |g, s| faults::workspace_faults(g, &plain(QAT_BWD), s)),
    ("misaligned operands are typed errors (report 45)", |g, s| faults::misaligned(g, &plain(QAT_BWD), [Q, D_O, DV], s)),
    ("execute allocates nothing on the host (I5)", |g, s| faults::allocations(g, &[plain(QAT_BWD)], s)),
    ("the GPU's forward feeds the GPU's backward", |g, s| pair(g, QAT_FWD, QAT_BWD, s)),
    ("NVFP4 conversions: equal bits in CUDA and in Rust", codec::nvfp4_bits),
    ("Hopper row: determinism, capture, streams, threads, faults, forward to backward", hopper_backward),
];

fn on_hopper(gpu: &Gpu) -> bool {
    matches!(gpu.device.target(), Target::Cuda { cc: 90, .. })
}

/// What the list above asks of the portable row, where the device has the other one.
fn hopper(gpu: &Gpu, seed: u64) -> Result<()> {
    if !on_hopper(gpu) {
        return Ok(());
    }
    fifty_runs(gpu, &[plain(QAT_FWD_SM90), big(QAT_FWD_SM90, false)], seed)?;
    capture(gpu, QAT_FWD_SM90, seed)?;
    life::streams(gpu, &plain(QAT_FWD_SM90), seed)?;
    faults::workspace_faults(gpu, &plain(QAT_FWD_SM90), seed)
}

/// The same of the backward's Hopper row.
fn hopper_backward(gpu: &Gpu, seed: u64) -> Result<()> {
    if !on_hopper(gpu) {
        return Ok(());
    }
    let engine = QAT_BWD_SM90;
    fifty_runs(gpu, &[big(engine, true), Case { d_qk: 64, d_v: 64, h_kv: 2, ..big(engine, true) }], seed)?;
    capture(gpu, engine, seed)?;
    life::streams(gpu, &plain(engine), seed)?;
    life::threads(gpu, &plain(engine), seed)?;
    faults::workspace_faults(gpu, &plain(engine), seed)?;
    faults::misaligned(gpu, &plain(engine), [Q, D_O, DV], seed)?;
    faults::allocations(gpu, &[plain(engine)], seed)?;
    pair(gpu, QAT_FWD_SM90, engine, seed)
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
