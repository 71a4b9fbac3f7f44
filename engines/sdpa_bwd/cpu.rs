//! The CPU backward: P is recomputed from Stats tile by tile, so memory grows with the sequence and not with its square.
//!
//! A job owns a run of key tiles of one (batch, key head): dK and dV need no sharing, and the query heads of a group are added in
//! order. Its part of dQ goes to a buffer of its own; the few parts of a row are added in key order at the end. The number of parts is
//! a function of the graph, so results are bitwise equal for any number of threads.
//!
//! The NVFP4 QAT backward is this engine with two differences: Q, K and V are fake-quantised as they are read, and P is fake-quantised
//! after dS was made of it, so that dV alone sees the quantised one ([`crate::qat`]).

use super::cpu_dbias;
use super::cpu_tile::{query_parts, Context, KeyTile, PackQuery, Pair, QueryTile};
use crate::sdpa::access::{fault, need, scale, Place, Rows};
use crate::sdpa::cpu::arena::{capacity, waves, TileId, Wave};
use crate::sdpa::cpu::gemm::gemm;
use crate::sdpa::cpu::lower::{checked, host_plan};
use crate::sdpa::cpu::tile::{transpose, Operand};
use crate::sdpa::cpu::{padded, regions, vectorize, BK, BQ};
use crate::sdpa::{Lengths, Recipe, SdpaFacts};
use crate::{Decline, Facts, HostBuffers, HostCall, HostError, Knobs, LaunchPlan, Target};
use pulp::{Simd, WithSimd};
use rayon::prelude::*;
use std::ops::Range;

/// Name of the row and of its step.
fn name(f: &SdpaFacts) -> &'static str {
    match f.recipe {
        Recipe::Plain => "sdpa_bwd_cpu",
        Recipe::Nvfp4Qat => "nvfp4_qat_bwd_cpu",
    }
}

/// Bytes of packed queries, and of dK and dV, that a wave may hold beyond one batch entry.
const BUDGET: u64 = 64 << 20;

/// Jobs that a wave of one batch entry should offer, and the most parts that dQ is cut into for it.
const JOBS: i64 = 32;
const MAX_PARTS: i64 = 4;

/// Workspace geometry: a function of the graph alone.
struct Sizes {
    cap_q: u64,
    cap_kv: u64,
    parts: usize,
    q_tile: usize,
    dq_tile: usize,
    dk_tile: usize,
    dv_tile: usize,
}

impl Sizes {
    fn new(f: &SdpaFacts) -> Option<Sizes> {
        let (d_qk, d_v) = (usize::try_from(f.d_qk).ok()?, usize::try_from(f.d_v).ok()?);
        // Nothing below needs more than this many bytes a tile, so nothing below overflows.
        d_qk.max(d_v).checked_mul(64 * BQ)?;
        let parts = JOBS.checked_div(f.b.checked_mul(f.h_kv)?)?.clamp(1, MAX_PARTS) as usize;
        let q_tile: usize = query_parts(d_qk, d_v).iter().sum();
        let (dq_tile, dk_tile, dv_tile) = (padded(d_qk) * BQ, padded(d_qk) * BK, padded(d_v) * BK);
        let cap_q = capacity(f.b, f.h_q, f.s_q, BQ, 4 * (q_tile + parts * dq_tile) as u64, BUDGET)?;
        let cap_kv = capacity(f.b, f.h_kv, f.s_kv, BK, 4 * (dk_tile + dv_tile) as u64, BUDGET)?;
        Some(Sizes { cap_q, cap_kv, parts, q_tile, dq_tile, dk_tile, dv_tile })
    }

    /// Lengths of the regions in f32: packed queries, parts of dQ, dK, dV, dBias rows.
    fn regions(&self, f: &SdpaFacts) -> Option<[u64; 5]> {
        Some([
            self.cap_q.checked_mul(self.q_tile as u64)?,
            self.cap_q.checked_mul((self.dq_tile * self.parts) as u64)?,
            self.cap_kv.checked_mul(self.dk_tile as u64)?,
            self.cap_kv.checked_mul(self.dv_tile as u64)?,
            cpu_dbias::region(f)?,
        ])
    }
}

