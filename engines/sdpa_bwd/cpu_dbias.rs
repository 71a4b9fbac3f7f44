//! dBias of the CPU backward: a pass of its own over tiles of dBias rows.
//!
//! The sum over broadcast batches and heads is taken in ascending order inside one job, so it needs neither atomics nor a copy of
//! dBias in the workspace; the price is that scores and dP are computed once more.

use super::cpu_tile::{query_parts, Context, KeyTile, PackQuery, Pair, QueryTile};
use crate::sdpa::access::Place;
use crate::sdpa::cpu::arena::TileId;
use crate::sdpa::cpu::{vectorize, BK, BQ};
use crate::{sdpa::SdpaFacts, Port};
use pulp::{Simd, WithSimd};
use rayon::prelude::*;

/// Bytes of dBias rows in f32 that one round of jobs may hold beyond a single tile.
const BUDGET: u64 = 16 << 20;

/// dBias tiles of one round, and the f32 elements of a tile.
fn round(f: &SdpaFacts, port: &Port) -> Option<(u64, u64)> {
    let tile = (BQ as u64).checked_mul(u64::try_from(f.s_kv).ok()?)?;
    let all = u64::try_from(port.dim[0]).ok()?.checked_mul(u64::try_from(port.dim[1]).ok()?)?;
    let all = all.checked_mul(u64::try_from(f.s_q).ok()?.div_ceil(BQ as u64))?;
    Some((BUDGET.checked_div(tile.checked_mul(4)?)?.max(1).min(all), tile))
}

/// f32 elements of the workspace region; 0 without a dBias.
pub(super) fn region(f: &SdpaFacts) -> Option<u64> {
    match &f.ports.dbias {
        Some(port) => round(f, port).and_then(|(tiles, tile)| tiles.checked_mul(tile)),
        None => Some(0),
    }
}

/// Computes and writes dBias.
pub(super) fn run(c: &Context<'_>, port: &Port, place: &Place, rows: &mut [f32], bytes: &mut [u8]) {
    let [nb, nh, s_q, s_kv] = port.dim.map(|x| x as usize);
    let tile_len = BQ * s_kv;
    let mut tiles = Vec::new();
    for (b, h) in (0..nb).flat_map(|b| (0..nh).map(move |h| (b, h))) {
        tiles.extend((0..s_q).step_by(BQ).map(|start| TileId { b, h, start, rows: BQ.min(s_q - start) }));
    }
    for round in tiles.chunks((rows.len() / tile_len).max(1)) {
        let jobs = round.par_iter().zip(rows.par_chunks_mut(tile_len));
        jobs.for_each_init(Scratch::default, |scratch, (&tile, out)| {
            vectorize(Job { c, tile, broadcast: [nb == 1, nh == 1], s_kv, out, scratch })
        });
        for (t, tile) in round.iter().enumerate() {
            let fill = |_: usize, _: usize, s: usize, out: &mut [f32]| {
                out.copy_from_slice(&rows[t * tile_len + (s - tile.start) * s_kv..][..s_kv]);
            };
            place.scatter(bytes, tile.b..tile.b + 1, tile.h..tile.h + 1, tile.start..tile.start + tile.rows, &fill);
        }
    }
}

#[derive(Default)]
struct Scratch {
    query: Vec<f32>,
    key: KeyTile,
    pair: Pair,
}

/// One tile of dBias rows.
struct Job<'a> {
    c: &'a Context<'a>,
    tile: TileId,
    broadcast: [bool; 2],
    s_kv: usize,
    out: &'a mut [f32],
    scratch: &'a mut Scratch,
}

impl WithSimd for Job<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Job { c, tile, broadcast, s_kv, out, scratch: Scratch { query, key, pair } } = self;
        let (d_qk, d_v, h_q) = (c.q.place.cols(), c.v.place.cols(), c.q.place.heads());
        out.fill(0.0);
        query.resize(query_parts(d_qk, d_v).iter().sum(), 0.0);
        let batches = if broadcast[0] { 0..c.lens.q.len() } else { tile.b..tile.b + 1 };
        let heads = if broadcast[1] { 0..h_q } else { tile.h..tile.h + 1 };
        for (b, h) in batches.flat_map(|b| heads.clone().map(move |h| (b, h))) {
            let left = (c.lens.q[b] as usize).saturating_sub(tile.start);
            if left == 0 {
                continue;
            }
            let id = TileId { b, h, start: tile.start, rows: tile.rows.min(left) };
            let bad = PackQuery { context: c, tile: id, out: query }.with_simd(simd);
            let q = QueryTile::new(id, query, d_qk, d_v, bad);
            let (lo, hi) = c.kept_by(id);
            for start in (lo as usize / BK * BK..hi as usize).step_by(BK) {
                let rows = BK.min(c.lens.kv[b] as usize - start);
                let k = TileId { b, h: h / c.group, start, rows };
                key.pack(c, k);
                pair.fill(simd, c, &q, key, k);
                for (out, ds) in out.chunks_exact_mut(s_kv).zip(pair.ds.chunks_exact(BK)).take(id.rows) {
                    out[start..start + rows].iter_mut().zip(ds).for_each(|(o, x)| *o += x);
                }
            }
        }
    }
}
