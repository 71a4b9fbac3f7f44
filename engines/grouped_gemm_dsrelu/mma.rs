//! Lowers the portable rows `grouped_gemm_dsrelu_mma` and `grouped_gemm_dsrelu_sm120`: table, main, and finish where sums were left in slots.
//!
//! One kernel: by `FG_HARDWARE` the block scales are applied by the matrix instruction of compute capability 12, or by f16 products.

use super::finish::{self, launch};
use super::sm90::args::{inputs, maybe, outputs, pool_bytes, ptr, region};
use super::sm90::rules::{extents, operands};
use crate::grouped_gemm::{GroupedGemmFacts, Weights};
use crate::sdpa::arith::{ceil_div, product};
use crate::sdpa::params::Params;
use crate::{Arg, Decline, DeclineCode as Code, Facts, LaunchPlan, Row, Target};

const TABLE: [&str; 3] = ["table", "grouped_gemm/mma/table.cu", "fg_grouped_gemm_table"];
const MAIN: [&str; 3] = ["main", "grouped_gemm/mma/main.cu", "fg_grouped_gemm_mma"];

/// Kernel sources of both rows.
pub const SOURCES: &[&str] = &[MAIN[1], TABLE[1], finish::FINISH[1]];

/// Rows of dprob that one block of `table` clears.
const CLEAR_ROWS: i64 = 4096;

/// Indices of the workspace regions.
struct Regions {
    head: usize,
    table: usize,
    slots: Option<usize>,
    partial: Option<usize>,
}

fn regions(f: &GroupedGemmFacts, plan: &mut LaunchPlan) -> Option<Regions> {
    let mut region = |name, bytes: Option<i64>| plan.region(name, u64::try_from(bytes?).ok()?);
    Some(Regions {
        head: region("head", Some(16))?,
        table: region("table", product(&[f.m / 256, 16]))?,
        slots: if f.deterministic { Some(region("dprob_slots", product(&[ceil_div(f.n, 128), f.m, 4]))?) } else { None },
        partial: if f.ports.dbias.is_some() { Some(region("dbias_partial", product(&[f.m / 32, f.n, 4]))?) } else { None },
    })
}

/// Shared memory of main, as `config.cuh` lays it out: three stages of 64 bytes of k and their scale atoms, and where the tile's copies start.
fn smem(f: &GroupedGemmFacts) -> u32 {
    3 * ((256 + 128) * 64 + 3 * 512 * if f.sf_vec == 16 { 2 } else { 1 }) + 64
}

/// A row's `extra` hook.
pub fn extra(row: &Row, facts: &Facts, target: &Target) -> Option<Decline> {
    lower(row, facts, target, false).err()
}

/// The launches for these facts; `hardware`: the instruction applies the scales.
///
/// # Errors
/// [`Decline`] for what the kernel does not serve.
pub fn lower(row: &Row, facts: &Facts, target: &Target, hardware: bool) -> Result<LaunchPlan, Decline> {
    let f = facts.expect_grouped_gemm();
    let &Target::Cuda { sm_count, smem_optin, total_memory, .. } = target else {
        let reason = "the device is cpu; this row serves CUDA devices";
        return Err(row.decline(Code::Arch, "device=cpu", reason));
    };
    extents(row, f)?;
    operands(row, f)?;
    if smem(f) > smem_optin {
        let reason = format!("the kernel needs {} bytes of shared memory; the device grants {smem_optin}", smem(f));
        return Err(row.decline(Code::Resources, format!("smem={}", smem(f)), reason));
    }
    let mut out = LaunchPlan::default();
    let r = match regions(f, &mut out) {
        Some(r) if out.workspace_bytes <= total_memory => r,
        _ => {
            let reason =
                format!("the workspace takes {} bytes or more; the device has {total_memory} in all", out.workspace_bytes);
            return Err(row.decline(Code::Resources, "workspace=beyond the device", reason));
        }
    };
    let clear = if f.deterministic { 0 } else { ceil_div(f.m, CLEAR_ROWS) };
    let listed = ("FG_LIST", i64::from(f.weights != Weights::Dense));
    out.steps.push(launch(TABLE, vec![listed], [1 + clear, 512], 1, 0, table(f, &r)));
    let mut defines = inputs(f);
    defines.extend(outputs(f));
    defines.push(("FG_HARDWARE", i64::from(hardware)));
    out.steps.push(launch(MAIN, defines, [i64::from(sm_count), 256], 1, smem(f), main(f, &r)));
    out.steps.extend(finish::step(f, finish::Sums { slots: r.slots, partial: r.partial, head: r.head }));
    Ok(out)
}

fn table(f: &GroupedGemmFacts, r: &Regions) -> Params {
    let ports = &f.ports;
    let pool = |port| if f.weights == Weights::Pool { ptr(port) } else { Arg::Null };
    let mut p = Params::default();
    p.push("b", pool(&ports.b));
    p.push("sfb", pool(&ports.sfb));
    p.push("b_ptrs", ptr(&ports.b_ptrs));
    p.push("sfb_ptrs", ptr(&ports.sfb_ptrs));
    p.push("offsets", ptr(&ports.padded_offsets));
    p.push("head", region(r.head));
    p.push("table", region(r.table));
    // With slots, finish writes dprob.
    p.push("dprob", if f.deterministic { Arg::Null } else { ptr(&ports.dprob) });
    p.push("amax", ptr(&ports.amax));
    p.push("status", ptr(&ports.status));
    let [b_bytes, sfb_bytes] = f.expert_bytes();
    p.i64("b_pool", pool_bytes(&ports.b));
    p.i64("sfb_pool", pool_bytes(&ports.sfb));
    p.i64("b_bytes", b_bytes);
    p.i64("sfb_bytes", sfb_bytes);
    p.i64("m", f.m);
    p.sizes(&[("experts", f.experts)]);
    p
}

fn main(f: &GroupedGemmFacts, r: &Regions) -> Params {
    let ports = &f.ports;
    let mut p = Params::default();
    for (name, port) in [
        ("a", &ports.a),
        ("b", &ports.b),
        ("c", &ports.c),
        ("sfa", &ports.sfa),
        ("sfb", &ports.sfb),
        ("b_ptrs", &ports.b_ptrs),
        ("sfb_ptrs", &ports.sfb_ptrs),
    ] {
        p.push(name, ptr(port));
    }
    p.push("head", region(r.head));
    p.push("table", region(r.table));
    for (name, port) in [
        ("alpha", &ports.alpha),
        ("prob", &ports.prob),
        ("norm_const", &ports.norm_const),
        ("d_row", &ports.d_row),
        ("d_col", &ports.d_col),
        ("sfd_row", &ports.sfd_row),
        ("sfd_col", &ports.sfd_col),
    ] {
        p.push(name, ptr(port));
    }
    p.push("dprob", r.slots.map_or_else(|| ptr(&ports.dprob), region));
    p.push("amax", ptr(&ports.amax));
    p.push("dbias", maybe(r.partial));
    p.push("clamp", Arg::F32(f.tanh_clamp_scale.unwrap_or(1.0)));
    p.sizes(&[("n", f.n), ("k", f.k)]);
    p.i64("m", f.m);
    p
}

#[cfg(test)]
#[path = "mma_tests.rs"]
mod tests;
