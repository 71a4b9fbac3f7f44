//! Lowers `sdpa_fwd_prefill_sm90`: one launch of the wgmma kernel. Parameter list and switches follow `kernels/sdpa/fwd/sm90/README.md`.

use super::lower::{bf16, bounds, launch, length_defines, lens, mask_defines, scale, stats_port, Kernel, Shape};
use super::prefill::Sched;
use super::rules;
use crate::caps::HeadDims;
use crate::sdpa::arith::ceil_div;
use crate::sdpa::matching::{head_dim_fit, HeadDimFit};
use crate::sdpa::params::{ptr, tile_map, Params};
use crate::{Arg, Base, DType, Decline, Facts, Feature, Knob, Knobs, LaunchPlan, Port, Row, SdpaFacts, Target};

const PREFILL: Kernel = Kernel("prefill", "sdpa/fwd/sm90/prefill.cu", "fg_sdpa_fwd_sm90");

/// Kernel sources of the row.
pub const SOURCES: &[&str] = &[PREFILL.1];

/// Head dims that tiles are tuned for; others run zero-padded on the smallest of them that holds both.
pub const HEAD_DIMS: HeadDims =
    HeadDims { native: &[(64, 64), (128, 128), (192, 128), (256, 256)], pad_multiple: 8, dqk_ge_dv: false };

/// Query rows of a math warpgroup.
const GROUP_ROWS: i64 = 64;
/// Columns of a 128-byte row of shared memory.
const CHUNK: i64 = 64;

/// What head dims decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Padded head dims of Q and K.
    pub d_qk: i64,
    /// Padded head dim of V and O.
    pub d_v: i64,
    /// Math warpgroups, 64 query rows each.
    pub groups: i64,
    /// Keys a tile.
    pub kv_tile: i64,
    /// K and V buffers.
    pub stages: i64,
}

impl Config {
    /// Rows of a CTA.
    pub fn q_tile(&self) -> i64 {
        GROUP_ROWS * self.groups
    }

    /// Threads of a CTA: one more warpgroup loads.
    pub fn threads(&self) -> i64 {
        128 * (self.groups + 1)
    }

    /// Q, the rings of K and V, barriers.
    pub fn smem(&self) -> i64 {
        let elements = self.q_tile() * self.d_qk + self.stages * self.kv_tile * (self.d_qk + self.d_v);
        2 * elements + 8 * (2 * self.groups + 4 * self.stages)
    }
}

/// The measured configuration for these head dims (H200, `kernels/sdpa/fwd/sm90/README.md`). A left bound cuts rows short, so that smaller tiles waste
/// less at its edges.
pub fn config(d_qk: i64, d_v: i64, window: bool) -> Option<Config> {
    let (d_qk, d_v) = match head_dim_fit(&HEAD_DIMS, d_qk, d_v)? {
        HeadDimFit::Native => (d_qk, d_v),
        HeadDimFit::Envelope(q, v) => (q, v),
    };
    let (groups, kv_tile, stages) = match (d_qk, window) {
        (64, false) => (3, 96, 3),
        (64, true) => (3, 64, 4),
        (128, _) => (2, 128, 3),
        (192, _) => (2, 128, 2),
        (_, _) => (2, 64, 2),
    };
    Some(Config { d_qk, d_v, groups, kv_tile, stages })
}

/// (Batch, query head)s of a section. At least four CTAs read the same keys at a time: with fewer the reads of 132 multiprocessors are more than
/// the memory delivers. Within that, whole groups whose tiles come out even over two rounds of the CTAs, forwards and backwards, because a
/// round is what the order balances.
pub fn section(f: &SdpaFacts, c: &Config, sched: i64, target: &Target) -> i64 {
    let all = f.b * f.h_q;
    let Target::Cuda { sm_count, .. } = target else { return all };
    let (sms, group) = (i64::from(*sm_count), f.h_q / f.h_kv);
    if sched != Sched::LptL2 as i64 || f.b * f.h_kv <= sms / 4 {
        return all;
    }
    let (tiles, round) = (ceil_div(f.s_q, c.q_tile()), 2 * sms);
    let heads = (1..=sms / 4).map(|n| n * group).filter(|n| n * tiles >= round - round / 8);
    // Idle places of the last round, a share of the section's tiles.
    let idle = |n: &i64| (round - n * tiles % round) % round * 10_000 / (n * tiles);
    heads.min_by_key(|n| (idle(n), *n)).unwrap_or(all).min(all)
}

/// Tiles of the launch.
pub fn tiles(f: &SdpaFacts, c: &Config) -> i64 {
    ceil_div(f.s_q, c.q_tile()) * f.h_q * f.b
}

