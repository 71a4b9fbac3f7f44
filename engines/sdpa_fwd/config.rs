//! Tile, pipeline and shared-memory choice of the mma.sync forward kernels.

use crate::caps::HeadDims;
use crate::sdpa::matching::{head_dim_fit, HeadDimFit};
use crate::{Decline, DeclineCode as Code, Knob, Knobs, Row};

/// Head dims that kernels are compiled for; others run zero-padded on the smallest flavour that holds them.
pub const HEAD_DIMS: HeadDims = HeadDims {
    native: &[(32, 32), (64, 64), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256)],
    pad_multiple: 8,
    dqk_ge_dv: false,
};

/// The flavour that serves these head dims.
pub fn flavour(d_qk: i64, d_v: i64) -> Option<(i64, i64)> {
    head_dim_fit(&HEAD_DIMS, d_qk, d_v).map(|fit| match fit {
        HeadDimFit::Native => (d_qk, d_v),
        HeadDimFit::Envelope(q, v) => (q, v),
    })
}

/// Dynamic shared memory of compute capability 8.6, 8.9 and 12.x, bytes.
const SMALL_SMEM: i64 = 101_376;

/// The prefill kernel's switches that tiles decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefill {
    /// Padded head dims of Q and K.
    pub d_qk: i64,
    /// Padded head dim of V and O.
    pub d_v: i64,
    /// Warps, each with its own rows.
    pub warps: i64,
    /// 16-row slabs a warp.
    pub m_tiles: i64,
    /// Keys a tile.
    pub kv_tile: i64,
    /// K and V buffers.
    pub stages: i64,
    /// Whether Q stays in registers.
    pub q_regs: bool,
    /// CTAs of a multiprocessor that registers are cut for.
    pub min_ctas: i64,
    /// Dynamic shared memory, bytes.
    pub smem: i64,
}

impl Prefill {
    /// Rows of a CTA.
    pub fn q_tile(&self) -> i64 {
        16 * self.m_tiles * self.warps
    }

    /// Threads of a CTA.
    pub fn threads(&self) -> i64 {
        32 * self.warps
    }

    /// The Q tile, which O's goes over, K and V buffers.
    fn with_stages(mut self, stages: i64) -> Prefill {
        self.stages = stages;
        let q = 2 * self.q_tile() * self.d_qk;
        let kv = 2 * stages * self.kv_tile * (self.d_qk + self.d_v);
        self.smem = (q + kv).max(2 * self.q_tile() * self.d_v);
        self
    }
}

/// `(query rows, keys)` by measurement on an H200; all fit the 99 KB of compute capability 8.6 and 12.x.
///
/// d 64: 128x128 beats 128x64 by 4 %. d 256: 64x64 beats 128x64 by 5 % under a causal mask and loses 1 % without one. With a bias
/// the rows' offsets have no room beside the accumulators of 128 rows.
pub fn default_tiles(flavour: (i64, i64), bias: bool) -> (i64, i64) {
    match flavour {
        _ if bias => (64, 64),
        (64, 64) => (128, 128),
        (_, d_v) if d_v <= 128 => (128, 64),
        _ => (64, 64),
    }
}

/// The tiles that the kernel takes at this padded d_v: wider ones have no room for their accumulators.
pub fn tiles(d_v: i64) -> &'static [(i64, i64)] {
    if d_v <= 128 {
        &[(128, 64), (128, 128), (64, 64), (64, 128)]
    } else {
        &[(64, 64), (128, 64)]
    }
}

