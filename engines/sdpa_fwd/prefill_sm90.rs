//! Lowers `sdpa_fwd_prefill_sm90`: one launch of the wgmma kernel. Parameter list and switches follow `kernels/sdpa/fwd/sm90/README.md`.

pub use super::config_sm90::{
    bias, clustered, config, grid, padded, pair_rounds, section, tile_rows, Config, GROUP_ROWS, HEAD_DIMS,
};
use super::lower::{bf16, bounds, launch, length_defines, lens, mask_defines, stats_port, Kernel, Shape};
use super::prefill::Sched;
use super::rules;
use crate::sdpa::params::{ptr, tile_map, Params};
use crate::sdpa::Scale;
use crate::{Arg, Base, DType, Decline, Facts, Feature, Knob, Knobs, LaunchPlan, Port, Row, SdpaFacts, Step, Target};

const PREFILL: Kernel = Kernel("prefill", "sdpa/fwd/sm90/prefill.cu", "fg_sdpa_fwd_sm90");

/// Kernel sources of the row.
pub const SOURCES: &[&str] = &[PREFILL.1];

/// Columns of a 128-byte row of shared memory.
const CHUNK: i64 = 64;

/// The launch for these facts.
///
/// # Errors
/// [`Decline`] where [`rules::prefill_sm90`] refuses.
pub fn lower(row: &Row, facts: &Facts, knobs: &Knobs, target: &Target) -> Result<LaunchPlan, Decline> {
    let f = facts.expect_sdpa();
    let sched = knobs.get(Knob::SchedPolicy).unwrap_or(Sched::Natural as i64);
    let c = clustered(f, rules::prefill_sm90(row, f, knobs, target)?, sched, target);
    let pairs = pair_rounds(f, &c, sched, target);
    let order = (pairs.unwrap_or_else(|| section(f, &c, sched, target)), form(f, sched, pairs.is_some()));
    let params = params(f, &c, order);
    let mut step = launch(PREFILL, &defines(f, &c), &shape(f, &c, target), params, target);
    if let Step::Kernel(l) = &mut step {
        l.cluster[0] = u32::try_from(c.cluster).unwrap_or(u32::MAX);
    }
    Ok(LaunchPlan { steps: vec![step], ..LaunchPlan::default() })
}

/// Shape of the launch, and of every other one with these tiles.
pub fn shape(f: &SdpaFacts, c: &Config, target: &Target) -> Shape {
    Shape { grid: grid(f, c, target), block: c.threads(), smem: c.smem(), waits: false }
}