/// The launch for these facts.
///
/// # Errors
/// [`Decline`] where [`rules::prefill_sm90`] refuses, and for a scale tensor.
pub fn lower(row: &Row, facts: &Facts, knobs: &Knobs, target: &Target) -> Result<LaunchPlan, Decline> {
    let f = facts.expect_sdpa();
    let c = rules::prefill_sm90(row, f, target)?;
    let scale = scale(row, f)?;
    let sched = knobs.get(Knob::SchedPolicy).unwrap_or(Sched::Natural as i64);
    let params = params(f, &c, sched, section(f, &c, sched, target), scale);
    let step = launch(PREFILL, &defines(f, &c), &shape(f, &c, target), params, target);
    Ok(LaunchPlan { steps: vec![step], ..LaunchPlan::default() })
}

/// Shape of the launch, and of every other one with these tiles: one CTA a multiprocessor, which takes several tiles in turn and loads the next
/// one's queries under the end of the last.
pub fn shape(f: &SdpaFacts, c: &Config, target: &Target) -> Shape {
    let resident = match target {
        Target::Cuda { sm_count, .. } => i64::from(*sm_count),
        Target::Cpu => 1,
    };
    Shape { grid: tiles(f, c).min(resident), block: c.threads(), smem: c.smem(), waits: false }
}

/// Tensor maps of Q, K and V.
pub fn maps(f: &SdpaFacts, c: &Config) -> [(&'static str, Arg); 3] {
    let (ports, thd) = (&f.ports, f.features.has(Feature::Thd));
    [("tm_q", &ports.q, GROUP_ROWS), ("tm_k", &ports.k, c.kv_tile), ("tm_v", &ports.v, c.kv_tile)]
        .map(|(name, port, rows)| (name, tile_map(port, thd, CHUNK, rows, 2 * CHUNK)))
}

/// Switches of the kernel and of every other one that keeps its tiles.
pub fn defines(f: &SdpaFacts, c: &Config) -> Vec<(&'static str, i64)> {
    let mut list = vec![
        ("FG_D_QK", c.d_qk),
        ("FG_D_V", c.d_v),
        ("FG_KV_TILE", c.kv_tile),
        ("FG_MATH_GROUPS", c.groups),
        ("FG_STAGES", c.stages),
        bf16(f),
    ];
    list.extend(mask_defines(f));
    list
}

/// `form_bits`: what costs too little a tile to be a switch of the compiler.
fn form(f: &SdpaFacts, sched: i64) -> i64 {
    let thd = f.features.has(Feature::Thd);
    let wide = f.ports.q.as_ref().and_then(|p| p.ragged).is_some_and(|r| r.dtype == DType::I64);
    let totals = length_defines(f).contains(&("FG_CU_SEQ", 1));
    let bits = [thd, thd && wide, totals, f.features.has(Feature::StatsLog2), sched != Sched::Natural as i64];
    bits.iter().enumerate().map(|(i, &b)| i64::from(b) << i).sum()
}

fn params(f: &SdpaFacts, c: &Config, sched: i64, section: i64, scale: f32) -> Params {
    let ports = &f.ports;
    let thd = f.features.has(Feature::Thd);
    let stats = stats_port(f);
    let mut p = Params::default();
    for (name, map) in maps(f, c) {
        p.push(name, map);
    }
    let pointers = [
        ("o", &ports.o),
        ("stats", stats),
        ("sink", &ports.sink),
        ("seq_q", lens(&ports.seq_len_q, &ports.cu_seq_len_q)),
        ("seq_kv", lens(&ports.seq_len_kv, &ports.cu_seq_len_kv)),
    ];
    for (name, port) in pointers {
        p.push(name, ptr(port));
    }
    let ragged = [
        ("rag_q", "mul_q", &ports.q),
        ("rag_k", "mul_k", &ports.k),
        ("rag_v", "mul_v", &ports.v),
        ("rag_o", "mul_o", &ports.o),
        ("rag_stats", "mul_stats", stats),
    ];
    let of = |port: &Option<Port>| port.as_ref().and_then(|p| p.ragged).filter(|_| thd);
    for (name, _, port) in ragged {
        p.push(name, of(port).map_or(Arg::Null, |r| Arg::Ptr(Base::Tensor(r.uid))));
    }
    for (_, name, port) in ragged {
        p.i64(name, of(port).map_or(0, |r| r.multiplier));
    }
    // Where a packed sequence starts is counted in tokens, as tensor maps address them.
    for (name, port) in [("q_ss", &ports.q), ("k_ss", &ports.k), ("v_ss", &ports.v)] {
        p.i64(name, port.as_ref().filter(|_| thd).map_or(0, |p| p.stride[2]));
    }
    p.strides(["o_sb", "o_sh", "o_ss"], &ports.o);
    p.strides(["stats_sb", "stats_sh", "stats_ss"], stats);
    p.sizes(&[("batch", f.b), ("heads_q", f.h_q), ("group", f.h_q / f.h_kv), ("s_q", f.s_q), ("s_kv", f.s_kv), ("d_v", f.d_v)]);
    bounds(f, &mut p);
    p.sizes(&[("section", section), ("form_bits", form(f, sched))]);
    p.push("scale", Arg::F32(scale));
    p
}