fn plan(f: &SdpaFacts) -> Option<LaunchPlan> {
    host_plan(
        HostCall { name: name(f), run },
        ["q_f32", "dq_parts", "dk_f32", "dv_f32", "dbias_rows"],
        Sizes::new(f)?.regions(f)?,
    )
}

/// Lowers a backward node to one host step.
///
/// # Errors
/// [`Decline`] for an output that overlaps itself and for a workspace beyond 64 bits.
pub fn lower(facts: &Facts, _: &Knobs, _: &Target) -> Result<LaunchPlan, Decline> {
    let f = facts.expect_sdpa();
    let p = &f.ports;
    checked(name(f), &[&p.dq, &p.dk, &p.dv, &p.dbias, &p.dsink], plan(f))
}

/// Runs the backward of a node.
///
/// # Errors
/// [`HostError`] when lengths, offsets or buffers contradict the graph; outputs are untouched then.
pub fn run(facts: &Facts, _: &Knobs, buffers: &mut HostBuffers<'_>) -> Result<(), HostError> {
    let f = facts.expect_sdpa();
    let (p, inputs) = (&f.ports, &buffers.inputs);
    let lens = Lengths::resolve(f, inputs)?;
    let query = |port, what| Operand::of(need(port, what)?, Rows::Query, &lens, inputs);
    let key = |port, what| Operand::of(need(port, what)?, Rows::Key, &lens, inputs);
    let declared = |port, what| Operand::of(need(port, what)?, Rows::Declared, &lens, inputs);
    let nvfp4 = match f.recipe {
        Recipe::Plain => false,
        Recipe::Nvfp4Qat => true,
    };
    let c = Context {
        mask: f.mask,
        lens: &lens,
        group: (f.h_q / f.h_kv) as usize,
        scale: scale(f, inputs)?,
        q: Operand { nvfp4, ..query(&p.q, "Q")? },
        k: Operand { nvfp4, ..key(&p.k, "K")? },
        v: Operand { nvfp4, ..key(&p.v, "V")? },
        nvfp4_p: nvfp4,
        o: query(&p.o, "O")?,
        d_o: query(&p.d_o, "dO")?,
        stats: query(&p.stats, "Stats")?,
        bias: p.bias.is_some().then(|| declared(&p.bias, "bias")).transpose()?,
    };
    let sink = p.sink.is_some().then(|| declared(&p.sink, "sink")).transpose()?;
    let mut places = Vec::new();
    let outputs =
        [(&p.dq, Rows::Query), (&p.dk, Rows::Key), (&p.dv, Rows::Key), (&p.dbias, Rows::Declared), (&p.dsink, Rows::Declared)];
    for (port, side) in outputs {
        let place = port.as_ref().map(|port| {
            let buffer = buffers.outputs.get(&port.uid).map(|b| b.len());
            let buffer =
                buffer.ok_or_else(|| fault(&port.name, format!("no buffer is bound to uid {}", port.uid), "a buffer"))?;
            Ok((port.uid, Place::new(port, side, &lens, inputs, buffer)?))
        });
        places.push(place.transpose()?);
    }

    let sizes = Sizes::new(f).and_then(|s| s.regions(f).map(|r| (s, r)));
    let (sizes, floats) = sizes.ok_or_else(|| fault("workspace", "a size beyond 64 bits", "a workspace in 64 bits"))?;
    let [q_f32, dq_parts, dk_f32, dv_f32, dbias_rows] = regions(buffers.workspace, floats)?;
    let (d_qk, d_v, heads) = (f.d_qk as usize, f.d_v as usize, f.h_q as usize);
    let mut dsink = vec![0.0f64; heads];
    for wave in waves(&lens, [heads, f.h_kv as usize], [BQ, BK], sizes.cap_q, sizes.cap_kv) {
        let packing = wave.q.tiles.par_iter().zip(q_f32.par_chunks_mut(sizes.q_tile));
        let bad: Vec<[u64; 2]> = packing.map(|(&tile, out)| vectorize(PackQuery { context: &c, tile, out })).collect();
        let tiles = wave.q.tiles.iter().zip(q_f32.chunks_exact(sizes.q_tile)).zip(bad);
        let queries: Vec<QueryTile<'_>> = tiles.map(|((&id, packed), bad)| QueryTile::new(id, packed, d_qk, d_v, bad)).collect();
        let jobs = cut(&c, &wave, &sizes, dq_parts, dk_f32, dv_f32);
        jobs.into_par_iter().for_each_init(Scratch::default, |scratch, job| {
            vectorize(Walk { c: &c, wave: &wave, queries: &queries, job, scratch })
        });

        if let Some(sink) = &sink {
            for tile in &queries {
                let logit = sink.place.get(sink.bytes, 0, tile.id.h, 0, 0) as f64;
                for (&lse, &delta) in tile.parts[4].iter().zip(tile.parts[5]).take(tile.id.rows) {
                    if lse.is_finite() || lse.is_nan() {
                        dsink[tile.id.h] -= (logit - lse as f64).exp() * delta as f64;
                    }
                }
            }
        }
        let (dq_parts, dk_f32, dv_f32) = (&*dq_parts, &*dk_f32, &*dv_f32);
        if let Some((uid, place)) = &places[0] {
            let fill = |b: usize, h: usize, s: usize, out: &mut [f32]| {
                out.fill(0.0);
                if (s as i64) < lens.q[b] {
                    for part in 0..sizes.parts {
                        let at = part_slot(&wave, &sizes, c.group, b, h, s / BQ, part) * sizes.dq_tile + s % BQ * padded(d_qk);
                        out.iter_mut().zip(&dq_parts[at..]).for_each(|(o, x)| *o += x);
                    }
                    out.iter_mut().for_each(|o| *o *= c.scale);
                }
            };
            place.scatter(
                buffers.outputs.get_mut(uid).expect("checked above"),
                wave.batches.clone(),
                0..heads,
                0..f.s_q as usize,
                &fill,
            );
        }
        for (at, from, tile, cols, by) in [(1, dk_f32, sizes.dk_tile, d_qk, c.scale), (2, dv_f32, sizes.dv_tile, d_v, 1.0)] {
            let Some((uid, place)) = &places[at] else { continue };
            let fill = |b: usize, h: usize, s: usize, out: &mut [f32]| {
                if (s as i64) < lens.kv[b] {
                    let at = wave.kv.slot(b, h, s) * tile + s % BK * padded(cols);
                    out.iter_mut().zip(&from[at..]).for_each(|(o, x)| *o = x * by);
                } else {
                    out.fill(0.0);
                }
            };
            let bytes = buffers.outputs.get_mut(uid).expect("checked above");
            place.scatter(bytes, wave.batches.clone(), 0..f.h_kv as usize, 0..f.s_kv as usize, &fill);
        }
    }
    if let Some((uid, place)) = &places[4] {
        let fill = |_: usize, h: usize, _: usize, out: &mut [f32]| out[0] = dsink[h] as f32;
        place.scatter(buffers.outputs.get_mut(uid).expect("checked above"), 0..1, 0..heads, 0..1, &fill);
    }
    if let (Some((uid, place)), Some(port)) = (&places[3], &p.dbias) {
        cpu_dbias::run(&c, port, place, dbias_rows, buffers.outputs.get_mut(uid).expect("checked above"));
    }
    Ok(())
}

