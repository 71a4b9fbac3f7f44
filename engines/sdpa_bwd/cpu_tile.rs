//! Tiles of the CPU backward: packed query rows, packed keys, and the probabilities and score gradients of one pair of tiles.

use crate::codec::nvfp4;
use crate::sdpa::cpu::arena::TileId;
use crate::sdpa::cpu::exp::exp;
use crate::sdpa::cpu::gemm::{dot, gemm};
use crate::sdpa::cpu::tile::{transpose, Operand};
use crate::sdpa::cpu::{bad_pairs, padded, BK, BQ};
use crate::sdpa::{Lengths, Mask};
use pulp::{Simd, WithSimd};

/// Everything a job reads.
pub(super) struct Context<'a> {
    pub mask: Mask,
    pub lens: &'a Lengths,
    pub group: usize,
    pub scale: f32,
    pub q: Operand<'a>,
    pub k: Operand<'a>,
    pub v: Operand<'a>,
    pub o: Operand<'a>,
    pub d_o: Operand<'a>,
    pub stats: Operand<'a>,
    pub bias: Option<Operand<'a>>,
    /// Whether dV sees P fake-quantised to NVFP4 along the keys.
    pub nvfp4_p: bool,
}

impl Context<'_> {
    /// Kept keys of a row of a query tile.
    pub fn kept(&self, t: TileId, i: usize) -> (i64, i64) {
        self.mask.kept((t.start + i) as i64, self.lens.q[t.b], self.lens.kv[t.b])
    }

    /// A range that covers the keys of every row of a query tile: both bounds grow with the row. Rows whose window lies past the
    /// last key have an empty range out there.
    pub fn kept_by(&self, t: TileId) -> (i64, i64) {
        let len = self.lens.kv[t.b];
        (self.kept(t, 0).0.min(len), self.kept(t, t.rows - 1).1.min(len))
    }
}

/// Lengths of the parts of a packed query tile in f32: Q transposed, Q rows, dO transposed, dO rows, log-sum-exp, delta.
pub(super) fn query_parts(d_qk: usize, d_v: usize) -> [usize; 6] {
    [d_qk * BQ, padded(d_qk) * BQ, d_v * BQ, padded(d_v) * BQ, BQ, BQ]
}

/// A packed query tile.
pub(super) struct QueryTile<'a> {
    pub id: TileId,
    pub parts: [&'a [f32]; 6],
    /// Rows of Q and of dO that were not finite.
    pub bad: [u64; 2],
}

impl<'a> QueryTile<'a> {
    pub fn new(id: TileId, mut packed: &'a [f32], d_qk: usize, d_v: usize, bad: [u64; 2]) -> QueryTile<'a> {
        let parts = query_parts(d_qk, d_v).map(|n| {
            let (part, rest) = packed.split_at(n);
            packed = rest;
            part
        });
        QueryTile { id, parts, bad }
    }
}

/// Packs one query tile; the result is the non-finite rows of Q and of dO.
pub(super) struct PackQuery<'a> {
    pub context: &'a Context<'a>,
    pub tile: TileId,
    /// As [`query_parts`] divides it.
    pub out: &'a mut [f32],
}

impl WithSimd for PackQuery<'_> {
    type Output = [u64; 2];

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> [u64; 2] {
        let PackQuery { context: c, tile, mut out } = self;
        let (d_qk, d_v) = (c.q.place.cols(), c.v.place.cols());
        let [qt, q, dot_t, d_o, lse, delta] = query_parts(d_qk, d_v).map(|n| {
            let (part, rest) = std::mem::take(&mut out).split_at_mut(n);
            out = rest;
            part
        });
        let mut bad = [c.q.pack(tile, q), c.d_o.pack(tile, d_o)];
        lse.fill(f32::INFINITY);
        delta.fill(0.0);
        let (mut o_row, mut do_row) = (vec![0.0; d_v], vec![0.0; d_v]);
        for i in 0..tile.rows {
            let (lo, hi) = c.kept(tile, i);
            let mut stat = [0.0];
            c.stats.raw(tile, i, &mut stat);
            // A row without keys or with an infinite sum takes part in nothing, whatever lies in its places.
            if lo >= hi || stat[0].is_infinite() {
                q[i * padded(d_qk)..][..d_qk].fill(0.0);
                d_o[i * padded(d_v)..][..d_v].fill(0.0);
                bad = bad.map(|bits| bits & !(1 << i));
                continue;
            }
            lse[i] = stat[0];
            c.o.raw(tile, i, &mut o_row);
            c.d_o.raw(tile, i, &mut do_row);
            // In the order of dP = dO V^T, so that a single key gives dP - delta = 0 exactly (field report 6).
            delta[i] = dot(simd, &do_row, &o_row);
        }
        transpose(q, tile.rows, d_qk, BQ, qt);
        transpose(d_o, tile.rows, d_v, BQ, dot_t);
        bad
    }
}

/// A packed key tile.
#[derive(Default)]
pub(super) struct KeyTile {
    /// `[BK][padded d_qk]`.
    pub rows: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    v_rows: Vec<f32>,
    /// Rows of K and of V that were not finite.
    pub bad: [u64; 2],
}

