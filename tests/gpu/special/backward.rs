//! Specials of the backward.

use super::{faults, fifty_runs, launch, life, must, once, replays, sm_count, spin, Special};
use crate::build::{DQ, K, Q};
use crate::cases::{Case, Lens, MaskKind, BWD, BWD_SM90};
use crate::far::{check, Far};
use crate::rng::Rng;
use crate::run::Gpu;
use frostgraph::runtime::CudaStream;
use frostgraph::{DType, Result};

pub const ALL: &[Special] = &[
    ("a kernel reads the parameters that the host passes", faults::parameters),
    ("determinism: 50 runs, idle and beside a busy stream", determinism),
    ("capture, replay with other inputs and newly dead rows", |g, s| capture(g, s, &Case::default())),
    ("the first execution of a process is inside a capture (report 136)", |g, s| {
        life::first_in_capture(g, &Case { mask: MaskKind::Causal, ..Case::default() }, s)
    }),
    ("work goes to the caller's stream alone (report 126)", |g, s| life::streams(g, &Case::default(), s)),
    ("two threads, one executable", |g, s| life::threads(g, &Case { mask: MaskKind::Causal, h_kv: 1, ..Case::default() }, s)),
    ("dropping a program during another one's capture (report 133)", |g, s| life::drop_in_capture(g, &Case::default(), s)),
    ("dropping everything after a graph was destroyed (report 131)", |g, s| life::drop_after_graph(g, &Case::default(), s)),
    ("device 0, device 1, device 0 (reports 113, 128)", |g, s| life::devices(g, &Case::default(), s)),
    ("workspace faults leave the device usable (report 125)", |g, s| faults::workspace_faults(g, &Case::default(), s)),
    ("misaligned operands are typed errors (report 45)", |g, s| faults::misaligned(g, &Case::default(), [Q, K, DQ], s)),
    ("execute allocates nothing on the host (I5)", |g, s| {
        faults::allocations(g, &[Case::default(), big(true, 128), Case { h_kv: 1, sink: true, ..Case::default() }], s)
    }),
    ("a faulting kernel: named error, no panic on drop (report 146)", |g, s| faults::faulting(g, &Case::default(), s)),
    ("batch 65536 (report 28)", |g, s| many_batches(g, s, BWD)),
    // Elements: two bytes each, so 2^31 + 2^10 of them pass 2^32 bytes with two batch entries.
    ("physical batch stride above 2^32 bytes (rule S7)", |g, s| {
        check(g, &mut Rng(s), BWD, Far::Batches(2, (1 << 31) + (1 << 10)), DType::BF16)
    }),
    // Each stride fits 31 bits, four of them pass 2^32 elements.
    ("batch offset above 2^32 elements (rule S7)", |g, s| {
        check(g, &mut Rng(s), BWD, Far::Batches(5, (1 << 30) + (1 << 10)), DType::F16)
    }),
    ("token stride of 8e8 elements (report 23)", |g, s| check(g, &mut Rng(s), BWD, Far::Tokens(800_000_000), DType::BF16)),
    ("wgmma: determinism, 50 runs, idle and beside a busy stream", |g, s| {
        let wide = Case { engine: BWD_SM90, d_qk: 192, ..big(true, 128) };
        fifty_runs(g, &[Case { engine: BWD_SM90, ..big(true, 64) }, Case { engine: BWD_SM90, ..big(true, 128) }, wide], s)
    }),
    ("wgmma: batch offset above 2^32 elements (rule S7)", |g, s| {
        check(g, &mut Rng(s), BWD_SM90, Far::Batches(5, (1 << 30) + (1 << 10)), DType::F16)
    }),
    ("wgmma: token stride of 8e8 elements (report 23)", |g, s| {
        check(g, &mut Rng(s), BWD_SM90, Far::Tokens(800_000_000), DType::BF16)
    }),
    ("wgmma: capture, replay with other inputs and newly dead rows", |g, s| {
        [(64, 64), (128, 128), (192, 128)].into_iter().try_for_each(|(d_qk, d_v)| capture(g, s, &Case { d_qk, d_v, ..wgmma() }))
    }),
    ("wgmma: the first execution of a process is inside a capture (report 136)", |g, s| {
        life::first_in_capture(g, &Case { mask: MaskKind::Causal, deterministic: true, ..wgmma() }, s)
    }),
    ("wgmma: two threads, one executable", |g, s| {
        life::threads(g, &Case { mask: MaskKind::Causal, h_kv: 1, deterministic: true, d_qk: 128, d_v: 128, ..wgmma() }, s)
    }),
    ("wgmma: misaligned operands are typed errors (report 45)", |g, s| faults::misaligned(g, &wgmma(), [Q, K, DQ], s)),
    ("wgmma: batch 65536 (report 28)", |g, s| many_batches(g, s, BWD_SM90)),
    ("wgmma: physical batch stride above 2^32 elements (rule S7)", |g, s| {
        check(g, &mut Rng(s), BWD_SM90, Far::Batches(2, (1 << 32) + (1 << 10)), DType::BF16)
    }),
    ("wgmma: execute allocates nothing on the host (I5)", |g, s| {
        let of = |case: Case| Case { engine: BWD_SM90, ..case };
        let sink = Case { h_kv: 1, sink: true, ..wgmma() };
        let dbias = Case { bias: Some((DType::BF16, true)), dbias: Some(DType::BF16), deterministic: true, ..wgmma() };
        faults::allocations(g, &[wgmma(), of(big(true, 128)), sink, dbias], s)
    }),
];

fn wgmma() -> Case {
    Case { engine: BWD_SM90, ..Case::default() }
}

/// More blocks than fit, so that they are scheduled in waves.
fn big(deterministic: bool, d: i64) -> Case {
    Case { b: 4, h_q: 8, h_kv: 2, s_q: 600, s_kv: 600, d_qk: d, d_v: d, mask: MaskKind::Causal, deterministic, ..Case::default() }
}

fn determinism(gpu: &Gpu, seed: u64) -> Result<()> {
    fifty_runs(gpu, &[big(true, 64), big(true, 128)], seed)?;
    // The default mode may differ in bits, never in value, when SMs are taken away (report 138).
    let noise = CudaStream::new(&gpu.device)?;
    let mut r = must(gpu, &big(false, 64), seed)?;
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

fn many_batches(gpu: &Gpu, seed: u64, engine: &'static str) -> Result<()> {
    let case =
        Case { engine, b: 65_536, h_q: 1, h_kv: 1, s_q: 4, s_kv: 4, d_qk: 8, d_v: 8, mask: MaskKind::Causal, ..Case::default() };
    once(gpu, &case, seed)
}
