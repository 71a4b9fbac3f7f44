//! Specials of the backward.

use super::{faults, fifty_runs, launch, life, must, of, once, replays, sm_count, spin, Shows, Special};
use crate::build::{DQ, K, Q};
use crate::cases::{Case, Lens, MaskKind, BWD, BWD_SM90};
use crate::far::{check, check_further, Far};
use crate::rng::Rng;
use crate::run::Gpu;
use frostgraph::runtime::CudaStream;
use frostgraph::{DType, Result};

pub const ALL: &[Special] = &[
    of(BWD, Shows::Other, "a kernel reads the parameters that the host passes", |g, _, s| faults::parameters(g, s)),
    of(BWD, Shows::FiftyRuns, "determinism: 50 runs, idle and beside a busy stream", determinism),
    of(BWD, Shows::Replay, "capture, replay with other inputs and newly dead rows", |g, e, s| capture(g, s, &plain(e))),
    of(BWD, Shows::Other, "the first execution of a process is inside a capture (report 136)", |g, e, s| {
        life::first_in_capture(g, &causal(e), s)
    }),
    of(BWD, Shows::Streams, "work goes to the caller's stream alone (report 126)", |g, e, s| life::streams(g, &plain(e), s)),
    of(BWD, Shows::Threads, "two threads, one executable", |g, e, s| life::threads(g, &Case { h_kv: 1, ..causal(e) }, s)),
    of(BWD, Shows::Other, "dropping a program during another one's capture (report 133)", |g, e, s| {
        life::drop_in_capture(g, &plain(e), s)
    }),
    of(BWD, Shows::Other, "dropping everything after a graph was destroyed (report 131)", |g, e, s| {
        life::drop_after_graph(g, &plain(e), s)
    }),
    of(BWD, Shows::Devices, "device 0, device 1, device 0 (reports 113, 128)", |g, e, s| life::devices(g, &plain(e), s)),
    of(BWD, Shows::Workspace, "workspace faults leave the device usable (report 125)", |g, e, s| {
        faults::workspace_faults(g, &plain(e), s)
    }),
    of(BWD, Shows::Misaligned, "misaligned operands are typed errors (report 45)", |g, e, s| {
        faults::misaligned(g, &plain(e), [Q, K, DQ], s)
    }),
    of(BWD, Shows::Allocations, "execute allocates nothing on the host (I5)", allocations),
    of(BWD, Shows::Fault, "a faulting kernel: named error, no panic on drop (report 146)", |g, e, s| {
        faults::faulting(g, &plain(e), s)
    }),
    of(BWD, Shows::Other, "batch 65536 (report 28)", many_batches),
    // Elements: two bytes each, so 2^31 + 2^10 of them pass 2^32 bytes with two batch entries.
    of(BWD, Shows::Far, "physical batch stride above 2^32 bytes (rule S7)", |g, e, s| {
        check(g, &mut Rng(s), e, Far::Batches(2, (1 << 31) + (1 << 10)), DType::BF16)
    }),
    // Each stride fits 31 bits, four of them pass 2^32 elements.
    of(BWD, Shows::Far, "batch offset above 2^32 elements (rule S7)", far_offset),
    of(BWD, Shows::Far, "token stride of 8e8 elements (report 23)", far_tokens),
    of(BWD_SM90, Shows::FiftyRuns, "wgmma: determinism, 50 runs, idle and beside a busy stream", |g, e, s| {
        fifty_runs(g, &[big(e, true, 64), big(e, true, 128), Case { d_qk: 192, ..big(e, true, 128) }], s)
    }),
    of(BWD_SM90, Shows::Far, "wgmma: batch offset above 2^32 elements (rule S7)", far_offset),
    of(BWD_SM90, Shows::Far, "wgmma: token stride of 8e8 elements (report 23)", far_tokens),
    of(BWD_SM90, Shows::Replay, "wgmma: capture, replay with other inputs and newly dead rows", |g, e, s| {
        [(64, 64), (128, 128), (192, 128)].into_iter().try_for_each(|d| capture(g, s, &at(e, d)))
    }),
    of(BWD_SM90, Shows::Other, "wgmma: the first execution of a process is inside a capture (report 136)", |g, e, s| {
        life::first_in_capture(g, &Case { deterministic: true, ..causal(e) }, s)
    }),
    of(BWD_SM90, Shows::Threads, "wgmma: two threads, one executable", |g, e, s| {
        life::threads(g, &Case { mask: MaskKind::Causal, h_kv: 1, deterministic: true, ..at(e, (128, 128)) }, s)
    }),
    of(BWD_SM90, Shows::Misaligned, "wgmma: misaligned operands are typed errors (report 45)", |g, e, s| {
        faults::misaligned(g, &plain(e), [Q, K, DQ], s)
    }),
    of(BWD_SM90, Shows::Other, "wgmma: batch 65536 (report 28)", many_batches),
    of(BWD_SM90, Shows::Far, "wgmma: physical batch stride above 2^32 elements (rule S7)", |g, e, s| {
        check(g, &mut Rng(s), e, Far::Batches(2, (1 << 32) + (1 << 10)), DType::BF16)
    }),
    of(BWD_SM90, Shows::Allocations, "wgmma: execute allocates nothing on the host (I5)", |g, e, s| {
        allocations(g, e, s)?;
        faults::allocations(g, &[with_bias(e)], s)
    }),
    of(
        BWD_SM90,
        Shows::FiftyRuns,
        "wgmma: determinism, 50 runs: head dims above 128, a bias with its gradient, packed sequences",
        |g, e, s| {
            let wide = |d| Case { s_q: 390, s_kv: 390, ..big(e, true, d) };
            fifty_runs(g, &[wide(192), wide(256), with_bias(e), packed(e, 128), packed(e, 192)], s)
        },
    ),
    of(BWD_SM90, Shows::Replay, "wgmma: capture, replay: head dims above 128", |g, e, s| {
        [(192, 192), (256, 256)].into_iter().try_for_each(|d| capture(g, s, &at(e, d)))
    }),
    of(BWD_SM90, Shows::Far, "wgmma: batch offset above 2^32 elements and far tokens at every tile", |g, e, s| {
        check_further(g, e, s, Far::Batches(5, (1 << 30) + (1 << 10)), DType::BF16)?;
        check_further(g, e, s, Far::Tokens(800_000_000), DType::F16)
    }),
    of(BWD_SM90, Shows::Streams, "wgmma: work goes to the caller's stream alone (report 126)", |g, e, s| {
        life::streams(g, &Case { deterministic: true, ..plain(e) }, s)
    }),
    of(BWD_SM90, Shows::Workspace, "wgmma: workspace faults leave the device usable (report 125)", |g, e, s| {
        faults::workspace_faults(g, &Case { deterministic: true, h_kv: 2, ..plain(e) }, s)
    }),
    of(BWD_SM90, Shows::Other, "wgmma: dropping a program during another one's capture (report 133)", |g, e, s| {
        life::drop_in_capture(g, &plain(e), s)
    }),
    of(BWD_SM90, Shows::Devices, "wgmma: device 0, device 1, device 0 (reports 113, 128)", |g, e, s| {
        life::devices(g, &Case { deterministic: true, ..at(e, (128, 128)) }, s)
    }),
];

