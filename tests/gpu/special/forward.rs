//! Specials of the forward rows.

use super::{failed, faults, fifty_runs, life, must, of, once, replays, Shows, Special};
use crate::build::{graph, K, O, Q, STATS};
use crate::cases::{Case, Fwd, Lens, Logits, MaskKind, Pages, StatsKind, BWD, BWD_SM90, DECODE, HOPPER, PREFILL};
use crate::far::{check_further, Far};
use crate::judge::judge;
use crate::plan::{plan, Planned};
use crate::problem::{port_of, prepare};
use crate::rng::Rng;
use crate::run::{ready_with, Gpu};
use frostgraph::engines::{Knob, Target};
use frostgraph::plan::BuildOptions;
use frostgraph::{DType, Device, Result};

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

fn prefill() -> Case {
    Case { h_kv: 2, mask: MaskKind::Causal, ..Case::plain(PREFILL) }
}

/// The same problem for the Hopper row.
fn hopper(case: Case) -> Case {
    Case { engine: HOPPER, ..case }
}

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

fn decode() -> Case {
    Case { s_q: 3, mask: MaskKind::CausalBottomRight, ..Case::plain(DECODE) }
}

/// A decode case that needs a workspace.
fn split(n: i64) -> Case {
    Case { knobs: vec![(Knob::SplitKv, n)], ..decode() }
}

/// More blocks than fit, so that they are scheduled in waves.
fn big(d: i64) -> Case {
    Case { b: 4, h_q: 16, h_kv: 4, s_q: 900, s_kv: 900, d_qk: d, d_v: d, ..prefill() }
}

/// One case of each kind that the specials run: they must be planned where no GPU is.
pub fn samples() -> Vec<Case> {
    let paged = Fwd { pages: Some(Pages { rows: 16, nhd: true, spare: 1 }), stats: StatsKind::Log2, ..Fwd::default() };
    vec![
        prefill(),
        decode(),
        split(4),
        big(128),
        hopper(big(128)),
        hopper(prefill()),
        padded(Case { fwd: paged, ..split(8) }, &[3, 3], &[700, 700]),
        padded(Case { s_kv: 401, h_kv: 8, ..split(1) }, &[3], &[400]),
        padded(Case { mask: MaskKind::CausalBottomRight, s_q: 256, s_kv: 64, ..prefill() }, &[256, 256], &[64, 0]),
        batches(PREFILL),
        batches(DECODE),
        batches(HOPPER),
    ]
}

fn far(gpu: &Gpu, seed: u64, engine: &'static str, far: Far) -> Result<()> {
    let dtype = if matches!(far, Far::Batches(5, _) | Far::Sequences(_)) { DType::F16 } else { DType::BF16 };
    crate::far::check(gpu, &mut Rng(seed), engine, far, dtype)
}

