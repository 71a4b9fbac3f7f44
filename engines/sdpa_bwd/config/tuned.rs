//! The configurations that were found, as a table.

use super::{tiles_evenly, Config, Partition, Route, MATH_WARPS};

/// Configurations found by compiling for every architecture and by measurement: no spills where the partitions above spill a few
/// registers, and as many buffers as fit. The entry for the head dims and the tiles is used where it fits.
///
/// First the default tiles, which all fit the SM120 line; then the tiles that measured faster on a device with more shared memory.
pub(super) const TUNED: &[Tuned] = &[
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
pub(super) struct Tuned {
    /// Padded head dims.
    pub dims: (i64, i64),
    /// Query and key rows.
    pub tiles: (i64, i64),
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
    pub fn config(&self, (d_qk, d_v): (i64, i64), tiles: (i64, i64), route: Route) -> Option<Config> {
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
