//! Lowers `sdpa_fwd_prefill_sm80`: one launch.

use super::config::Prefill;
use super::lower::{bf16, bounds, launch, length_defines, lens, mask_defines, scale, sink, stats, stats_port, Kernel, Shape};
use super::rules;
use crate::sdpa::arith::ceil_div;
use crate::sdpa::params::{ptr, Params};
use crate::{Arg, Base, DType, Decline, Facts, Feature, Knob, Knobs, LaunchPlan, Port, Row, SdpaFacts, Target};

const PREFILL: Kernel = Kernel("prefill", "sdpa/fwd/mma/prefill.cu", "fg_sdpa_fwd_prefill");

/// Kernel sources of the row.
pub const SOURCES: &[&str] = &[PREFILL.1];

/// Order of the tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sched {
    /// Query tiles of a head ascending, head after head.
    Natural = 0,
    /// Last query tiles of all heads first: with a causal mask the longest.
    Lpt = 1,
    /// As `Lpt`, a section of heads whose keys and values fit the L2 cache at a time.
    LptL2 = 2,
}

/// Heads, packed ones counted once, that a section holds: all where their keys and values fit the L2 cache, else the fewest whole groups
/// whose tiles fill the device four times. Fewer leave multiprocessors idle between sections, more lose the cache.
pub fn section(f: &SdpaFacts, c: &Prefill, packed: bool, sched: i64, target: &Target) -> i64 {
    let group = f.h_q / f.h_kv;
    let (per_head, per_kv) = if packed { (group, 1) } else { (1, group) };
    let all = f.b * f.h_kv * per_kv;
    let Target::Cuda { l2_bytes, sm_count, .. } = target else { return all };
    let bytes = f.s_kv.saturating_mul(f.d_qk + f.d_v).saturating_mul(2).saturating_mul(f.b * f.h_kv);
    if sched != Sched::LptL2 as i64 || u64::try_from(bytes).is_ok_and(|n| n <= *l2_bytes) {
        return all;
    }
    let tiles = ceil_div(f.s_q * per_head, c.q_tile());
    let heads = ceil_div(4 * i64::from(*sm_count) * c.min_ctas, tiles);
    (ceil_div(heads, per_kv) * per_kv).min(all)
}

/// The launch for these facts.
///
/// # Errors
/// [`Decline`] where [`rules::prefill`] refuses, and for a scale tensor.
pub fn lower(row: &Row, facts: &Facts, knobs: &Knobs, target: &Target) -> Result<LaunchPlan, Decline> {
    let f = facts.expect_sdpa();
    let c = rules::prefill(row, f, knobs, target)?;
    let scale = scale(row, f)?;
    let packed = knobs.get(Knob::PackGqa) == Some(1);
    let sched = knobs.get(Knob::SchedPolicy).unwrap_or(Sched::Natural as i64);
    let (per_head, heads) = if packed { (f.h_q / f.h_kv, f.h_kv) } else { (1, f.h_q) };
    let shape = Shape {
        grid: ceil_div(f.s_q * per_head, c.q_tile()) * heads * f.b,
        block: c.threads(),
        smem: c.smem,
        // The kernel reads its inputs at once: it starts when all work before it is done.
        waits: false,
    };
    let params = params(f, section(f, &c, packed, sched, target), scale);
    let step = launch(PREFILL, &defines(f, &c, packed, sched), &shape, params, target);
    Ok(LaunchPlan { steps: vec![step], ..LaunchPlan::default() })
}

/// Switches of the kernel and of every other one that keeps its tiles.
pub fn defines(f: &SdpaFacts, c: &Prefill, packed: bool, sched: i64) -> Vec<(&'static str, i64)> {
    let p = &f.ports;
    let thd = f.features.has(Feature::Thd);
    let wide = p.q.as_ref().and_then(|p| p.ragged).is_some_and(|r| r.dtype == DType::I64);
    let mut list = vec![
        ("FG_D_QK", c.d_qk),
        ("FG_D_V", c.d_v),
        ("FG_WARPS", c.warps),
        ("FG_M_TILES", c.m_tiles),
        ("FG_KV_TILE", c.kv_tile),
        ("FG_STAGES", c.stages),
        ("FG_Q_REGS", i64::from(c.q_regs)),
        ("FG_MIN_CTAS", c.min_ctas),
        ("FG_SCHED", i64::from(sched != Sched::Natural as i64)),
        ("FG_THD", i64::from(thd)),
        ("FG_RAGGED_I64", i64::from(thd && wide)),
        ("FG_PACK_GQA", i64::from(packed)),
        ("FG_BIAS", p.bias.as_ref().map_or(0, |b| if b.dtype == DType::F32 { 2 } else { 1 })),
        ("FG_MAX_SUM", i64::from(p.score_max.is_some() || p.score_sum_exp.is_some())),
        bf16(f),
        sink(f),
        stats(f),
    ];
    list.extend(length_defines(f));
    list.extend(mask_defines(f));
    list
}

fn params(f: &SdpaFacts, section: i64, scale: f32) -> Params {
    let ports = &f.ports;
    let thd = f.features.has(Feature::Thd);
    let (stats, max, sum) = (stats_port(f), &ports.score_max, &ports.score_sum_exp);
    let mut p = Params::default();
    let pointers = [
        ("q", &ports.q),
        ("k", &ports.k),
        ("v", &ports.v),
        ("o", &ports.o),
        ("stats", stats),
        ("score_max", max),
        ("score_sum", sum),
        ("bias", &ports.bias),
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
        ("rag_max", "mul_max", max),
        ("rag_sum", "mul_sum", sum),
    ];
    let of = |port: &Option<Port>| port.as_ref().and_then(|p| p.ragged).filter(|_| thd);
    for (name, _, port) in ragged {
        p.push(name, of(port).map_or(Arg::Null, |r| Arg::Ptr(Base::Tensor(r.uid))));
    }
    for (_, name, port) in ragged {
        p.i64(name, of(port).map_or(0, |r| r.multiplier));
    }
    p.strides(["q_sb", "q_sh", "q_ss"], &ports.q);
    p.strides(["k_sb", "k_sh", "k_ss"], &ports.k);
    p.strides(["v_sb", "v_sh", "v_ss"], &ports.v);
    p.strides(["o_sb", "o_sh", "o_ss"], &ports.o);
    p.strides(["stats_sb", "stats_sh", "stats_ss"], stats);
    p.strides(["max_sb", "max_sh", "max_ss"], max);
    p.strides(["sum_sb", "sum_sh", "sum_ss"], sum);
    // An extent of 1 is read by every batch or head.
    let bias = |a: usize| ports.bias.as_ref().filter(|b| b.dim[a] > 1).map_or(0, |b| b.stride[a]);
    for (name, axis) in [("bias_sb", 0), ("bias_sh", 1), ("bias_sq", 2), ("bias_sk", 3)] {
        p.i64(name, bias(axis));
    }
    p.sizes(&[
        ("batch", f.b),
        ("heads_q", f.h_q),
        ("group", f.h_q / f.h_kv),
        ("s_q", f.s_q),
        ("s_kv", f.s_kv),
        ("d_qk", f.d_qk),
        ("d_v", f.d_v),
    ]);
    bounds(f, &mut p);
    p.sizes(&[("section", section)]);
    p.push("scale", Arg::F32(scale));
    p
}