/// Tensor maps of Q, K and V.
pub fn maps(f: &SdpaFacts, c: &Config) -> [(&'static str, Arg); 3] {
    let (ports, thd) = (&f.ports, f.features.has(Feature::Thd));
    let map = |port, rows| tile_map(port, thd, CHUNK, rows, 2 * CHUNK);
    [
        ("tm_q", packed_map(map(&ports.q, GROUP_ROWS), c)),
        ("tm_k", map(&ports.k, c.kv_tile / c.cluster)),
        ("tm_v", map(&ports.v, c.kv_tile / c.cluster)),
    ]
}

/// The map of a bias that comes through shared memory. An extent of 1 is read by every batch or head; its stride, never used, may be that of a row which
/// is no multiple of 16 bytes.
fn bias_map(f: &SdpaFacts, c: &Config) -> Arg {
    if c.bias_stages == 0 {
        return Arg::NoMap;
    }
    match tile_map(&f.ports.bias, false, c.bias_row() / c.bias_item, GROUP_ROWS, c.bias_row()) {
        Arg::Map(mut m) => {
            m.stride_bytes.iter_mut().for_each(|s| *s = s.next_multiple_of(16));
            Arg::Map(m)
        }
        map => map,
    }
}

/// The map of Q with its head axis before the token axis, so that a box is the heads of a group, heads fastest, of a few tokens.
fn packed_map(map: Arg, c: &Config) -> Arg {
    match map {
        Arg::Map(mut m) if c.pack > 1 => {
            m.dim.swap(1, 2);
            m.stride_bytes.swap(0, 1);
            m.tile[1] = u32::try_from(c.pack).unwrap_or(u32::MAX);
            m.tile[2] = u32::try_from(c.group_tokens()).unwrap_or(u32::MAX);
            Arg::Map(m)
        }
        map => map,
    }
}

/// Switches of the kernel and of every other one that keeps its tiles.
pub fn defines(f: &SdpaFacts, c: &Config) -> Vec<(&'static str, i64)> {
    let mut list = vec![
        ("FG_D_QK", c.d_qk),
        ("FG_D_V", c.d_v),
        ("FG_KV_TILE", c.kv_tile),
        ("FG_MATH_GROUPS", c.groups),
        ("FG_STAGES", c.stages),
        ("FG_V_STAGES", c.v_stages),
        ("FG_KEY_SPLIT", i64::from(c.key_split)),
        ("FG_PACK_GQA", i64::from(c.pack > 1)),
        ("FG_CLUSTER", c.cluster),
        ("FG_BIAS", f.ports.bias.as_ref().map_or(0, |b| if b.dtype == DType::F32 { 2 } else { 1 })),
        ("FG_BIAS_STAGES", c.bias_stages),
        ("FG_PRESCALE", i64::from(prescaled(f))),
        ("FG_MAX_SUM", i64::from(f.ports.score_max.is_some() || f.ports.score_sum_exp.is_some())),
        bf16(f),
    ];
    list.extend(mask_defines(f));
    list
}

/// Whether scores are multiplied before anything else is done with them: the row maximum of raw scores is that of scaled ones only for a positive factor, a
/// tiny one may flush to 0, and a bias is added to scaled scores.
fn prescaled(f: &SdpaFacts) -> bool {
    match f.scale {
        Scale::Static(scale) => f.ports.bias.is_some() || scale <= 1e-30 || scale.is_nan(),
        Scale::Dynamic(_) => true,
    }
}

/// `form_bits`: what costs too little a tile to be a switch of the compiler.
fn form(f: &SdpaFacts, sched: i64, pairs: bool) -> i64 {
    let thd = f.features.has(Feature::Thd);
    let wide = f.ports.q.as_ref().and_then(|p| p.ragged).is_some_and(|r| r.dtype == DType::I64);
    let totals = length_defines(f).contains(&("FG_CU_SEQ", 1));
    let bits = [thd, thd && wide, totals, f.features.has(Feature::StatsLog2), sched != Sched::Natural as i64, pairs];
    bits.iter().enumerate().map(|(i, &b)| i64::from(b) << i).sum()
}

fn params(f: &SdpaFacts, c: &Config, (section, form_bits): (i64, i64)) -> Params {
    let ports = &f.ports;
    let thd = f.features.has(Feature::Thd);
    let (stats, max, sum) = (stats_port(f), &ports.score_max, &ports.score_sum_exp);
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
    p.sizes(&[("section", section), ("form_bits", form_bits)]);
    let (scale, scale_at) = match f.scale {
        Scale::Static(scale) => (scale, Arg::Null),
        Scale::Dynamic(uid) => (1.0, Arg::Ptr(Base::Tensor(uid))),
    };
    p.push("scale", Arg::F32(scale));
    p.push("scale_at", scale_at);
    p.push("bias", ptr(&ports.bias));
    // An extent of 1 is read by every batch, head, row or key.
    let stride = |a: usize| ports.bias.as_ref().filter(|b| b.dim[a] > 1).map_or(0, |b| b.stride[a]);
    for (name, axis) in [("bias_sb", 0), ("bias_sh", 1), ("bias_sq", 2), ("bias_sk", 3)] {
        p.i64(name, stride(axis));
    }
    p.push("score_max", ptr(max));
    p.push("score_sum", ptr(sum));
    for (name, port) in [("rag_max", max), ("rag_sum", sum)] {
        p.push(name, of(port).map_or(Arg::Null, |r| Arg::Ptr(Base::Tensor(r.uid))));
    }
    for (name, port) in [("mul_max", max), ("mul_sum", sum)] {
        p.i64(name, of(port).map_or(0, |r| r.multiplier));
    }
    p.strides(["max_sb", "max_sh", "max_ss"], max);
    p.strides(["sum_sb", "sum_sh", "sum_ss"], sum);
    p.push("tm_bias", bias_map(f, c));
    p
}