fn plain(engine: &'static str) -> Case {
    Case { engine, ..Case::default() }
}

fn at(engine: &'static str, (d_qk, d_v): (i64, i64)) -> Case {
    Case { d_qk, d_v, ..plain(engine) }
}

fn causal(engine: &'static str) -> Case {
    Case { mask: MaskKind::Causal, ..plain(engine) }
}

fn with_bias(engine: &'static str) -> Case {
    Case { bias: Some((DType::BF16, true)), dbias: Some(DType::BF16), deterministic: true, ..plain(engine) }
}

fn packed(engine: &'static str, d: i64) -> Case {
    let lens = Lens::Thd { q: vec![390, 7, 130], kv: vec![260, 129, 0], head_major: false, wide: true };
    Case { b: 3, s_q: 390, s_kv: 260, h_q: 8, lens, deterministic: true, ..at(engine, (d, d)) }
}

/// Cases of the specials that no list has: they must be planned where no GPU is.
pub fn samples() -> Vec<Case> {
    vec![with_bias(BWD_SM90), packed(BWD_SM90, 128), packed(BWD_SM90, 192), big(BWD_SM90, true, 256)]
}

/// More blocks than fit, so that they are scheduled in waves; the oracle's time sets the rest.
fn big(engine: &'static str, deterministic: bool, d: i64) -> Case {
    Case { b: 5, h_q: 8, h_kv: 2, s_q: 390, s_kv: 390, d_qk: d, d_v: d, deterministic, ..causal(engine) }
}

fn allocations(gpu: &Gpu, engine: &'static str, seed: u64) -> Result<()> {
    faults::allocations(gpu, &[plain(engine), big(engine, true, 128), Case { h_kv: 1, sink: true, ..plain(engine) }], seed)
}

fn far_offset(gpu: &Gpu, engine: &'static str, seed: u64) -> Result<()> {
    check(gpu, &mut Rng(seed), engine, Far::Batches(5, (1 << 30) + (1 << 10)), DType::F16)
}

fn far_tokens(gpu: &Gpu, engine: &'static str, seed: u64) -> Result<()> {
    check(gpu, &mut Rng(seed), engine, Far::Tokens(800_000_000), DType::BF16)
}

fn determinism(gpu: &Gpu, engine: &'static str, seed: u64) -> Result<()> {
    fifty_runs(gpu, &[big(engine, true, 64), big(engine, true, 128)], seed)?;
    // The default mode may differ in bits, never in value, when SMs are taken away (report 138).
    let noise = CudaStream::new(&gpu.device)?;
    let mut r = must(gpu, &big(engine, false, 64), seed)?;
    let hog = spin(&gpu.device, sm_count(&gpu.device) - 1, 50)?;
    launch(&hog, &noise)?;
    let after = r.run(&gpu.stream, 0xff)?;
    r.judge(&after)?;
    noise.synchronize()
}

/// Lengths fall, so rows past them die; with 40 keys for 130 queries the first 90 rows see none.
fn capture(gpu: &Gpu, seed: u64, base: &Case) -> Result<()> {
    for deterministic in [false, true] {
        let with = |q: Vec<i64>, kv: Vec<i64>| Case {
            lens: Lens::Padded { q, kv },
            mask: MaskKind::CausalBottomRight,
            deterministic,
            h_kv: 2,
            ..base.clone()
        };
        let cases = [with(vec![130, 130], vec![130, 130]), with(vec![130, 77], vec![130, 40]), with(vec![130, 1], vec![40, 0])];
        replays(gpu, &cases, seed)?;
    }
    Ok(())
}

fn many_batches(gpu: &Gpu, engine: &'static str, seed: u64) -> Result<()> {
    let case =
        Case { engine, b: 65_536, h_q: 1, h_kv: 1, s_q: 4, s_kv: 4, d_qk: 8, d_v: 8, mask: MaskKind::Causal, ..Case::default() };
    once(gpu, &case, seed)
}
