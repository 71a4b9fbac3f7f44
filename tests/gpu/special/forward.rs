//! Specials of the forward rows.

mod checks;
mod problems;

use super::{faults, fifty_runs, life, of, once, replays, Shows, Special};
use crate::build::{K, O, Q};
use crate::cases::{Case, Fwd, MaskKind, Pages, StatsKind, BWD, BWD_SM90, DECODE, HOPPER, PREFILL};
use crate::far::{check_further, Far};
use crate::rng::Rng;
use crate::run::Gpu;
use checks::{capacity, clusters, dirty_tiles, every_plan, many_lengths, round_trip, sm_counts};
use frostgraph::engines::Knob;
use frostgraph::{DType, Result};
pub use problems::samples;
use problems::{batches, big, decode, hopper, padded, prefill, split};

pub const ALL: &[Special] = &[
    of(PREFILL, Shows::Replay, "capture, replay with other lengths and newly dead rows: prefill", capture),
    of(DECODE, Shows::Replay, "capture, replay with other lengths and block tables: decode (report 135)", capture_decode),
    of(PREFILL, Shows::FiftyRuns, "50 runs, idle and beside a busy stream: prefill", |g, _, s| {
        fifty_runs(g, &[big(64), big(128)], s)
    }),
    of(PREFILL, Shows::Other, "forward, then backward on its O and Stats, against the oracle's gradients", |g, e, s| {
        round_trip(g, s, e, BWD)
    }),
    of(PREFILL, Shows::Other, "every ranked plan of a graph is right (report 120)", |g, _, s| every_plan(g, s)),
    of(PREFILL, Shows::Other, "results do not depend on the SM count that was planned for (report 110)", |g, _, s| {
        sm_counts(g, s)
    }),
    of(DECODE, Shows::Other, "decode at many lengths with the heuristics' own splits (report 108)", |g, _, s| many_lengths(g, s)),
    of(DECODE, Shows::Other, "a cache larger than the keys (report 111)", |g, _, s| capacity(g, s)),
    of(DECODE, Shows::Other, "the first execution of a process is inside a capture (report 136)", |g, _, s| {
        life::first_in_capture(g, &split(4), s)
    }),
    of(DECODE, Shows::Streams, "work goes to the caller's stream alone (report 126)", |g, _, s| life::streams(g, &split(4), s)),
    of(DECODE, Shows::Threads, "two threads, one executable", |g, _, s| life::threads(g, &split(4), s)),
    of(PREFILL, Shows::Other, "dropping a program during another one's capture (report 133)", |g, _, s| {
        life::drop_in_capture(g, &prefill(), s)
    }),
    of(PREFILL, Shows::Other, "dropping everything after a graph was destroyed (report 131)", |g, _, s| {
        life::drop_after_graph(g, &prefill(), s)
    }),
    of(DECODE, Shows::Devices, "device 0, device 1, device 0 (reports 113, 128)", |g, _, s| life::devices(g, &split(4), s)),
    of(DECODE, Shows::Workspace, "workspace faults leave the device usable (report 125)", |g, _, s| {
        faults::workspace_faults(g, &split(4), s)
    }),
    of(PREFILL, Shows::Misaligned, "misaligned operands are typed errors (report 45): prefill", |g, _, s| {
        faults::misaligned(g, &prefill(), [Q, K, O], s)
    }),
    of(DECODE, Shows::Misaligned, "misaligned operands are typed errors (report 45): decode", |g, _, s| {
        faults::misaligned(g, &decode(), [Q, K, O], s)
    }),
    of(DECODE, Shows::Allocations, "execute allocates nothing on the host (I5)", |g, _, s| {
        faults::allocations(g, &[decode(), split(4)], s)
    }),
    of(PREFILL, Shows::Fault, "a faulting kernel: named error, no panic on drop (report 146)", |g, _, s| {
        faults::faulting(g, &prefill(), s)
    }),
    of(PREFILL, Shows::Other, "batch 65536 (report 28): prefill", many_batches),
    of(PREFILL, Shows::Other, "an exploding value dirties the tiles that a masked row finds (report 10)", |g, _, s| {
        dirty_tiles(g, s)
    }),
    of(PREFILL, Shows::Far, "physical batch stride above 2^32 bytes (rule S7): prefill", far_bytes),
    of(DECODE, Shows::Far, "physical batch stride above 2^32 bytes (rule S7): decode", far_bytes),
    of(PREFILL, Shows::Far, "batch offset above 2^32 elements (rule S7): prefill", far_offset),
    of(DECODE, Shows::Far, "batch offset above 2^32 elements (rule S7): decode", far_offset),
    // Four tokens of 4.8 GB in all.
    of(PREFILL, Shows::Far, "token stride of 8e8 elements (report 23): prefill", far_tokens),
    of(DECODE, Shows::Far, "token stride of 8e8 elements (report 23): decode", far_tokens),
    of(PREFILL, Shows::Far, "physical batch stride above 2^32 elements (rule S7): prefill", far_stride),
    of(DECODE, Shows::Far, "physical batch stride above 2^32 elements (rule S7): decode", far_stride),
    of(PREFILL, Shows::Far, "packed sequences 2^31 elements apart (reports 26 and 31)", |g, e, s| {
        far(g, s, e, Far::Sequences(1 << 18))
    }),
    of(PREFILL, Shows::Far, "packed sequences above 2^32 elements apart (reports 26 and 31)", far_sequences),
    of(DECODE, Shows::Far, "pages 2^30 elements apart (report 30)", |g, e, s| far(g, s, e, Far::Pages((1 << 30) + (1 << 10)))),
    of(HOPPER, Shows::Replay, "capture, replay with other lengths and newly dead rows: Hopper", capture),
    of(HOPPER, Shows::FiftyRuns, "50 runs, idle and beside a busy stream: Hopper", |g, _, s| fifty_hopper(g, s)),
    of(HOPPER, Shows::Misaligned, "misaligned operands are typed errors (report 45): Hopper", |g, e, s| {
        faults::misaligned(g, &Case { engine: e, ..prefill() }, [Q, K, O], s)
    }),
    of(HOPPER, Shows::Far, "batch offset above 2^32 elements (rule S7): Hopper", far_offset),
    of(HOPPER, Shows::Far, "token stride of 8e8 elements (report 23): Hopper", far_tokens),
    of(HOPPER, Shows::Far, "packed sequences above 2^32 elements apart (reports 26 and 31): Hopper", far_sequences),
    of(HOPPER, Shows::Far, "physical batch stride above 2^32 elements (rule S7): Hopper", far_stride),
    of(HOPPER, Shows::Far, "batch offset above 2^32 elements and far tokens at every tile: Hopper", |g, e, s| {
        check_further(g, e, s, Far::Batches(5, (1 << 30) + (1 << 10)), DType::BF16)?;
        check_further(g, e, s, Far::Tokens(800_000_000), DType::F16)
    }),
    of(HOPPER, Shows::Streams, "work goes to the caller's stream alone (report 126): Hopper", streams),
    of(HOPPER, Shows::Threads, "two threads, one executable: Hopper", threads),
    of(HOPPER, Shows::Allocations, "execute allocates nothing on the host (I5): Hopper", allocations),
    of(HOPPER, Shows::Devices, "device 0, device 1, device 0 (reports 113, 128): Hopper", devices),
    of(HOPPER, Shows::Other, "the first execution of a process is inside a capture (report 136): Hopper", |g, e, s| {
        life::first_in_capture(g, &Case { engine: e, ..prefill() }, s)
    }),
    of(HOPPER, Shows::Other, "dropping a program during another one's capture (report 133): Hopper", |g, e, s| {
        life::drop_in_capture(g, &Case { engine: e, ..prefill() }, s)
    }),
    of(HOPPER, Shows::Other, "batch 65536 (report 28): Hopper", many_batches),
    of(HOPPER, Shows::Other, "forward, then backward on its O and Stats: both Hopper rows", |g, e, s| {
        round_trip(g, s, e, BWD_SM90)
    }),
    of(PREFILL, Shows::Streams, "work goes to the caller's stream alone (report 126): prefill", streams),
    of(PREFILL, Shows::Threads, "two threads, one executable: prefill", threads),
    of(PREFILL, Shows::Allocations, "execute allocates nothing on the host (I5): prefill", allocations),
    of(PREFILL, Shows::Devices, "device 0, device 1, device 0 (reports 113, 128): prefill", devices),
    of(DECODE, Shows::FiftyRuns, "50 runs, idle and beside a busy stream: decode", |g, _, s| {
        fifty_runs(g, &[split(8), decode()], s)
    }),
    of(DECODE, Shows::Other, "batch 65536 (report 28): decode", many_batches),
    of(HOPPER, Shows::Other, "clusters of two change no bit: Hopper", |g, _, s| clusters(g, s)),
];

