//! Tile, warp-partition and shared-memory choice of the mma.sync backward main kernel (facts §6.1).

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

/// Configurations found by compiling for every architecture and by measurement: no spills where the partitions above spill a few
/// registers, and as many buffers as fit. The entry for the head dims and the tiles is used where it fits.
///
/// First the default tiles, which all fit the SM120 line; then the tiles that measured faster on a device with more shared memory.
const TUNED: &[Tuned] = &[
    tuned((32, 32), (128, 64), (2, 2, 1), (4, 4, 8)).registers(32, 0),
    tuned((64, 64), (64, 128), (2, 2, 1), (2, 2, 4)).split().registers(64, 64),
    tuned((128, 64), (64, 64), (2, 2, 2), (2, 2, 2)).registers(64, 128),
    tuned((128, 128), (64, 64), (2, 1, 2), (2, 2, 2)).registers(128, 128),
    tuned((192, 64), (32, 64), (2, 2, 2), (2, 2, 2)).registers(64, 192),
    tuned((192, 128), (32, 64), (2, 2, 2), (2, 2, 2)).registers(128, 192),
    tuned((192, 192), (32, 64), (2, 2, 2), (2, 2, 2)).registers(192, 0),
    tuned((256, 64), (32, 64), (2, 2, 2), (2, 2, 1)).registers(64, 0),
    tuned((256, 128), (32, 64), (2, 2, 2), (2, 2, 1)).registers(128, 0),
    tuned((256, 192), (32, 64), (1, 2, 1), (2, 2, 1)).registers(64, 0),
    tuned((256, 256), (32, 64), (1, 1, 1), (2, 2, 1)).registers(64, 0),
    tuned((32, 32), (64, 128), (2, 2, 2), (2, 4, 4)).split().registers(32, 32),
    tuned((64, 64), (128, 128), (2, 2, 1), (4, 2, 4)).split().bulk(),
    tuned((128, 64), (64, 128), (2, 2, 2), (2, 2, 2)).bulk(),
    tuned((128, 128), (64, 128), (2, 2, 2), (2, 2, 2)).split().bulk(),
    tuned((192, 64), (64, 64), (2, 2, 2), (2, 2, 2)).bulk().registers(64, 96),
    tuned((192, 128), (64, 64), (2, 2, 2), (2, 2, 2)).bulk().registers(128, 96),
    tuned((192, 192), (64, 64), (2, 2, 2), (2, 2, 2)).split().bulk().registers(192, 0),
    tuned((256, 64), (64, 64), (2, 2, 2), (2, 2, 2)).registers(64, 0),
    tuned((256, 128), (64, 64), (2, 2, 2), (2, 2, 2)).registers(128, 0),
    tuned((256, 192), (64, 64), (2, 1, 2), (2, 2, 2)),
    tuned((256, 256), (64, 64), (2, 2, 2), (2, 1, 2)).split().registers(64, 0),
];

/// A tuned configuration.
#[derive(Debug, Clone, Copy)]
struct Tuned {
    /// Padded head dims.
    dims: (i64, i64),
    /// Query and key rows.
    tiles: (i64, i64),
    /// Buffers of Q, of dO, of P and dS.
    stages: (i64, i64, i64),
    /// Warps along M of S/dP, dK/dV, dQ.
    warps: (i64, i64, i64),
    split: bool,
    bulk: bool,
    v_reg_cols: i64,
    k_reg_cols: i64,
}

const fn tuned(dims: (i64, i64), tiles: (i64, i64), stages: (i64, i64, i64), warps: (i64, i64, i64)) -> Tuned {
    Tuned { dims, tiles, stages, warps, split: false, bulk: false, v_reg_cols: 0, k_reg_cols: 0 }
}

impl Tuned {
    /// See [`Config::v_reg_cols`] and [`Config::k_reg_cols`].
    const fn registers(mut self, v: i64, k: i64) -> Tuned {
        self.v_reg_cols = v;
        self.k_reg_cols = k;
        self
    }

    /// See [`Config::dkv_split`]; needs equal head dims.
    const fn split(mut self) -> Tuned {
        self.split = true;
        self
    }

    /// See [`Config::dq_bulk`]; dropped where the route has no dQ.
    const fn bulk(mut self) -> Tuned {
        self.bulk = true;
        self
    }

