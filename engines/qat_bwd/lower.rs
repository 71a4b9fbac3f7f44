//! Lowers `nvfp4_qat_bwd_sm120`: prep main [reduce] cvt. Parameters follow `kernels/qat/bwd/mma/README.md`; main, reduce and cvt are launched as
//! the SDPA backward launches them.

use super::workspace;
use crate::sdpa::arith::{ceil_div, product};
use crate::sdpa::params::{ptr, Params};
use crate::sdpa::Scale;
use crate::sdpa_bwd::config::{self, Config};
use crate::sdpa_bwd::lower::{Chain, Inputs, Kernel, CVT, QAT_MAIN, REDUCE};
use crate::sdpa_bwd::rules::{self, Choice};
use crate::sdpa_bwd::workspace::{ws_rows, Regions, Route};
use crate::{Arg, Base, Decline, DeclineCode as Code, Facts, Feature, Knobs, LaunchPlan, Row, SdpaFacts, Target};

pub(super) const PREP: Kernel = Kernel("prep", "qat/bwd/mma/prep.cu", "fg_qat_bwd_prep");

/// Kernel sources of the chain.
pub const SOURCES: &[&str] = &[PREP.1, QAT_MAIN.1, CVT.1, REDUCE.1];

/// What the rules settle on.
struct Plan {
    choice: Choice,
    copies: [usize; 3],
    regions: Regions,
    rows: i64,
    launches: LaunchPlan,
}

/// The row's `extra` hook.
pub fn extra(row: &Row, facts: &Facts, knobs: &Knobs, target: &Target) -> Option<Decline> {
    choose(row, facts.expect_sdpa(), knobs, target).err()
}

/// What neither CUDA row serves.
pub(super) fn graph_rules(f: &SdpaFacts) -> Result<(), config::Refusal> {
    [rules::mask, rules::lengths, rules::index_limits, grid].into_iter().find_map(|rule| rule(f)).map_or(Ok(()), Err)
}

/// Configuration, route and workspace, or the first rule that refuses: masks, lengths, index limits, tiles, resources.
fn choose(row: &Row, f: &SdpaFacts, knobs: &Knobs, target: &Target) -> Result<Plan, Decline> {
    let refuse = |(code, fact, reason): config::Refusal| row.decline(code, fact, reason);
    graph_rules(f).map_err(refuse)?;
    let Target::Cuda { smem_optin, total_memory, .. } = target else {
        return Err(row.decline(Code::Arch, "device=cpu", "the device is cpu; this row serves CUDA devices"));
    };
    // dQ in order is the relay's; the two-kernel route would need dS of the whole problem.
    let route = if f.features.has(Feature::Deterministic) { Route::Relay } else { Route::Atomic };
    let config = config::resolve(f.d_qk, f.d_v, knobs, *smem_optin, route).map_err(refuse)?;
    tiles(&config).map_or(Ok(()), |r| Err(refuse(r)))?;
    // Where tiles do not fit, the plain chain tries them with fewer buffers; here they run as measured or not at all.
    let measured = config::resolve(f.d_qk, f.d_v, knobs, u32::MAX, route).map_err(refuse)?;
    if config != measured {
        let (need, shape) = (measured.smem, format!("TILE_M={} TILE_N={}", config.q_tile, config.kv_tile));
        let reason =
            format!("tiles {}x{} need {need} bytes of shared memory; the device has {smem_optin}", config.q_tile, config.kv_tile);
        return Err(row.decline(Code::Resources, format!("{shape} smem={need}"), reason));
    }
    let overflow =
        || row.decline(Code::Geometry, "workspace=overflow", "the workspace size leaves 64 bits; this row serves sizes that fit");
    let mut launches = LaunchPlan::default();
    let (copies, regions) = workspace::carve(f, &config, route, &mut launches).ok_or_else(overflow)?;
    let bytes = launches.workspace_bytes;
    if bytes > *total_memory {
        let reason = format!("the chain needs a workspace of {bytes} bytes; the device has {total_memory} bytes in all");
        return Err(row.decline(Code::Resources, format!("workspace={bytes}"), reason));
    }
    Ok(Plan { choice: Choice { config, route }, copies, regions, rows: ws_rows(f).ok_or_else(overflow)?, launches })
}

/// Head dims, or rows of a query and a key tile.
type Pair = (i64, i64);

/// Tile pairs whose main kernel was compiled and measured with the quantiser in it.
const TILES: &[(Pair, [Pair; 2])] = &[((64, 64), [(64, 128), (128, 128)]), ((128, 128), [(64, 64), (64, 128)])];