/// Each kind of tiles, more of them than multiprocessors. The oracle sets the size: 900 tokens of each head dim took it longer than all runs.
fn fifty_hopper(gpu: &Gpu, seed: u64) -> Result<()> {
    let at = |d, knobs| hopper(Case { s_q: 390, s_kv: 390, knobs, ..big(d) });
    let (split, packed) = (vec![(Knob::TileM, 64)], vec![(Knob::PackGqa, 1)]);
    fifty_runs(
        gpu,
        &[at(64, Vec::new()), at(128, Vec::new()), at(256, Vec::new()), at(64, split.clone()), at(128, split), at(128, packed)],
        seed,
    )
}

fn far(gpu: &Gpu, seed: u64, engine: &'static str, far: Far) -> Result<()> {
    let dtype = if matches!(far, Far::Batches(5, _) | Far::Sequences(_)) { DType::F16 } else { DType::BF16 };
    crate::far::check(gpu, &mut Rng(seed), engine, far, dtype)
}

fn far_bytes(gpu: &Gpu, engine: &'static str, seed: u64) -> Result<()> {
    far(gpu, seed, engine, Far::Batches(2, (1 << 31) + (1 << 10)))
}

fn far_offset(gpu: &Gpu, engine: &'static str, seed: u64) -> Result<()> {
    far(gpu, seed, engine, Far::Batches(5, (1 << 30) + (1 << 10)))
}