/// The prefill configuration for these head dims, knobs and shared memory.
///
/// # Errors
/// [`Decline`] D04 for tiles that the head dims do not have, D14 for tiles beyond the device's shared memory.
pub fn prefill(row: &Row, (d_qk, d_v): (i64, i64), bias: bool, knobs: &Knobs, smem_optin: u32) -> Result<Prefill, Decline> {
    let (dq, dv) = flavour(d_qk, d_v).ok_or_else(|| beyond(row, d_qk, d_v))?;
    let table = default_tiles((dq, dv), bias);
    let (m, n) = (knobs.get(Knob::TileM).unwrap_or(table.0), knobs.get(Knob::TileN).unwrap_or(table.1));
    let shown = format!("TILE_M={m} TILE_N={n}");
    if !tiles(dv).contains(&(m, n)) {
        let reason = format!("tiles are {m}x{n} at a padded d_v of {dv}; this row serves {}", list(tiles(dv)));
        return Err(row.decline(Code::Knob, shown, reason));
    }
    // Two slabs a warp halve the shared-memory reads of K and V; the accumulators of S and O have to leave registers for the rest.
    let wide = m == 128 && n + dv <= 192 && !bias;
    let (warps, m_tiles) = match (m, wide) {
        (128, true) => (4, 2),
        (128, false) => (8, 1),
        (_, _) => (4, 1),
    };
    let base = Prefill {
        d_qk: dq,
        d_v: dv,
        warps,
        m_tiles,
        kv_tile: n,
        stages: 1,
        q_regs: (n + dv + dq) * m_tiles / 2 <= 192,
        min_ctas: if warps == 4 { 2 } else { 1 },
        smem: 0,
    };
    // One buffer beats two at d 128 (2 %) and at 192/128 (29 %, two CTAs a multiprocessor); elsewhere the second buffer pays.
    let stages: &[i64] = if wide && dv == 128 { &[1] } else { &[2, 1] };
    // Default tiles keep within the smallest device's memory everywhere: what was measured is what runs, and two CTAs share a large one.
    let limit = i64::from(smem_optin);
    let limit = if (m, n) == table { limit.min(SMALL_SMEM) } else { limit };
    stages.iter().map(|&s| base.with_stages(s)).find(|c| c.smem <= limit).ok_or_else(|| {
        let need = base.with_stages(1).smem;
        let reason = format!("tiles {m}x{n} at head dims {dq}/{dv} need {need} bytes of shared memory; the device has {limit}");
        row.decline(Code::Resources, format!("{shown} smem={need}"), reason)
    })
}

/// The decode kernel's switches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decode {
    /// Padded head dims of Q and K.
    pub d_qk: i64,
    /// Padded head dim of V and O.
    pub d_v: i64,
    /// Warps, each with a ring of key blocks of its own.
    pub warps: i64,
    /// Keys of a block.
    pub keys: i64,
    /// Blocks of a ring.
    pub stages: i64,
    /// CTAs of a multiprocessor that registers are cut for.
    pub min_ctas: i64,
    /// Dynamic shared memory, bytes.
    pub smem: i64,
}

/// Rows of a decode CTA: one instruction tile.
pub const DECODE_ROWS: i64 = 16;

impl Decode {
    /// The rings, or the warps' partial rows that go over them.
    fn sized(mut self) -> Decode {
        let rings = self.warps * self.stages * 2 * self.keys * (self.d_qk + self.d_v);
        let parts = self.warps * DECODE_ROWS * ((self.d_v + 8) * 4 + 8);
        self.smem = rings.max(parts);
        self
    }
}

/// The decode configuration: the measured one (256/256: the deepest that spills nowhere), with fewer blocks in flight where shared memory
/// is short.
///
/// # Errors
/// [`Decline`] D06 beyond the flavours, D14 where not even the smallest ring fits.
pub fn decode(row: &Row, d_qk: i64, d_v: i64, smem_optin: u32) -> Result<Decode, Decline> {
    let (dq, dv) = flavour(d_qk, d_v).ok_or_else(|| beyond(row, d_qk, d_v))?;
    // Both head dims together are the bytes of a key.
    let (keys, stages, min_ctas) = match dq + dv {
        ..=64 => (32, 4, 2),
        65..=128 => (32, 3, 2),
        129..=256 => (16, 3, 2),
        257..=384 => (16, 4, 1),
        _ => (16, 2, 1),
    };
    let limit = i64::from(smem_optin);
    let shapes = (2..=stages).rev().map(|s| (4, s)).chain([(2, 3), (2, 2)]);
    let mut sized = shapes.map(|(warps, stages)| Decode { d_qk: dq, d_v: dv, warps, keys, stages, min_ctas, smem: 0 }.sized());
    sized.find(|c| c.smem <= limit).ok_or_else(|| {
        let reason = format!("decode at head dims {dq}/{dv} does not fit {limit} bytes of shared memory");
        row.decline(Code::Resources, format!("smem_optin={limit}"), reason)
    })
}

pub(super) fn beyond(row: &Row, d_qk: i64, d_v: i64) -> Decline {
    let reason = format!("head dims are {d_qk}/{d_v}; this row serves multiples of 8 up to 256");
    row.decline(Code::HeadDim, format!("d_qk={d_qk} d_v={d_v}"), reason)
}

fn list(tiles: &[(i64, i64)]) -> String {
    tiles.iter().map(|(m, n)| format!("{m}x{n}")).collect::<Vec<_>>().join(", ")
}