fn tiles(c: &Config) -> Option<config::Refusal> {
    let (_, served) = TILES.iter().find(|(dims, _)| *dims == (c.d_qk, c.d_v))?;
    (!served.contains(&(c.q_tile, c.kv_tile))).then(|| {
        let [a, b] = served.map(|(q, kv)| format!("{q}x{kv}"));
        let reason = format!("tiles are {}x{}; at head dim {} this row serves {a} and {b}", c.q_tile, c.kv_tile, c.d_qk);
        (Code::Knob, format!("TILE_M={} TILE_N={}", c.q_tile, c.kv_tile), reason)
    })
}

/// Rows of one block of `prep`.
fn prep_rows(d: i64) -> i64 {
    8192 / d
}

/// Blocks of `prep`; `None` where the count leaves 64 bits.
fn prep_blocks(f: &SdpaFacts) -> Option<i64> {
    let rows = prep_rows(f.d_qk);
    let queries = product(&[f.b, f.h_q, ceil_div(f.s_q, rows)])?;
    queries.checked_add(product(&[2, f.b, f.h_kv, ceil_div(f.s_kv, rows)])?)
}

/// Refuses more blocks than a grid of `prep` can have.
fn grid(f: &SdpaFacts) -> Option<config::Refusal> {
    let blocks = prep_blocks(f);
    blocks.is_none_or(|n| i32::try_from(n).is_err()).then(|| {
        let shown = blocks.map_or("more than 2^63".to_string(), |n| n.to_string());
        let reason = format!("a grid of row blocks of Q, K and V is {shown} blocks; this row serves below 2^31");
        (Code::Geometry, format!("grid={shown}"), reason)
    })
}

/// The chain for these facts.
pub fn lower(row: &Row, facts: &Facts, knobs: &Knobs, target: &Target) -> Result<LaunchPlan, Decline> {
    let f = facts.expect_sdpa();
    let plan = choose(row, f, knobs, target)?;
    let Scale::Static(scale) = f.scale else {
        return Err(row.decline(Code::Feature, "attn_scale=tensor", "attn_scale is a tensor; this row serves a number"));
    };
    let Plan { choice, copies, regions, rows, mut launches } = plan;
    let inputs = Inputs::Copies(copies);
    let total_rows = f.b * f.h_q * rows;
    let mut chain = Chain { f, choice, inputs, regions, scale, ws_rows: rows, total_rows, thd: false, steps: Vec::new() };
    prep(&mut chain, copies);
    chain.main();
    if f.h_q != f.h_kv {
        chain.reduce(1);
    }
    chain.cvt();
    launches.steps = chain.steps;
    Ok(launches)
}

/// The chain's first launch: quantised copies, delta, cleared accumulators.
pub(super) fn prep(chain: &mut Chain<'_>, copies: [usize; 3]) {
    let (f, ports) = (chain.f, &chain.f.ports);
    let heads = f.b * f.h_q;
    let accum = heads * chain.ws_rows * chain.choice.config.d_qk;
    let turns = if chain.choice.route == Route::Relay { heads * ceil_div(f.s_q, 32) } else { 0 };
    let mut p = Params::default();
    let inputs = [("q", &ports.q), ("k", &ports.k), ("v", &ports.v), ("o", &ports.o), ("d_o", &ports.d_o)];
    for (name, port) in inputs {
        p.push(name, ptr(port));
    }
    for (name, region) in ["q_fake", "k_fake", "v_fake"].into_iter().zip(copies) {
        p.push(name, Arg::Ptr(Base::Region(region)));
    }
    p.push("delta", chain.region(Some(chain.regions.delta)));
    p.push("dq_accum", chain.region(chain.regions.dq_accum));
    p.push("dq_sem", chain.region(chain.regions.dq_sem));
    p.push("seq_q", ptr(&ports.seq_len_q));
    p.push("seq_kv", ptr(&ports.seq_len_kv));
    p.strides(["q_sb", "q_sh", "q_ss"], &ports.q);
    p.strides(["k_sb", "k_sh", "k_ss"], &ports.k);
    p.strides(["v_sb", "v_sh", "v_ss"], &ports.v);
    p.strides(["o_sb", "o_sh", "o_ss"], &ports.o);
    p.strides(["do_sb", "do_sh", "do_ss"], &ports.d_o);
    p.i64("zero_f32", accum);
    p.i64("zero_i32", turns);
    p.sizes(&[
        ("batch", f.b),
        ("heads_q", f.h_q),
        ("heads_kv", f.h_kv),
        ("s_q", f.s_q),
        ("s_kv", f.s_kv),
        ("ws_rows", chain.ws_rows),
    ]);
    let defines = [("FG_D", chain.choice.config.d_qk), ("FG_PADDED", chain.padded())];
    chain.launch(PREP, &defines, prep_blocks(f).unwrap_or(i64::MAX), (256, 0), p);
}
