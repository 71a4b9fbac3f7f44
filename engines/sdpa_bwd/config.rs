//! Tile, warp-partition and shared-memory choice of the mma.sync backward main kernel (facts §6.1).

#[cfg(test)]
mod tests;
mod tuned;

use self::tuned::TUNED;
use super::workspace::Route;
use crate::{DeclineCode as Code, Knob, Knobs};

/// Head dims that a main kernel is compiled for.
pub const NATIVE: [i64; 5] = [32, 64, 128, 192, 256];
/// Rows to which delta, dq_accum and the columns of the dS workspace are padded.
pub const ROW_ROUND: i64 = 128;
/// Dynamic shared memory of the SM120 line, bytes. Table tiles keep within it on every device, so that what a larger device executes is
/// what an SM120 runs.
pub const SM120_SMEM: i64 = 101_376;
/// Math warps of the main kernel.
const MATH_WARPS: i64 = 8;

/// Everything about the main kernel that tiles decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Padded head dim of Q and K.
    pub d_qk: i64,
    /// Padded head dim of V and O.
    pub d_v: i64,
    /// Query rows a tile.
    pub q_tile: i64,
    /// Keys a tile.
    pub kv_tile: i64,
    /// Q buffers, 2 or 1.
    pub q_stages: i64,
    /// dO buffers, 1 or 2.
    pub do_stages: i64,
    /// P and dS buffers.
    pub pds_stages: i64,
    /// Trailing columns of V that live in registers.
    pub v_reg_cols: i64,
    /// Trailing columns of K that live in registers.
    pub k_reg_cols: i64,
    /// Warps along M.
    pub warps: Partition,
    /// Warps 0 to 3 compute dV and 4 to 7 dK, instead of all eight one after the other.
    pub dkv_split: bool,
    /// dQ tiles are staged in shared memory and added to memory by the bulk engine; not on the two-kernel route.
    pub dq_bulk: bool,
    /// Dynamic shared memory, bytes.
    pub smem: i64,
}

/// Warps along M of the three partitions; the other 8 / x run along N.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition {
    /// S and dP: M = query tile, N = key tile.
    pub sdp: i64,
    /// dK and dV: M = key tile, N = both head dims.
    pub dkv: i64,
    /// dQ: M = query tile, N = d_qk.
    pub dq: i64,
}

/// Padded `(d_qk, d_v)`: each side its smallest native size, and where they differ the V side at least 64, because then both sides are
/// cut into 64-column chunks. `None` above 256.
pub fn padded_head_dims(d_qk: i64, d_v: i64) -> Option<(i64, i64)> {
    let native = |d| NATIVE.into_iter().find(|n| *n >= d);
    let (q, v) = (native(d_qk)?, native(d_v)?);
    Some((q, if q == v { v } else { v.max(64) }))
}

/// Default `(q_tile, kv_tile)` of a padded d_qk.
pub fn default_tiles(d_qk_padded: i64) -> (i64, i64) {
    match d_qk_padded {
        32 => (128, 64),
        64 => (64, 128),
        128 => (64, 64),
        _ => (32, 64),
    }
}

/// The sweep-tuned partitions, by (d_qk, q_tile, kv_tile).
const PARTITIONS: &[((i64, i64, i64), Partition)] = &[
    ((32, 128, 64), Partition { sdp: 4, dkv: 4, dq: 8 }),
    ((32, 128, 128), Partition { sdp: 4, dkv: 8, dq: 4 }),
    ((64, 64, 128), Partition { sdp: 4, dkv: 8, dq: 4 }),
    ((64, 128, 64), Partition { sdp: 8, dkv: 2, dq: 4 }),
    ((128, 64, 64), Partition { sdp: 2, dkv: 1, dq: 4 }),
    ((192, 32, 64), Partition { sdp: 2, dkv: 4, dq: 2 }),
    ((256, 32, 64), Partition { sdp: 2, dkv: 4, dq: 2 }),
];

/// Whether `a` of `warps` warps along `m`, the rest along every `n`, give each warp whole 16-row and 16-column fragments.
fn tiles_evenly(warps: i64, a: i64, m: i64, ns: &[i64]) -> bool {
    a <= warps && m % (16 * a) == 0 && ns.iter().all(|n| n * a % warps == 0 && (n * a / warps) % 16 == 0)
}

/// The largest valid number of warps along M.
fn largest_valid(m: i64, ns: &[i64]) -> Option<i64> {
    [8, 4, 2, 1].into_iter().find(|&a| tiles_evenly(MATH_WARPS, a, m, ns))
}

/// The partitions of a tile pair: from the table, otherwise the largest valid ones. A table entry whose dK/dV partition does not tile
/// this d_v is re-derived. `None` when no partition is valid.
pub fn partition(d_qk: i64, d_v: i64, q_tile: i64, kv_tile: i64) -> Option<Partition> {
    let tuned = PARTITIONS.iter().find(|(key, _)| *key == (d_qk, q_tile, kv_tile)).map(|(_, p)| *p);
    let pick = |tuned: Option<i64>, m: i64, ns: &[i64]| {
        tuned.filter(|&a| tiles_evenly(MATH_WARPS, a, m, ns)).or_else(|| largest_valid(m, ns))
    };
    Some(Partition {
        sdp: pick(tuned.map(|p| p.sdp), q_tile, &[kv_tile])?,
        dkv: pick(tuned.map(|p| p.dkv), kv_tile, &[d_qk, d_v])?,
        dq: pick(tuned.map(|p| p.dq), q_tile, &[d_qk])?,
    })
}

