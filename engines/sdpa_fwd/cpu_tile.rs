//! One tile of query rows of the CPU forward.
//!
//! Scores are held transposed, one row for each key, so that maximum, exponential and sum run along vectors of queries without a
//! horizontal reduction, and the probabilities already run along the contraction of P V.

use super::cpu::{Context, Packed, ROW_VALUES};
use crate::sdpa::cpu::arena::TileId;
use crate::sdpa::cpu::exp::exp;
use crate::sdpa::cpu::gemm::gemm;
use crate::sdpa::cpu::tile::transpose;
use crate::sdpa::cpu::{bad_pairs, padded, BK, BQ, PAD};
use pulp::{Simd, WithSimd};

/// Buffers of one thread, bounded by the tile sizes.
#[derive(Default)]
pub(super) struct Scratch {
    rows: Vec<f32>,
    q: Vec<f32>,
    scores: Vec<f32>,
    raw: [Vec<f32>; 2],
    kept: Vec<[usize; 2]>,
}

/// The work on one tile.
pub(super) struct Job<'a> {
    pub context: &'a Context<'a>,
    pub packed: &'a Packed<'a>,
    pub tile: TileId,
    /// `[BQ][padded d_v]`, overwritten.
    pub o: &'a mut [f32],
    /// `[ROW_VALUES][BQ]`, overwritten.
    pub rows: &'a mut [f32],
    pub scratch: &'a mut Scratch,
}

/// Running softmax state of the tile's rows.
struct State {
    max: [f32; BQ],
    sum: [f32; BQ],
}

impl WithSimd for Job<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Job { context: c, packed, tile, o, rows, scratch } = self;
        let (d_qk, d_v) = (c.q.place.cols(), c.v.place.cols());
        // Vectors run along the queries, so a tile of few rows is computed with few lanes.
        let (lanes, dist) = (padded(tile.rows), padded(d_v));
        let h_kv = tile.h / c.group;
        let (len_q, len_kv) = (c.lens.q[tile.b], c.lens.kv[tile.b]);
        scratch.rows.resize(BQ * padded(d_qk), 0.0);
        scratch.q.resize(BQ * d_qk, 0.0);
        scratch.scores.resize(BQ * BK, 0.0);
        let bad_q = c.q.pack(tile, &mut scratch.rows);
        transpose(&scratch.rows, tile.rows, d_qk, lanes, &mut scratch.q[..lanes * d_qk]);

        let mut state = State { max: [f32::NEG_INFINITY; BQ], sum: [0.0; BQ] };
        o.fill(0.0);
        let kept = |i: usize| c.mask.kept((tile.start + i) as i64, len_q, len_kv);
        // Both bounds grow with the row, so the first row's left and the last row's right bound the keys of the tile.
        let (first, last) = (kept(0), kept(tile.rows - 1));
        // A row whose window lies past the last key has an empty range out there.
        let keys = first.0.min(len_kv) as usize..last.1.min(len_kv) as usize;
        for start in (keys.start / BK * BK..keys.end).step_by(BK) {
            let n = BK.min(len_kv as usize - start);
            let slot = packed.side.slot(tile.b, h_kv, start);
            let k = &packed.k[slot * BK * d_qk..][..BK * d_qk];
            let v = &packed.v[slot * BK * dist..][..BK * dist];
            let [bad_k, bad_v] = packed.bad[slot];
            let scores = &mut scratch.scores[..BK * lanes];
            gemm(simd, [n, lanes, d_qk], (k, BK), (&scratch.q, lanes), (scores, lanes), false);

            let edge = last.0 > start as i64 || first.1 < (start + n) as i64;
            scratch.kept.clear();
            if edge || bad_q | bad_k | bad_v != 0 {
                scratch.kept.extend((0..tile.rows).map(|i| {
                    let (lo, hi) = kept(i);
                    let cut = |x: i64| (x - start as i64).clamp(0, n as i64) as usize;
                    [cut(lo), cut(hi)]
                }));
            }
            let key = TileId { b: tile.b, h: h_kv, start, rows: n };
            if bad_q | bad_k != 0 {
                let [q, k] = &mut scratch.raw;
                q.resize(d_qk, 0.0);
                k.resize(d_qk, 0.0);
                bad_pairs(&scratch.kept, bad_q, bad_k, |i, j| {
                    c.q.raw(tile, i, q);
                    c.k.raw(key, j, k);
                    scores[j * lanes + i] = q.iter().zip(&*k).map(|(x, y)| x * y).sum();
                });
            }
            for x in &mut scores[..n * lanes] {
                *x *= c.scale;
            }
            if let Some(bias) = &c.bias {
                let mut row = [0.0; BK];
                for i in 0..tile.rows {
                    bias.place.read_part(bias.bytes, tile.b, tile.h, tile.start + i, start, &mut row[..n]);
                    for (j, x) in row[..n].iter().enumerate() {
                        scores[j * lanes + i] += x;
                    }
                }
            }
            if edge {
                // Overwritten, not added to: whatever a masked pair's score is, it is gone.
                for (i, [lo, hi]) in scratch.kept.iter().enumerate() {
                    for j in (0..*lo).chain(*hi..n) {
                        scores[j * lanes + i] = f32::NEG_INFINITY;
                    }
                }
            }
            softmax::<S>(scores, n, lanes, &mut state, o, dist, tile.rows);
            gemm(simd, [tile.rows, dist, n], (scores, lanes), (v, dist), (o, dist), true);
            if bad_v != 0 {
                let raw = &mut scratch.raw[0];
                raw.resize(d_v, 0.0);
                bad_pairs(&scratch.kept, 0, bad_v, |i, j| {
                    c.v.raw(key, j, raw);
                    for (o, v) in o[i * dist..].iter_mut().zip(&*raw) {
                        *o += scores[j * lanes + i] * v;
                    }
                });
            }
        }
        let sink = c.sink.as_ref().map_or(f32::NEG_INFINITY, |s| s[tile.h]);
        for (i, row) in o.chunks_exact_mut(dist).enumerate().take(tile.rows) {
            let (total, lse) = finish(state.max[i], state.sum[i], sink);
            if total == f32::INFINITY {
                // Written, not scaled: nothing reached this row (field report 10).
                row.fill(0.0);
            } else {
                row.iter_mut().for_each(|x| *x /= total);
            }
            for (at, x) in [lse, state.max[i], state.sum[i]].into_iter().enumerate().take(ROW_VALUES) {
                rows[at * BQ + i] = x;
            }
        }
    }
}

