//! Specials of the forward rows.

use super::{failed, faults, fifty_runs, life, must, once, replays, Special};
use crate::build::{graph, K, O, Q, STATS};
use crate::cases::{Case, Fwd, Lens, Logits, MaskKind, Pages, StatsKind, BWD, DECODE, HOPPER, PREFILL};
use crate::far::Far;
use crate::judge::judge;
use crate::problem::{port_of, prepare};
use crate::rng::Rng;
use crate::run::{ready_with, Gpu};
use frostgraph::engines::{Knob, Target};
use frostgraph::plan::BuildOptions;
use frostgraph::{DType, Device, Result};

pub const ALL: &[Special] = &[
    ("capture, replay with other lengths and newly dead rows: prefill", capture_prefill),
    ("capture, replay with other lengths and block tables: decode (report 135)", capture_decode),
    ("50 runs, idle and beside a busy stream", |g, s| fifty_runs(g, &[big(64), big(128), split(8), decode()], s)),
    ("forward, then backward on its O and Stats, against the oracle's gradients", round_trip),
    ("every ranked plan of a graph is right (report 120)", every_plan),
    ("results do not depend on the SM count that was planned for (report 110)", sm_counts),
    ("decode at many lengths with the heuristics' own splits (report 108)", many_lengths),
    ("a cache larger than the keys (report 111)", capacity),
    ("the first execution of a process is inside a capture (report 136)", |g, s| life::first_in_capture(g, &split(4), s)),
    ("work goes to the caller's stream alone (report 126)", |g, s| life::streams(g, &split(4), s)),
    ("two threads, one executable", |g, s| life::threads(g, &split(4), s)),
    ("dropping a program during another one's capture (report 133)", |g, s| life::drop_in_capture(g, &prefill(), s)),
    ("dropping everything after a graph was destroyed (report 131)", |g, s| life::drop_after_graph(g, &prefill(), s)),
    ("device 0, device 1, device 0 (reports 113, 128)", |g, s| life::devices(g, &split(4), s)),
    ("workspace faults leave the device usable (report 125)", |g, s| faults::workspace_faults(g, &split(4), s)),
    ("misaligned operands are typed errors (report 45): prefill", |g, s| faults::misaligned(g, &prefill(), [Q, K, O], s)),
    ("misaligned operands are typed errors (report 45): decode", |g, s| faults::misaligned(g, &decode(), [Q, K, O], s)),
    ("execute allocates nothing on the host (I5)", |g, s| faults::allocations(g, &[prefill(), decode(), split(4)], s)),
    ("a faulting kernel: named error, no panic on drop (report 146)", |g, s| faults::faulting(g, &prefill(), s)),
    ("batch 65536 (report 28)", many_batches),
    ("an exploding value dirties the tiles that a masked row finds (report 10)", dirty_tiles),
    ("physical batch stride above 2^32 bytes (rule S7): prefill", |g, s| {
        far(g, s, PREFILL, Far::Batches(2, (1 << 31) + (1 << 10)))
    }),
    ("physical batch stride above 2^32 bytes (rule S7): decode", |g, s| {
        far(g, s, DECODE, Far::Batches(2, (1 << 31) + (1 << 10)))
    }),
    ("batch offset above 2^32 elements (rule S7): prefill", |g, s| far(g, s, PREFILL, Far::Batches(5, (1 << 30) + (1 << 10)))),
    ("batch offset above 2^32 elements (rule S7): decode", |g, s| far(g, s, DECODE, Far::Batches(5, (1 << 30) + (1 << 10)))),
    // Four tokens of 4.8 GB in all.
    ("token stride of 8e8 elements (report 23): prefill", |g, s| far(g, s, PREFILL, Far::Tokens(800_000_000))),
    ("token stride of 8e8 elements (report 23): decode", |g, s| far(g, s, DECODE, Far::Tokens(800_000_000))),
    ("physical batch stride above 2^32 elements (rule S7): prefill", |g, s| {
        far(g, s, PREFILL, Far::Batches(2, (1 << 32) + (1 << 10)))
    }),
    ("physical batch stride above 2^32 elements (rule S7): decode", |g, s| {
        far(g, s, DECODE, Far::Batches(2, (1 << 32) + (1 << 10)))
    }),
    ("packed sequences 2^31 elements apart (reports 26 and 31)", |g, s| far(g, s, PREFILL, Far::Sequences(1 << 18))),
    ("packed sequences above 2^32 elements apart (reports 26 and 31)", |g, s| far(g, s, PREFILL, Far::Sequences((1 << 19) + 5))),
    ("pages 2^30 elements apart (report 30)", |g, s| far(g, s, DECODE, Far::Pages((1 << 30) + (1 << 10)))),
    ("capture, replay with other lengths and newly dead rows: Hopper", capture_hopper),
    ("50 runs, idle and beside a busy stream: Hopper", fifty_hopper),
    ("misaligned operands are typed errors (report 45): Hopper", |g, s| faults::misaligned(g, &hopper(prefill()), [Q, K, O], s)),
    ("batch offset above 2^32 elements (rule S7): Hopper", |g, s| far(g, s, HOPPER, Far::Batches(5, (1 << 30) + (1 << 10)))),
    ("token stride of 8e8 elements (report 23): Hopper", |g, s| far(g, s, HOPPER, Far::Tokens(800_000_000))),
    ("packed sequences above 2^32 elements apart (reports 26 and 31): Hopper", |g, s| {
        far(g, s, HOPPER, Far::Sequences((1 << 19) + 5))
    }),
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
    let batches = Case { b: 65_536, h_q: 1, h_kv: 1, s_q: 4, s_kv: 4, d_qk: 8, d_v: 8, ..Case::default() };
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
        Case { engine: PREFILL, ..batches.clone() },
        Case { engine: DECODE, ..batches },
    ]
}