impl Config {
    /// The configuration for a graph with a bias: at 64/64 the bias loads would spill the fragments of V and K that otherwise live in
    /// registers (compiled for every target), so they are read from shared memory again.
    #[must_use]
    pub fn with_bias(mut self, bias: bool) -> Config {
        if bias && (self.d_qk, self.d_v, self.kv_tile) == (64, 64, 128) && self.dkv_split {
            (self.v_reg_cols, self.k_reg_cols) = (0, 0);
        }
        self.with_stages(self.q_stages, self.do_stages)
    }

    /// Shared memory of a configuration: tiles, the staged dQ tile, row statistics, barriers. P and dS lie where the register-resident
    /// part of V was loaded.
    fn smem_bytes(&self) -> i64 {
        let (q, kv) = (self.q_tile, self.kv_tile);
        let tail = (kv * self.d_v).max(kv * (self.d_v - self.v_reg_cols) + self.pds_stages * 2 * q * kv);
        let staged_dq = if self.dq_bulk { 4 * q * self.d_qk } else { 0 };
        2 * (self.q_stages * q * self.d_qk + self.do_stages * q * self.d_v + kv * self.d_qk + tail)
            + staged_dq
            + self.q_stages * q * 8
            + 128
    }

    fn with_stages(mut self, q_stages: i64, do_stages: i64) -> Config {
        self.q_stages = q_stages;
        self.do_stages = do_stages;
        self.smem = self.smem_bytes();
        self
    }
}

/// Why no configuration exists: code, fact, reason.
pub type Refusal = (Code, String, String);

/// The configuration for these head dims, knobs and device.
///
/// A tuned configuration where its tiles have one that fits. Otherwise two Q buffers where they fit, else one; the two-kernel route adds a second dO buffer where it still fits. Table tiles are laid out for
/// [`SM120_SMEM`] or the device's limit, whichever is smaller; other tiles may use all that the device has.
pub fn resolve(d_qk: i64, d_v: i64, knobs: &Knobs, smem_optin: u32, route: Route) -> Result<Config, Refusal> {
    let Some((dq, dv)) = padded_head_dims(d_qk, d_v) else {
        return Err((
            Code::HeadDim,
            format!("d_qk={d_qk} d_v={d_v}"),
            format!("head dims are {d_qk}/{d_v}; this row serves at most 256"),
        ));
    };
    let table = default_tiles(dq);
    let q_tile = knobs.get(Knob::TileM).unwrap_or(table.0);
    let kv_tile = knobs.get(Knob::TileN).unwrap_or(table.1);
    let tiles = format!("TILE_M={q_tile} TILE_N={kv_tile}");
    let Some(warps) = partition(dq, dv, q_tile, kv_tile) else {
        let reason = format!(
            "no partition of 8 warps tiles {q_tile}x{kv_tile} at head dims {dq}/{dv}; this row serves tiles that one does"
        );
        return Err((Code::Knob, tiles, reason));
    };
    let limit = i64::from(smem_optin);
    let limit = if (q_tile, kv_tile) == table { limit.min(SM120_SMEM) } else { limit };
    let base = Config {
        d_qk: dq,
        d_v: dv,
        q_tile,
        kv_tile,
        q_stages: 1,
        do_stages: 1,
        pds_stages: 1,
        v_reg_cols: dv,
        k_reg_cols: 0,
        warps,
        dkv_split: false,
        dq_bulk: false,
        smem: 0,
    };
    let best = TUNED.iter().filter_map(|t| t.config((dq, dv), (q_tile, kv_tile), route)).find(|c| c.smem <= limit);
    if let Some(c) = best {
        return Ok(c);
    }
    let tries: &[(i64, i64)] = if route == Route::TwoKernel { &[(2, 2), (2, 1), (1, 1)] } else { &[(2, 1), (1, 1)] };
    let found = tries.iter().map(|&(q, o)| base.with_stages(q, o)).find(|c| c.smem <= limit);
    found.ok_or_else(|| {
        let need = base.with_stages(1, 1).smem;
        let reason =
            format!("tiles {q_tile}x{kv_tile} at head dims {dq}/{dv} need {need} bytes of shared memory; the device has {limit}");
        (Code::Resources, format!("{tiles} smem={need}"), reason)
    })
}

/// Query rows of a CTA of the two-kernel route's dQ kernel.
pub fn dq2k_tile(d_qk_padded: i64) -> i64 {
    if d_qk_padded <= 128 {
        128
    } else {
        64
    }
}

/// Shared memory of that kernel: two stages of a 64-key K tile and the matching dS panel, and its barriers.
pub fn dq2k_smem(d_qk_padded: i64) -> i64 {
    2 * 2 * 64 * (d_qk_padded + dq2k_tile(d_qk_padded)) + 64
}
