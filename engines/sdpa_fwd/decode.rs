//! Lowers `sdpa_fwd_decode_sm80`: one launch, or one for the splits and one that combines them.

use super::config::{Decode, DECODE_ROWS};
use super::lower::{
    bf16, bounds, launch, length_defines, lens, mask_defines, region, scale, sink, stats, stats_port, Kernel, Shape,
};
use super::rules;
use super::workspace::{self, Regions};
use crate::sdpa::arith::ceil_div;
use crate::sdpa::params::{ptr, Params};
use crate::{Arg, Decline, DeclineCode, Facts, Knob, Knobs, LaunchPlan, Port, Row, SdpaFacts, Step, Target};

const DECODE: Kernel = Kernel("decode", "sdpa/fwd/mma/decode.cu", "fg_sdpa_fwd_decode");
const COMBINE: Kernel = Kernel("combine", "sdpa/fwd/mma/combine.cu", "fg_sdpa_fwd_combine");

/// Kernel sources of the row.
pub const SOURCES: &[&str] = &[COMBINE.1, DECODE.1];

/// Threads of a combine CTA.
const COMBINE_THREADS: i64 = 128;

/// The launches for these facts: decode, and combine where the keys are split.
///
/// # Errors
/// [`Decline`] where [`rules::decode`] refuses, and for a scale tensor.
pub fn lower(row: &Row, facts: &Facts, knobs: &Knobs, target: &Target) -> Result<LaunchPlan, Decline> {
    let f = facts.expect_sdpa();
    let c = rules::decode(row, f, knobs, target)?;
    let scale = scale(row, f)?;
    let splits = knobs.get(Knob::SplitKv).unwrap_or(1);
    let mut plan = LaunchPlan::default();
    let regions = workspace::carve(f, &c, splits, &mut plan).ok_or_else(|| {
        row.decline(
            DeclineCode::Geometry,
            "workspace=overflow",
            "the workspace size leaves 64 bits; this row serves sizes that fit",
        )
    })?;
    plan.steps.push(decode(f, &c, splits, regions, scale, target));
    if let Some(regions) = regions {
        plan.steps.push(combine(f, &c, splits, regions, target));
    }
    Ok(plan)
}

/// O and Stats are the last kernel's outputs: with splits, decode writes partial results only (S4).
fn decode(f: &SdpaFacts, c: &Decode, splits: i64, regions: Option<Regions>, scale: f32, target: &Target) -> Step {
    let ports = &f.ports;
    let split = regions.is_some();
    let last = |port| if split { &None } else { port };
    let (o, stats_out, sink_in): (&Option<Port>, &Option<Port>, &Option<Port>) =
        (last(&ports.o), last(stats_port(f)), last(&ports.sink));
    let mut p = Params::default();
    for (name, port) in [("q", &ports.q), ("k", &ports.k), ("v", &ports.v), ("o", o), ("stats", stats_out)] {
        p.push(name, ptr(port));
    }
    p.push("part_o", region(regions.map(|r| r.part_o)));
    p.push("part_lse", region(regions.map(|r| r.part_lse)));
    for (name, port) in [
        ("sink", sink_in),
        ("seq_q", lens(&ports.seq_len_q, &ports.cu_seq_len_q)),
        ("seq_kv", lens(&ports.seq_len_kv, &ports.cu_seq_len_kv)),
        ("table_k", &ports.page_table_k),
        ("table_v", &ports.page_table_v),
    ] {
        p.push(name, ptr(port));
    }
    p.strides(["q_sb", "q_sh", "q_ss"], &ports.q);
    // Of a page pool these are the strides of a page, a head, a row of the page.
    p.strides(["k_sb", "k_sh", "k_ss"], &ports.k);
    p.strides(["v_sb", "v_sh", "v_ss"], &ports.v);
    p.strides(["o_sb", "o_sh", "o_ss"], o);
    p.strides(["stats_sb", "stats_sh", "stats_ss"], stats_out);
    let table = |port: &Option<Port>, a: usize| port.as_ref().map_or(0, |p| p.stride[a]);
    p.i64("table_k_sb", table(&ports.page_table_k, 0));
    p.i64("table_k_ss", table(&ports.page_table_k, 2));
    p.i64("table_v_sb", table(&ports.page_table_v, 0));
    p.i64("table_v_ss", table(&ports.page_table_v, 2));
    p.sizes(&[
        ("batch", f.b),
        ("heads_q", f.h_q),
        ("group", f.h_q / f.h_kv),
        ("s_q", f.s_q),
        ("s_kv", f.s_kv),
        ("d_qk", f.d_qk),
        ("d_v", f.d_v),
        ("page_size", f.page_size.unwrap_or(0)),
        ("splits", splits),
    ]);
    bounds(f, &mut p);
    p.push("scale", Arg::F32(scale));
    let mut defines = vec![
        ("FG_D_QK", c.d_qk),
        ("FG_D_V", c.d_v),
        ("FG_WARPS", c.warps),
        ("FG_KEYS", c.keys),
        ("FG_STAGES", c.stages),
        ("FG_MIN_CTAS", c.min_ctas),
        ("FG_PAGED", i64::from(ports.page_table_k.is_some())),
        ("FG_SPLIT", i64::from(split)),
        ("FG_SINK", i64::from(sink_in.is_some())),
        // Partial LSEs are natural logs whatever the final ones are (S4), so a split build has no variants of Stats.
        ("FG_STATS", if split { 0 } else { stats(f).1 }),
        bf16(f),
    ];
    defines.extend(length_defines(f));
    defines.extend(mask_defines(f));
    let shape = Shape {
        grid: splits * f.h_kv * ceil_div(f.s_q * (f.h_q / f.h_kv), DECODE_ROWS) * f.b,
        block: 32 * c.warps,
        smem: c.smem,
        waits: true,
    };
    launch(DECODE, &defines, &shape, p, target)
}

fn combine(f: &SdpaFacts, c: &Decode, splits: i64, regions: Regions, target: &Target) -> Step {
    let ports = &f.ports;
    let mut p = Params::default();
    p.push("part_o", region(Some(regions.part_o)));
    p.push("part_lse", region(Some(regions.part_lse)));
    for (name, port) in
        [("o", &ports.o), ("stats", stats_port(f)), ("sink", &ports.sink), ("seq_q", lens(&ports.seq_len_q, &ports.cu_seq_len_q))]
    {
        p.push(name, ptr(port));
    }
    p.strides(["o_sb", "o_sh", "o_ss"], &ports.o);
    p.strides(["stats_sb", "stats_sh", "stats_ss"], stats_port(f));
    p.sizes(&[("batch", f.b), ("heads_q", f.h_q), ("s_q", f.s_q), ("d_v", f.d_v), ("splits", splits)]);
    let mut defines = vec![("FG_D_V", c.d_v), bf16(f), sink(f), stats(f)];
    defines.extend(length_defines(f));
    let shape = Shape { grid: f.b * f.h_q * f.s_q, block: COMBINE_THREADS, smem: 0, waits: true };
    launch(COMBINE, &defines, &shape, p, target)
}