/// Turns scores into unnormalised probabilities against the new row maximum, and rescales what was accumulated before.
#[inline(always)]
fn softmax<S: Simd>(scores: &mut [f32], n: usize, lanes: usize, state: &mut State, o: &mut [f32], dist: usize, rows: usize) {
    let mut alpha = [0.0; BQ];
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
        for row in scores.chunks_exact_mut(lanes).take(n) {
            let row: &mut [f32; PAD] = (&mut row[at..at + PAD]).try_into().expect("PAD lanes");
            for i in 0..PAD {
                row[i] = exp::<S>(row[i] - base[i]);
                sum[i] += row[i];
            }
        }
        for i in 0..PAD {
            alpha[at + i] = exp::<S>(old[i] - base[i]);
            state.sum[at + i] = state.sum[at + i] * alpha[at + i] + sum[i];
        }
        state.max[at..at + PAD].copy_from_slice(&max);
    }
    for (row, by) in o.chunks_exact_mut(dist).zip(alpha).take(rows) {
        if by != 1.0 {
            row.iter_mut().for_each(|x| *x *= by);
        }
    }
}

/// What a row is divided by, infinite for a row of zeros, and its log-sum-exp, with the sink in both.
///
/// In f64: a sink near the largest f32 must not overflow (field report 80), and a single key must give exactly its score.
fn finish(max: f32, sum: f32, sink: f32) -> (f32, f32) {
    if sum == 0.0 || sink == f32::INFINITY {
        return (f32::INFINITY, sink);
    }
    let (max, sum, sink) = (max as f64, sum as f64, sink as f64);
    let top = max.max(sink);
    let share = (max - top).exp();
    let total = sum * share + (sink - top).exp();
    ((total / share) as f32, (top + total.ln()) as f32)
}