fn far_stride(gpu: &Gpu, engine: &'static str, seed: u64) -> Result<()> {
    far(gpu, seed, engine, Far::Batches(2, (1 << 32) + (1 << 10)))
}

fn far_tokens(gpu: &Gpu, engine: &'static str, seed: u64) -> Result<()> {
    far(gpu, seed, engine, Far::Tokens(800_000_000))
}

fn far_sequences(gpu: &Gpu, engine: &'static str, seed: u64) -> Result<()> {
    far(gpu, seed, engine, Far::Sequences((1 << 19) + 5))
}

fn streams(gpu: &Gpu, engine: &'static str, seed: u64) -> Result<()> {
    life::streams(gpu, &Case { engine, ..prefill() }, seed)
}

fn threads(gpu: &Gpu, engine: &'static str, seed: u64) -> Result<()> {
    life::threads(gpu, &Case { engine, ..prefill() }, seed)
}

fn devices(gpu: &Gpu, engine: &'static str, seed: u64) -> Result<()> {
    life::devices(gpu, &Case { engine, ..prefill() }, seed)
}

fn allocations(gpu: &Gpu, engine: &'static str, seed: u64) -> Result<()> {
    faults::allocations(gpu, &[Case { engine, ..prefill() }, Case { engine, d_qk: 128, d_v: 128, ..prefill() }], seed)
}

/// Lengths fall, so rows past them die and rows that saw keys see none; then they rise again.
fn capture(gpu: &Gpu, engine: &'static str, seed: u64) -> Result<()> {
    for cu in [false, true] {
        let fwd = Fwd { cu, max_sum: true, ..Fwd::default() };
        let base = Case { engine, mask: MaskKind::CausalBottomRight, fwd, ..prefill() };
        let at = |q: &[i64], kv: &[i64]| padded(base.clone(), q, kv);
        let lens =
            [at(&[130, 130], &[130, 130]), at(&[130, 77], &[130, 40]), at(&[130, 1], &[40, 0]), at(&[129, 130], &[1, 130])];
        replays(gpu, &lens, seed)?;
    }
    Ok(())
}

fn capture_decode(gpu: &Gpu, _: &'static str, seed: u64) -> Result<()> {
    for (knobs, pages) in [(Vec::new(), None), (vec![(Knob::SplitKv, 8)], Some(Pages { rows: 16, nhd: true, spare: 1 }))] {
        let fwd = Fwd { pages, stats: StatsKind::Log2, ..Fwd::default() };
        let base = Case { knobs, fwd, ..decode() };
        let at = |q: &[i64], kv: &[i64]| padded(base.clone(), q, kv);
        replays(gpu, &[at(&[3, 3], &[700, 700]), at(&[3, 2], &[1, 350]), at(&[0, 3], &[700, 0]), at(&[3, 3], &[2, 699])], seed)?;
    }
    Ok(())
}

fn many_batches(gpu: &Gpu, engine: &'static str, seed: u64) -> Result<()> {
    once(gpu, &batches(engine), seed)
}
