//! One tile of query rows of the CPU forward of NVFP4 QAT.
//!
//! Scores are held transposed, one row for each key, so that everything that runs along the keys (maximum, sum, the blocks of 16 of the
//! quantiser) is a loop over rows of vectors of queries.

use super::cpu::{Context, Packed};
use crate::codec::{e2m1, nvfp4};
use crate::sdpa::cpu::arena::TileId;
use crate::sdpa::cpu::exp::exp;
use crate::sdpa::cpu::gemm::gemm;
use crate::sdpa::cpu::tile::transpose;
use crate::sdpa::cpu::{padded, BK, BQ, PAD};
use pulp::{Simd, WithSimd};

/// Buffers of one thread, bounded by the tile sizes.
#[derive(Default)]
pub(super) struct Scratch {
    rows: Vec<f32>,
    q: Vec<f32>,
    scores: Vec<f32>,
}

/// The work on one tile.
pub(super) struct Job<'a> {
    pub context: &'a Context<'a>,
    pub packed: &'a Packed<'a>,
    pub tile: TileId,
    /// `[BQ][padded d_v]`, overwritten.
    pub o: &'a mut [f32],
    /// As `o`.
    pub high_precision_o: &'a mut [f32],
    /// `[BQ]`, overwritten.
    pub lse: &'a mut [f32],
    pub scratch: &'a mut Scratch,
}

/// Running softmax of the tile's rows.
struct State {
    max: [f32; BQ],
    sum: [f32; BQ],
}

impl WithSimd for Job<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Job { context: c, packed, tile, o, high_precision_o, lse, scratch } = self;
        let (d_qk, d_v) = (c.q.place.cols(), c.v.place.cols());
        // Vectors run along the queries, so a tile of few rows is computed with few lanes.
        let (lanes, dist) = (padded(tile.rows), padded(d_v));
        scratch.rows.resize(BQ * padded(d_qk), 0.0);
        scratch.q.resize(BQ * d_qk, 0.0);
        scratch.scores.resize(BQ * BK, 0.0);
        c.q.pack(tile, &mut scratch.rows);
        transpose(&scratch.rows, tile.rows, d_qk, lanes, &mut scratch.q[..lanes * d_qk]);
        let walk = Walk { c, packed, tile, lanes, q: &scratch.q };

        let mut state = State { max: [f32::NEG_INFINITY; BQ], sum: [0.0; BQ] };
        for start in walk.tiles() {
            let n = walk.scores(simd, start, &mut scratch.scores);
            accumulate::<S>(&scratch.scores, n, lanes, &mut state);
        }
        // What the exponent subtracts: a row without keys subtracts infinity, so that its P is 0 and not NaN.
        let mut base = [f32::INFINITY; BQ];
        for (i, out) in lse.iter_mut().enumerate() {
            *out = natural_log_sum(state.max[i], state.sum[i]);
            if *out != f32::NEG_INFINITY {
                base[i] = *out;
            }
        }

        o.fill(0.0);
        high_precision_o.fill(0.0);
        for start in walk.tiles() {
            let n = walk.scores(simd, start, &mut scratch.scores);
            let p = &mut scratch.scores;
            for row in p.chunks_exact_mut(lanes).take(n) {
                for (x, base) in row.iter_mut().zip(&base) {
                    *x = exp::<S>(*x - base);
                }
            }
            let v = &packed.v[walk.slot(start) * BK * dist..][..BK * dist];
            gemm(simd, [tile.rows, dist, n], (p, lanes), (v, dist), (high_precision_o, dist), true);
            // Key tiles begin at multiples of 64, so blocks begin at keys that are multiples of 16.
            p[..n * lanes].chunks_mut(nvfp4::BLOCK * lanes).for_each(|block| quantise(block, lanes));
            gemm(simd, [tile.rows, dist, n], (p, lanes), (v, dist), (o, dist), true);
        }
    }
}

/// What both walks over the keys need.
struct Walk<'a> {
    c: &'a Context<'a>,
    packed: &'a Packed<'a>,
    tile: TileId,
    lanes: usize,
    q: &'a [f32],
}