/// Slot of a part of dQ: the parts of one key head's query tiles lie together, so that a job's share is one slice.
fn part_slot(wave: &Wave, sizes: &Sizes, group: usize, b: usize, h: usize, block: usize, part: usize) -> usize {
    let blocks = wave.q.blocks(b);
    sizes.parts * wave.q.slot(b, h / group * group, 0) + (part * group + h % group) * blocks + block
}

/// A run of key tiles of one (batch, key head) and where its results go.
struct Part<'a> {
    b: usize,
    h_kv: usize,
    /// Key tiles by number within the head.
    tiles: Range<usize>,
    /// `[group][query tiles][BQ][padded d_qk]`.
    dq: &'a mut [f32],
    dk: &'a mut [f32],
    dv: &'a mut [f32],
}

/// Cuts a wave into jobs with disjoint results.
fn cut<'a>(
    c: &Context<'_>,
    wave: &Wave,
    sizes: &Sizes,
    mut dq: &'a mut [f32],
    mut dk: &'a mut [f32],
    mut dv: &'a mut [f32],
) -> Vec<Part<'a>> {
    fn take<'a>(from: &mut &'a mut [f32], n: usize) -> &'a mut [f32] {
        let (mine, rest) = std::mem::take(from).split_at_mut(n);
        *from = rest;
        mine
    }
    let mut out = Vec::new();
    let heads_kv = c.k.place.heads();
    for b in wave.batches.clone() {
        let (blocks_q, blocks_kv) = (wave.q.blocks(b), wave.kv.blocks(b));
        for h_kv in 0..heads_kv {
            for part in 0..sizes.parts {
                let tiles = blocks_kv * part / sizes.parts..blocks_kv * (part + 1) / sizes.parts;
                let dq = take(&mut dq, c.group * blocks_q * sizes.dq_tile);
                let (dk, dv) = (take(&mut dk, tiles.len() * sizes.dk_tile), take(&mut dv, tiles.len() * sizes.dv_tile));
                out.push(Part { b, h_kv, tiles, dq, dk, dv });
            }
        }
    }
    out
}