    /// The configuration at these padded head dims, tiles and route, where the entry is for them and tiles them evenly.
    fn config(&self, (d_qk, d_v): (i64, i64), tiles: (i64, i64), route: Route) -> Option<Config> {
        let here = self.dims == (d_qk, d_v) && self.tiles == tiles;
        let (q_tile, kv_tile) = tiles;
        let (sdp, dkv, dq) = self.warps;
        let dkv_warps = if self.split { MATH_WARPS / 2 } else { MATH_WARPS };
        let valid = tiles_evenly(MATH_WARPS, sdp, q_tile, &[kv_tile])
            && tiles_evenly(dkv_warps, dkv, kv_tile, &[d_qk, d_v])
            && tiles_evenly(MATH_WARPS, dq, q_tile, &[d_qk])
            && !(self.split && d_qk != d_v);
        if !here || !valid {
            return None;
        }
        let c = Config {
            d_qk,
            d_v,
            q_tile,
            kv_tile,
            q_stages: self.stages.0,
            do_stages: self.stages.1,
            pds_stages: self.stages.2,
            v_reg_cols: self.v_reg_cols,
            k_reg_cols: self.k_reg_cols,
            warps: Partition { sdp, dkv, dq },
            dkv_split: self.split,
            dq_bulk: self.bulk && route != Route::TwoKernel,
            smem: 0,
        };
        Some(c.with_stages(c.q_stages, c.do_stages))
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(d_qk: i64, d_v: i64) -> Config {
        resolve(d_qk, d_v, &Knobs::NONE, SM120_SMEM as u32, Route::Atomic).expect("a default configuration")
    }

    #[test]
    fn padded_dims_are_those_of_the_specification() {
        for (given, want) in [
            ((8, 8), (32, 32)),
            ((32, 32), (32, 32)),
            ((40, 40), (64, 64)),
            ((96, 40), (128, 64)),
            ((64, 32), (64, 64)),
            ((64, 8), (64, 64)),
            ((192, 128), (192, 128)),
            ((200, 136), (256, 192)),
            ((256, 256), (256, 256)),
        ] {
            assert_eq!(padded_head_dims(given.0, given.1), Some(want), "{given:?}");
        }
        assert_eq!(padded_head_dims(264, 264), None);
        assert_eq!(padded_head_dims(264, 8), None);
    }

    #[test]
    fn default_tiles_and_stages_keep_within_the_sm120_cap() {
        // Specification: double-buffered Q everywhere except at d 256.
        for (d, tiles, stages) in
            [(32, (128, 64), 2), (64, (64, 128), 2), (128, (64, 64), 2), (192, (32, 64), 2), (256, (32, 64), 1)]
        {
            let c = at(d, d);
            assert_eq!((c.q_tile, c.kv_tile), tiles, "d {d}");
            assert_eq!(c.q_stages, stages, "d {d}: {c:?}");
            assert!(c.smem <= SM120_SMEM, "d {d}: {c:?}");
        }
    }

    #[test]
    fn a_larger_device_runs_the_same_default_configuration() {
        for d in NATIVE {
            assert_eq!(
                resolve(d, d, &Knobs::NONE, 232_448, Route::Atomic),
                resolve(d, d, &Knobs::NONE, SM120_SMEM as u32, Route::Atomic)
            );
        }
    }

    #[test]
    fn partition_table_of_facts_6_1() {
        for (key, want) in [
            ((32, 128, 64), (4, 4, 8)),
            ((32, 128, 128), (4, 8, 4)),
            ((64, 64, 128), (4, 8, 4)),
            ((64, 128, 64), (8, 2, 4)),
            ((128, 64, 64), (2, 1, 4)),
            ((192, 32, 64), (2, 4, 2)),
            ((256, 32, 64), (2, 4, 2)),
        ] {
            let p = partition(key.0, key.0, key.1, key.2).expect("a partition");
            assert_eq!((p.sdp, p.dkv, p.dq), want, "{key:?}");
        }
    }

    #[test]
    fn a_tuned_partition_that_does_not_tile_d_v_is_derived_again() {
        // d 128 tunes one warp along the keys; d_v 64 over eight warps would be 8 columns each.
        let p = partition(128, 64, 64, 64).expect("a partition");
        assert_eq!((p.sdp, p.dkv, p.dq), (2, 4, 4));
    }

    #[test]
    fn largest_valid_rule_off_the_table() {
        // M 64 over 16 rows allows 4; N 64 with 4 warps along M leaves 32 columns each.
        assert_eq!(partition(64, 64, 64, 64), Some(Partition { sdp: 4, dkv: 4, dq: 4 }));
        assert_eq!(partition(256, 256, 32, 128), Some(Partition { sdp: 2, dkv: 8, dq: 2 }));
        assert_eq!(largest_valid(16, &[64]), None, "64 columns over 8 warps are 8 each");
        assert_eq!(largest_valid(8, &[128]), None);
    }

    #[test]
    fn shared_memory_formula_by_hand() {
        // d 128, 64x64, all of V in registers: 2*64*128 + 64*128 + 64*128 + max(64*128, 2*2*64*64) elements of 2 bytes, 2*64 rows of 8
        // bytes, 128 of barriers.
        assert_eq!(at(128, 128).smem, 2 * (16384 + 8192 + 8192 + 16384) + 1024 + 128);
        // d 256, 32x64, one buffer of each, 192 columns of V stay: the P and dS tiles end where V did.
        assert_eq!(at(256, 256).smem, 2 * (8192 + 8192 + 16384 + 16384) + 256 + 128);
        // Specification: Q_STAGES*q*d_qk + q*d_v + kv*d_qk + max(kv*d_v, 2*q*kv) elements for tiles without a tuned entry.
        let knobs = Knobs::new(&[(Knob::TileM, 32), (Knob::TileN, 64)]);
        let c = resolve(128, 128, &knobs, SM120_SMEM as u32, Route::Atomic).expect("a configuration");
        assert_eq!(c.smem, 2 * (2 * 4096 + 4096 + 8192 + 8192) + 512 + 128);
    }

    #[test]
    fn tuned_entries_are_legal_and_used() {
        for t in TUNED {
            let (route, dims) = (Route::Atomic, t.dims);
            let c = t.config(dims, t.tiles, route).unwrap_or_else(|| panic!("illegal entry {t:?}"));
            let chunk = if dims.0 % 64 == 0 && dims.1 % 64 == 0 { 64 } else { 32 };
            assert!(c.v_reg_cols % chunk == 0 && c.k_reg_cols % 16 == 0 && c.k_reg_cols <= c.d_qk, "{c:?}");
            let knobs = Knobs::new(&[(Knob::TileM, t.tiles.0), (Knob::TileN, t.tiles.1)]);
            assert_eq!(resolve(dims.0, dims.1, &knobs, 232_448, route), Ok(c), "an earlier entry hides {t:?}");
            assert!(c.smem <= SM120_SMEM || t.tiles != default_tiles(dims.0), "a default tile runs on the SM120 line: {c:?}");
        }
        for d in NATIVE {
            let tiles = default_tiles(d);
            assert!(
                TUNED.iter().any(|t| t.config((d, d), tiles, Route::Atomic) == Some(at(d, d))),
                "the default of {d} is tuned"
            );
        }
        let wide = Knobs::new(&[(Knob::TileM, 64), (Knob::TileN, 64)]);
        let c = resolve(192, 128, &wide, 232_448, Route::Atomic).expect("a configuration");
        assert!(!c.dkv_split, "unequal head dims cannot split");
        assert_eq!(at(192, 128).v_reg_cols, 128, "a smaller d_v keeps all of its columns in registers");
    }

    #[test]
    fn tiles_that_cannot_fit_name_their_bytes() {
        let knobs = Knobs::new(&[(Knob::TileM, 128), (Knob::TileN, 128)]);
        let (code, fact, reason) = resolve(256, 256, &knobs, SM120_SMEM as u32, Route::Atomic).expect_err("too large");
        assert_eq!(code, Code::Resources);
        assert!(fact.starts_with("TILE_M=128 TILE_N=128 smem="), "{fact}");
        assert!(reason.contains("101376"), "{reason}");
    }

    proptest! {
        #[test]
        fn every_resolved_configuration_is_legal(dq in 1i64..33, dv in 1i64..33, m in 0usize..3, n in 0usize..2, big: bool, det: bool) {
            let (d_qk, d_v) = (8 * dq.max(dv), 8 * dq.min(dv));
            let knobs = Knobs::new(&[(Knob::TileM, [32, 64, 128][m]), (Knob::TileN, [64, 128][n])]);
            let route = if det { Route::TwoKernel } else { Route::Atomic };
            let smem = if big { 232_448 } else { SM120_SMEM as u32 };
            if let Ok(c) = resolve(d_qk, d_v, &knobs, smem, route) {
                prop_assert!(c.smem <= i64::from(smem) && c.d_qk >= d_qk && c.d_v >= d_v && c.d_qk >= c.d_v);
                prop_assert!(c.d_qk == c.d_v || (c.d_qk % 64 == 0 && c.d_v % 64 == 0));
                prop_assert!(ROW_ROUND % c.q_tile == 0);
                prop_assert!(tiles_evenly(8, c.warps.sdp, c.q_tile, &[c.kv_tile]));
                let dkv = if c.dkv_split { 4 } else { 8 };
                prop_assert!(tiles_evenly(dkv, c.warps.dkv, c.kv_tile, &[c.d_qk, c.d_v]));
                prop_assert!(tiles_evenly(8, c.warps.dq, c.q_tile, &[c.d_qk]));
            }
        }
    }
}