fn far(gpu: &Gpu, seed: u64, engine: &'static str, far: Far) -> Result<()> {
    let dtype = if matches!(far, Far::Batches(5, _) | Far::Sequences(_)) { DType::F16 } else { DType::BF16 };
    crate::far::check(gpu, &mut Rng(seed), engine, far, dtype)
}

fn padded(base: Case, q: &[i64], kv: &[i64]) -> Case {
    Case { b: q.len() as i64, lens: Lens::Padded { q: q.to_vec(), kv: kv.to_vec() }, ..base }
}

fn capture_prefill(gpu: &Gpu, seed: u64) -> Result<()> {
    capture(gpu, seed, |case| case)
}

fn capture_hopper(gpu: &Gpu, seed: u64) -> Result<()> {
    capture(gpu, seed, hopper)
}

/// Lengths fall, so rows past them die and rows that saw keys see none; then they rise again.
fn capture(gpu: &Gpu, seed: u64, of_row: impl Fn(Case) -> Case) -> Result<()> {
    for cu in [false, true] {
        let fwd = Fwd { cu, max_sum: true, ..Fwd::default() };
        let base = of_row(Case { mask: MaskKind::CausalBottomRight, fwd, ..prefill() });
        let at = |q: &[i64], kv: &[i64]| padded(base.clone(), q, kv);
        let lens =
            [at(&[130, 130], &[130, 130]), at(&[130, 77], &[130, 40]), at(&[130, 1], &[40, 0]), at(&[129, 130], &[1, 130])];
        replays(gpu, &lens, seed)?;
    }
    Ok(())
}

fn capture_decode(gpu: &Gpu, seed: u64) -> Result<()> {
    for (knobs, pages) in [(Vec::new(), None), (vec![(Knob::SplitKv, 8)], Some(Pages { rows: 16, nhd: true, spare: 1 }))] {
        let fwd = Fwd { pages, stats: StatsKind::Log2, ..Fwd::default() };
        let base = Case { knobs, fwd, ..decode() };
        let at = |q: &[i64], kv: &[i64]| padded(base.clone(), q, kv);
        replays(gpu, &[at(&[3, 3], &[700, 700]), at(&[3, 2], &[1, 350]), at(&[0, 3], &[700, 0]), at(&[3, 3], &[2, 699])], seed)?;
    }
    Ok(())
}

/// The forward's own O and Stats, as bytes, go into the backward; gradients are compared with those of the exact forward.
fn round_trip(gpu: &Gpu, seed: u64) -> Result<()> {
    let packed = Lens::Thd { q: vec![130, 0], kv: vec![100, 30], head_major: false, wide: false };
    let padded = Lens::Padded { q: vec![64, 130], kv: vec![130, 31] };
    for (n, lens) in [Lens::Full, padded, packed].into_iter().enumerate() {
        for (d_qk, d_v) in [(64, 64), (128, 128), (192, 128)] {
            for dtype in [DType::BF16, DType::F16] {
                let backward = Case {
                    mask: MaskKind::Causal,
                    h_kv: 2,
                    sink: n == 0,
                    lens: lens.clone(),
                    d_qk,
                    d_v,
                    dtype,
                    ..Case::default()
                };
                let forward = Case { engine: PREFILL, ..backward.clone() };
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
                        return Err(failed(
                            format!("uid {uid} with strides {:?} and {:?}", from.stride, to.stride),
                            "one layout",
                        ));
                    }
                    b.image.replace(uid, f.image.part(&after, uid))?;
                }
                b.queue(&gpu.stream)?;
                gpu.stream.synchronize()?;
                b.judge(&b.image.download()?).map_err(|e| e.at(format!("{BWD} after {forward}")))?;
            }
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

fn many_batches(gpu: &Gpu, seed: u64) -> Result<()> {
    for engine in [PREFILL, DECODE] {
        let case = Case {
            engine,
            b: 65_536,
            h_q: 1,
            h_kv: 1,
            s_q: 4,
            s_kv: 4,
            d_qk: 8,
            d_v: 8,
            mask: MaskKind::Causal,
            ..Case::default()
        };
        once(gpu, &case, seed)?;
    }
    Ok(())
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