impl Walk<'_> {
    fn kept(&self, i: usize) -> (i64, i64) {
        self.c.mask.kept((self.tile.start + i) as i64, self.c.lens.q[self.tile.b], self.c.lens.kv[self.tile.b])
    }

    fn len_kv(&self) -> i64 {
        self.c.lens.kv[self.tile.b]
    }

    /// First keys of the tiles that some row keeps a key of: both bounds grow with the row.
    fn tiles(&self) -> impl Iterator<Item = usize> {
        let len = self.len_kv();
        let (first, last) = (self.kept(0).0.min(len) as usize, self.kept(self.tile.rows - 1).1.min(len) as usize);
        (first / BK * BK..last).step_by(BK)
    }

    fn slot(&self, start: usize) -> usize {
        self.packed.side.slot(self.tile.b, self.tile.h / self.c.group, start)
    }

    /// Scaled scores of the keys from `start` on, -inf where masked; returns how many keys there are.
    #[inline(always)]
    fn scores<S: Simd>(&self, simd: S, start: usize, scores: &mut [f32]) -> usize {
        let (d_qk, lanes) = (self.c.q.place.cols(), self.lanes);
        let n = BK.min(self.len_kv() as usize - start);
        let k = &self.packed.k[self.slot(start) * BK * d_qk..][..BK * d_qk];
        gemm(simd, [n, lanes, d_qk], (k, BK), (self.q, lanes), (scores, lanes), false);
        for x in &mut scores[..n * lanes] {
            *x *= self.c.scale;
        }
        let edge = self.kept(self.tile.rows - 1).0 > start as i64 || self.kept(0).1 < (start + n) as i64;
        for i in (0..self.tile.rows).filter(|_| edge) {
            let (lo, hi) = self.kept(i);
            let [lo, hi] = [lo, hi].map(|x| (x - start as i64).clamp(0, n as i64) as usize);
            for j in (0..lo).chain(hi..n) {
                scores[j * lanes + i] = f32::NEG_INFINITY;
            }
        }
        n
    }
}

/// Moves the running maximum and sum over `n` more keys.
#[inline(always)]
fn accumulate<S: Simd>(scores: &[f32], n: usize, lanes: usize, state: &mut State) {
    for at in (0..lanes).step_by(PAD) {
        let old: [f32; PAD] = state.max[at..at + PAD].try_into().expect("PAD lanes");
        let mut max = old;
        for row in scores.chunks_exact(lanes).take(n) {
            for (m, &x) in max.iter_mut().zip(&row[at..at + PAD]) {
                *m = if x > *m { x } else { *m };
            }
        }
        // A row without keys so far keeps -inf as its maximum; subtracting it would make NaN.
        let base = max.map(|m| if m == f32::NEG_INFINITY { 0.0 } else { m });
        let mut sum = [0.0; PAD];
        for row in scores.chunks_exact(lanes).take(n) {
            let row: &[f32; PAD] = (&row[at..at + PAD]).try_into().expect("PAD lanes");
            for i in 0..PAD {
                sum[i] += exp::<S>(row[i] - base[i]);
            }
        }
        for i in 0..PAD {
            let kept = state.sum[at + i] * exp::<S>(old[i] - base[i]);
            state.sum[at + i] = kept + sum[i];
        }
        state.max[at..at + PAD].copy_from_slice(&max);
    }
}

/// Fake-quantises one block of keys for every query: `block` holds up to 16 rows of `lanes` probabilities, 0 where masked.
#[inline(always)]
fn quantise(block: &mut [f32], lanes: usize) {
    for at in (0..lanes).step_by(PAD) {
        let mut amax = [0.0f32; PAD];
        for row in block.chunks_exact(lanes) {
            for (m, &x) in amax.iter_mut().zip(&row[at..at + PAD]) {
                *m = m.max(x);
            }
        }
        let scale = amax.map(nvfp4::scale);
        for row in block.chunks_exact_mut(lanes) {
            for (x, s) in row[at..at + PAD].iter_mut().zip(&scale) {
                // At most 6 significant bits: bf16 holds the product as it is.
                *x = e2m1::round(*x / s) * s;
            }
        }
    }
}

/// log(sum · exp(max)), rounded once so that a single key gives exactly its score; -inf for a row without keys.
fn natural_log_sum(max: f32, sum: f32) -> f32 {
    if max == f32::NEG_INFINITY {
        return f32::NEG_INFINITY;
    }
    (f64::from(max) + f64::from(sum).ln()) as f32
}