/// Buffers of one thread, bounded by the tile sizes.
#[derive(Default)]
struct Scratch {
    key: KeyTile,
    pair: Pair,
    ds_t: Vec<f32>,
}

/// One job: every query tile against the job's key tiles, keys outermost.
struct Walk<'a> {
    c: &'a Context<'a>,
    wave: &'a Wave,
    queries: &'a [QueryTile<'a>],
    job: Part<'a>,
    scratch: &'a mut Scratch,
}

impl WithSimd for Walk<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Walk { c, wave, queries, job, scratch: Scratch { key, pair, ds_t } } = self;
        let (dist_k, dist_v) = (padded(c.q.place.cols()), padded(c.v.place.cols()));
        ds_t.resize(BQ * BK, 0.0);
        job.dq.fill(0.0);
        let (len_kv, blocks) = (c.lens.kv[job.b] as usize, wave.q.blocks(job.b));
        let outputs = job.dk.chunks_exact_mut(BK * dist_k).zip(job.dv.chunks_exact_mut(BK * dist_v));
        for (block, (dk, dv)) in job.tiles.zip(outputs) {
            let start = block * BK;
            let id = TileId { b: job.b, h: job.h_kv, start, rows: BK.min(len_kv - start) };
            key.pack(c, id);
            dk.fill(0.0);
            dv.fill(0.0);
            for (t, dq) in job.dq.chunks_exact_mut(BQ * dist_k).enumerate() {
                let q = &queries[wave.q.slot(job.b, job.h_kv * c.group, 0) + t];
                debug_assert_eq!((q.id.b, q.id.h), (job.b, job.h_kv * c.group + t / blocks));
                let (lo, hi) = c.kept_by(q.id);
                if hi <= start as i64 || lo >= (start + id.rows) as i64 {
                    continue;
                }
                pair.fill(simd, c, q, key, id);
                let (m, n) = (q.id.rows, id.rows);
                let [_, q_rows, _, do_rows, ..] = q.parts;
                gemm(simd, [n, dist_v, m], (&pair.p, BK), (do_rows, dist_v), (dv, dist_v), true);
                gemm(simd, [n, dist_k, m], (&pair.ds, BK), (q_rows, dist_k), (dk, dist_k), true);
                let lanes = padded(m);
                transpose(&pair.ds, m, BK, lanes, &mut ds_t[..lanes * BK]);
                gemm(simd, [m, dist_k, n], (ds_t, lanes), (&key.rows, dist_k), (dq, dist_k), true);
                pair.add_bad(&c.d_o, q.id, q.bad[1], true, true, dv);
                pair.add_bad(&c.q, q.id, q.bad[0], true, false, dk);
                pair.add_bad(&c.k, id, key.bad[0], false, false, dq);
            }
        }
    }
}