fn padded(base: Case, q: &[i64], kv: &[i64]) -> Case {
    Case { b: q.len() as i64, lens: Lens::Padded { q: q.to_vec(), kv: kv.to_vec() }, ..base }
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

/// The forward's own O and Stats, as bytes, go into the backward; gradients are compared with those of the exact forward.
fn round_trip(gpu: &Gpu, seed: u64, first: &'static str, second: &'static str) -> Result<()> {
    let packed = Lens::Thd { q: vec![130, 0], kv: vec![100, 30], head_major: false, wide: false };
    let padded = Lens::Padded { q: vec![64, 130], kv: vec![130, 31] };
    for (n, lens) in [Lens::Full, padded, packed].into_iter().enumerate() {
        for (i, (d_qk, d_v)) in [(64, 64), (128, 128), (192, 128)].into_iter().enumerate() {
            // Types take turns, and both rows of a pass have both.
            let dtype = [DType::BF16, DType::F16][(n + i) % 2];
            let backward = Case {
                mask: MaskKind::Causal,
                h_kv: 2,
                sink: n == 0,
                lens: lens.clone(),
                d_qk,
                d_v,
                dtype,
                engine: second,
                ..Case::default()
            };
            let forward = Case { engine: first, ..backward.clone() };
            let mut b = must(gpu, &backward, seed)?;
            let mut f = must(gpu, &forward, seed)?;
            // The same operands: those of the backward.
            let tensors: Vec<(i64, Vec<u8>)> = b.prepared.tensors.clone().into_iter().collect();
            f.image.upload(0xff)?;
            for (uid, bytes) in tensors.iter().filter(|(uid, _)| f.prepared.tensors.contains_key(uid)) {
                if !f.prepared.owned.contains_key(uid) {
                    f.image.replace(*uid, bytes)?;
                }
            }
            f.queue(&gpu.stream)?;
            gpu.stream.synchronize()?;
            let after = f.image.download()?;
            b.image.upload(0xff)?;
            for uid in [O, STATS] {
                let (from, to) = (port_of(&f.prepared.facts, uid)?.0, port_of(&b.prepared.facts, uid)?.0);
                if from.stride != to.stride {
                    return Err(failed(format!("uid {uid} with strides {:?} and {:?}", from.stride, to.stride), "one layout"));
                }
                b.image.replace(uid, f.image.part(&after, uid))?;
            }
            b.queue(&gpu.stream)?;
            gpu.stream.synchronize()?;
            b.judge(&b.image.download()?).map_err(|e| e.at(format!("{second} after {forward}")))?;
        }
    }
    Ok(())
}

/// Every entry of the list, not the first alone.
fn every_plan(gpu: &Gpu, seed: u64) -> Result<()> {
    let wide = |d_qk, d_v, base: Case| Case { d_qk, d_v, s_q: 300, s_kv: 300, ..base };
    let mut ran = 0;
    for case in [prefill(), wide(128, 128, prefill()), wide(192, 128, prefill()), wide(256, 256, prefill()), decode()] {
        let built = graph(&case)?.build_with(&gpu.planned, &BuildOptions::all_engines())?;
        for plan in built.plans() {
            let mut r = ready_with(gpu, &case, &plan, built.nodes()[0].facts(), seed)?;
            let after = r.run(&gpu.stream, 0xff)?;
            r.judge(&after).map_err(|e| e.at(format!("{plan} of {case}")))?;
            r.image.untouched(&after, &r.prepared.owned)?;
            ran += 1;
        }
    }
    if ran < 15 {
        return Err(failed(format!("{ran} plans"), "several plans a graph"));
    }
    Ok(())
}

/// Plans as for other products of this architecture: the split count follows the SM count, the result may not.
fn sm_counts(gpu: &Gpu, seed: u64) -> Result<()> {
    for case in [decode(), Case { s_q: 1, h_kv: 1, s_kv: 1025, ..decode() }, prefill()] {
        for sms in [48, 76, 108, 132, 148, 188] {
            let mut target = gpu.planned.target.clone();
            if let Target::Cuda { sm_count, .. } = &mut target {
                *sm_count = sms;
            }
            let device = Device { target, ..gpu.planned.clone() };
            let built = graph(&case)?.build_with(&device, &BuildOptions::all_engines())?;
            let plan = built.best()?;
            let mut r = ready_with(gpu, &case, &plan, built.nodes()[0].facts(), seed)?;
            let after = r.run(&gpu.stream, 0xff)?;
            r.judge(&after).map_err(|e| e.at(format!("{plan} of {case} planned for {sms} SMs")))?;
        }
    }
    Ok(())
}

/// Clusters of CTAs that share their kv tiles against single ones that take the same tiles in another order. Problems that a device's L2 cache does not hold
/// take clusters; so plans are made for one with a small cache and few multiprocessors.
fn clusters(gpu: &Gpu, seed: u64) -> Result<()> {
    let mut target = gpu.planned.target.clone();
    if let Target::Cuda { sm_count, l2_bytes, .. } = &mut target {
        (*sm_count, *l2_bytes) = (4, 1 << 20);
    }
    let device = Device { target, ..gpu.planned.clone() };
    for (i, (d_qk, d_v)) in [(128, 128), (192, 128), (256, 256)].into_iter().enumerate() {
        for (j, mask) in [MaskKind::Causal, MaskKind::CausalBottomRight].into_iter().enumerate() {
            // Long by what is declared, short by the lengths: the oracle, which counts those, is quick.
            let (s_q, q, kv) = [(4096, [1100, 517], [1300, 700]), (4600, [1300, 77], [600, 1290])][j];
            let base = Case {
                engine: HOPPER,
                b: 2,
                h_q: 1,
                h_kv: 1,
                s_q,
                s_kv: 4700,
                d_qk,
                d_v,
                mask,
                lens: Lens::Padded { q: q.to_vec(), kv: kv.to_vec() },
                sink: j == 1,
                ..Case::default()
            };
            let dtype = [DType::BF16, DType::F16][(i + j) % 2];
            let mut outputs = Vec::new();
            for (sched, cluster) in [(2, 2), (1, 1)] {
                let case = Case { dtype, knobs: vec![(Knob::TileM, 128), (Knob::SchedPolicy, sched)], ..base.clone() };
                let (built, plan) = match plan(&case, &device)? {
                    Planned::Ready(p) => *p,
                    Planned::Declined(why) => return Err(failed(why, "a plan")),
                };
                let text = plan.lower()?.nodes[0].launches.to_string();
                if text.contains(", cluster 2") != (cluster == 2) {
                    return Err(failed(text, format!("clusters of {cluster}")));
                }
                let mut r = ready_with(gpu, &case, &plan, built.nodes()[0].facts(), seed)?;
                let after = r.run(&gpu.stream, 0xff)?;
                r.image.untouched(&after, &r.prepared.owned)?;
                r.judge(&after)?;
                outputs.push(r.outputs(&after));
            }
            if outputs[0] != outputs[1] {
                return Err(failed(format!("other bits with clusters: {base}"), "the same bits"));
            }
        }
    }
    Ok(())
}

fn many_lengths(gpu: &Gpu, seed: u64) -> Result<()> {
    // 61 shares no factor with page or tile: every remainder comes up.
    for s_kv in (1..2048).step_by(61) {
        let pages = Some(Pages { rows: 16, nhd: false, spare: 0 });
        let fwd = Fwd { pages, ..Fwd::default() };
        let base = Case { s_q: 1, s_kv, d_qk: 128, d_v: 128, mask: MaskKind::None, fwd, ..decode() };
        once(gpu, &padded(base, &[1, 1, 1, 0], &[s_kv, 1, s_kv / 2, s_kv]), seed)?;
    }
    Ok(())
}

/// The same keys in caches of several sizes: one graph each, every one within bounds, and the unsplit ones with the same bits.
fn capacity(gpu: &Gpu, seed: u64) -> Result<()> {
    let mut bits = Vec::new();
    for room in [400, 401, 1600] {
        let base = Case { s_kv: room, knobs: vec![(Knob::SplitKv, 1)], h_kv: 8, b: 1, ..decode() };
        let case = padded(base, &[3], &[400]);
        let mut r = must(gpu, &case, seed)?;
        let small = prepare(&padded(Case { s_kv: 400, ..case.clone() }, &[3], &[400]), &facts_at(&case, gpu, 400)?, seed)?;
        // One batch entry in sequence-major order: the first 400 keys of every cache are the small cache's bytes.
        r.image.upload(0xff)?;
        for uid in [Q, K, crate::build::V] {
            let bytes = &small.tensors[&uid];
            r.image.replace(uid, bytes)?;
        }
        r.queue(&gpu.stream)?;
        gpu.stream.synchronize()?;
        let after = r.image.download()?;
        for uid in [O, STATS] {
            judge(&case, &small, uid, r.image.part(&after, uid)).map_err(|e| e.at(format!("a cache of {room} rows")))?;
        }
        bits.push(r.outputs(&after));
    }
    if bits.iter().any(|b| *b != bits[0]) {
        return Err(failed("bits that depend on the cache's size", "equal bits"));
    }
    Ok(())
}

fn facts_at(case: &Case, gpu: &Gpu, s_kv: i64) -> Result<frostgraph::engines::Facts> {
    let near = graph(&Case { s_kv, ..case.clone() })?.build_with(&gpu.planned, &BuildOptions::all_engines())?;
    Ok(near.nodes()[0].facts().clone())
}

fn many_batches(gpu: &Gpu, engine: &'static str, seed: u64) -> Result<()> {
    once(gpu, &batches(engine), seed)
}

fn batches(engine: &'static str) -> Case {
    let small = Case { h_q: 1, h_kv: 1, s_q: 4, s_kv: 4, d_qk: 8, d_v: 8, ..Case::default() };
    Case { engine, b: 65_536, mask: MaskKind::Causal, ..small }
}

/// Values of the order of 1e30 pass through registers and shared memory first; the dead rows of the next call must be exactly zero.
fn dirty_tiles(gpu: &Gpu, seed: u64) -> Result<()> {
    let loud = Case { fwd: Fwd { logits: Logits::Loud, ..Fwd::default() }, ..big(64) };
    let dead = padded(Case { mask: MaskKind::CausalBottomRight, s_q: 256, s_kv: 64, ..prefill() }, &[256, 256], &[64, 0]);
    let (mut loud, mut r) = (must(gpu, &loud, seed)?, must(gpu, &dead, seed)?);
    for _ in 0..3 {
        let after = loud.run(&gpu.stream, 0xff)?;
        loud.judge(&after)?;
        let after = r.run(&gpu.stream, 0xff)?;
        r.judge(&after)?;
    }
    Ok(())
}