impl KeyTile {
    pub fn pack(&mut self, c: &Context<'_>, id: TileId) {
        let (d_qk, d_v) = (c.k.place.cols(), c.v.place.cols());
        self.rows.resize(BK * padded(d_qk), 0.0);
        self.v_rows.resize(BK * padded(d_v), 0.0);
        self.k.resize(BK * d_qk, 0.0);
        self.v.resize(BK * d_v, 0.0);
        self.bad = [c.k.pack(id, &mut self.rows), c.v.pack(id, &mut self.v_rows)];
        transpose(&self.rows, id.rows, d_qk, BK, &mut self.k);
        transpose(&self.v_rows, id.rows, d_v, BK, &mut self.v);
    }
}

/// Probabilities and score gradients of a pair of tiles, `[BQ][BK]`; 0 for masked pairs.
#[derive(Default)]
pub(super) struct Pair {
    /// P as dV sees it.
    pub p: Vec<f32>,
    pub ds: Vec<f32>,
    /// Kept keys of each query row within the tile.
    pub kept: Vec<[usize; 2]>,
    raw: [Vec<f32>; 2],
}

impl Pair {
    /// P and the unscaled dS = P (dP - delta) of queries `q` and keys `k`.
    #[inline(always)]
    pub fn fill<S: Simd>(&mut self, simd: S, c: &Context<'_>, q: &QueryTile<'_>, k: &KeyTile, key: TileId) {
        let (d_qk, d_v, m, n) = (c.q.place.cols(), c.v.place.cols(), q.id.rows, key.rows);
        let cols = padded(n);
        let [qt, _, dot_t, _, lse, delta] = q.parts;
        self.p.resize(BQ * BK, 0.0);
        self.ds.resize(BQ * BK, 0.0);
        gemm(simd, [m, cols, d_qk], (qt, BQ), (&k.k, BK), (&mut self.p, BK), false);
        gemm(simd, [m, cols, d_v], (dot_t, BQ), (&k.v, BK), (&mut self.ds, BK), false);
        self.kept.clear();
        self.kept.extend((0..m).map(|i| {
            let (lo, hi) = c.kept(q.id, i);
            [lo, hi].map(|x| (x - key.start as i64).clamp(0, n as i64) as usize)
        }));
        self.patch(c, q, k, key);
        let bias = c.bias.as_ref();
        let mut bias_row = [0.0; BK];
        for i in 0..m {
            let p: &mut [f32] = &mut self.p[i * BK..][..cols];
            let ds: &mut [f32] = &mut self.ds[i * BK..][..cols];
            let (lse, delta) = (lse[i], delta[i]);
            if let Some(bias) = bias {
                bias.place.read_part(bias.bytes, q.id.b, q.id.h, q.id.start + i, key.start, &mut bias_row[..n]);
            }
            for ((p, ds), bias) in p.iter_mut().zip(ds.iter_mut()).zip(&bias_row) {
                *p = exp::<S>(*p * c.scale + bias - lse);
                *ds = *p * (*ds - delta);
            }
            let [lo, hi] = self.kept[i];
            for x in [&mut *p, ds] {
                x[..lo].fill(0.0);
                x[hi..].fill(0.0);
            }
            if c.nvfp4_p {
                // Key tiles begin at multiples of 64, so blocks begin at keys that are multiples of 16. Masked lanes are 0 and cannot
                // raise the largest magnitude of a block.
                nvfp4::fake_quant_row(&mut p[..n]);
            }
        }
    }

    /// Scores and dP of kept pairs whose rows were not finite, from the values as stored.
    fn patch(&mut self, c: &Context<'_>, q: &QueryTile<'_>, k: &KeyTile, key: TileId) {
        let [x, y] = &mut self.raw;
        let mut redo = |a: &Operand<'_>, bad_a: u64, b: &Operand<'_>, bad_b: u64, out: &mut [f32]| {
            if bad_a | bad_b == 0 {
                return;
            }
            x.resize(a.place.cols(), 0.0);
            y.resize(b.place.cols(), 0.0);
            bad_pairs(&self.kept, bad_a, bad_b, |i, j| {
                a.raw(q.id, i, x);
                b.raw(key, j, y);
                out[i * BK + j] = x.iter().zip(&*y).map(|(x, y)| x * y).sum();
            });
        };
        redo(&c.q, q.bad[0], &c.k, k.bad[0], &mut self.p);
        redo(&c.d_o, q.bad[1], &c.v, k.bad[1], &mut self.ds);
    }

    /// Adds `weight(i, j) * row` to `out[target]` for kept pairs whose contributing row, of the query or the key side, was not finite.
    pub fn add_bad(&mut self, from: &Operand<'_>, tile: TileId, bad: u64, by_query: bool, use_p: bool, out: &mut [f32]) {
        if bad == 0 {
            return;
        }
        let cols = from.place.cols();
        let row = &mut self.raw[0];
        row.resize(cols, 0.0);
        let weights = if use_p { &self.p } else { &self.ds };
        let (bad_q, bad_k) = if by_query { (bad, 0) } else { (0, bad) };
        bad_pairs(&self.kept, bad_q, bad_k, |i, j| {
            let (source, target) = if by_query { (i, j) } else { (j, i) };
            from.raw(tile, source, row);
            for (o, x) in out[target * padded(cols)..].iter_mut().zip(&*row) {
                *o += weights[i * BK + j] * x;
            }
        });
    }
}
