//! Switches and parameter lists of the three kernels, in the kernels' order.

use super::form::Form;
use super::{Plan, Regions, BLOCK, SHORT_LINE, THREADS, TILE};
use crate::grouped_gemm::{Formula, GemmPort, GroupedGemmFacts, Weights};
use crate::sdpa::arith::ceil_div;
use crate::sdpa::params::Params;
use crate::{Arg, Base, DType};

pub(in crate::grouped_gemm_dsrelu) fn ptr(port: &Option<GemmPort>) -> Arg {
    port.as_ref().map_or(Arg::Null, |p| Arg::Ptr(Base::Tensor(p.uid)))
}

pub(in crate::grouped_gemm_dsrelu) fn region(index: usize) -> Arg {
    Arg::Ptr(Base::Region(index))
}

pub(in crate::grouped_gemm_dsrelu) fn maybe(index: Option<usize>) -> Arg {
    index.map_or(Arg::Null, region)
}

/// Switches of the operands of the product.
pub(in crate::grouped_gemm_dsrelu) fn inputs(f: &GroupedGemmFacts) -> Vec<(&'static str, i64)> {
    let kind = match f.ab {
        DType::F4E2M1 => 2,
        DType::F8E5M2 => 1,
        _ => 0,
    };
    vec![
        ("FG_IN", kind),
        ("FG_SF_E4M3", i64::from(f.sf == DType::F8E4M3)),
        ("FG_SF_VEC", f.sf_vec),
        ("FG_LIST", i64::from(f.weights != Weights::Dense)),
    ]
}

/// `T_*` of `main_config.cuh`.
fn kind(d: DType) -> i64 {
    match d {
        DType::BF16 => 1,
        DType::F16 => 2,
        DType::F8E4M3 => 3,
        DType::F8E5M2 => 4,
        _ => 0,
    }
}

/// Switches of the epilogue.
pub(in crate::grouped_gemm_dsrelu) fn outputs(f: &GroupedGemmFacts) -> [(&'static str, i64); 10] {
    [
        ("FG_C", kind(f.c)),
        ("FG_D", kind(f.d)),
        ("FG_READING", i64::from(f.formula == Formula::PreactivationC)),
        ("FG_CLAMP", i64::from(f.tanh_clamp_scale.is_some())),
        ("FG_DET", i64::from(f.deterministic)),
        ("FG_AMAX", i64::from(f.ports.amax.is_some())),
        ("FG_DBIAS", i64::from(f.ports.dbias.is_some())),
        ("FG_COMPACT", i64::from(f.discrete_col_sfd)),
        ("FG_SRELU", i64::from(f.ports.d_srelu.is_some())),
        ("FG_EDGE", i64::from(f.n % BLOCK != 0)),
    ]
}

pub(super) fn prep_threads(f: &GroupedGemmFacts) -> i64 {
    if ceil_div(ceil_div(f.k, f.sf_vec), 4) <= SHORT_LINE {
        128
    } else {
        THREADS.into()
    }
}

/// Map of the weights: (k, n, experts), or n-major (n, k, experts); one box a stage.
fn map_b(plan: &Plan<'_>, base: Base, experts: i64) -> Arg {
    let f = plan.f;
    let [inner, stage] = [f.k, TILE[2]].map(|k| plan.k_bytes(k));
    if f.b_n_major {
        let (dim, tile) = ([f.n, f.k, experts], [TILE[1], TILE[2], 1]);
        return Params::map(base, DType::U8, &dim, &[f.n, f.n * f.k], &tile, TILE[1]);
    }
    Params::map(base, DType::U8, &[inner, f.n, experts], &[inner, inner * f.n], &[stage, TILE[1], 1], stage)
}

/// Bytes of a pool; 0 where there is none.
pub(in crate::grouped_gemm_dsrelu) fn pool_bytes(port: &Option<GemmPort>) -> i64 {
    port.as_ref().map_or(0, |p| p.dim.iter().product::<i64>() * i64::from(p.dtype.bits()) / 8)
}

pub(super) fn prep(plan: &Plan<'_>, r: &Regions) -> Params {
    let (f, ports) = (plan.f, &plan.f.ports);
    let mut p = Params::default();
    // Copied for every expert, with the expert's address in place of this one.
    p.push("map_b", r.maps.map_or(Arg::NoMap, |at| map_b(plan, Base::Region(at), 1)));
    let pool = |port: &Option<GemmPort>| if plan.listed() { ptr(port) } else { Arg::Null };
    for (name, arg) in [
        ("sfa", ptr(&ports.sfa)),
        ("b", pool(&ports.b)),
        ("sfb", ptr(&ports.sfb)),
        ("b_ptrs", ptr(&ports.b_ptrs)),
        ("sfb_ptrs", ptr(&ports.sfb_ptrs)),
        ("offsets", ptr(&ports.padded_offsets)),
    ] {
        p.push(name, arg);
    }
    for (name, index) in [
        ("fields", r.fields),
        ("row_exp", r.row_exp),
        ("row_flag", r.row_flag),
        ("col_exp", r.col_exp),
        ("col_top", r.col_top),
        ("col_flag", r.col_flag),
        ("head", r.head),
        ("table", r.table),
    ] {
        p.push(name, region(index));
    }
    p.push("maps", maybe(r.maps));
    p.push("sfb_at", maybe(r.sfb_at));
    // With slots, finish writes dprob.
    p.push("dprob", if r.slots.is_some() { Arg::Null } else { ptr(&ports.dprob) });
    p.push("amax", ptr(&ports.amax));
    p.push("status", ptr(&ports.status));
    p.push("part_count", maybe(r.part_count));
    let [b_bytes, sfb_bytes] = f.expert_bytes();
    p.i64("b_pool", pool_bytes(&ports.b));
    p.i64("sfb_pool", pool_bytes(&ports.sfb));
    p.i64("b_bytes", b_bytes);
    p.i64("sfb_bytes", sfb_bytes);
    p.i64("m", f.m);
    p.sizes(&[
        ("n", f.n),
        ("k", f.k),
        ("experts", f.experts),
        ("row_blocks", plan.blocks[0]),
        ("col_blocks", plan.prep_columns()),
    ]);
    p
}

pub(super) fn main(plan: &Plan<'_>, r: &Regions) -> Params {
    let (f, ports) = (plan.f, &plan.f.ports);
    let (k, stage) = (plan.k_bytes(f.k), plan.k_bytes(TILE[2]));
    let listed = plan.listed();
    let map = |port: &Option<GemmPort>, dtype, dim: &[i64], stride: &[i64], tile: &[i64], swizzle| {
        port.as_ref().map_or(Arg::NoMap, |p| Params::map(Base::Tensor(p.uid), dtype, dim, stride, tile, swizzle))
    };
    let mut p = Params::default();
    p.push("map_a", map(&ports.a, DType::U8, &[k, f.m], &[k], &[stage, plan.stage_rows()], stage));
    let dense = ports.b.as_ref().filter(|_| !listed);
    p.push("map_b", dense.map_or(Arg::NoMap, |b| map_b(plan, Base::Tensor(b.uid), f.experts)));
    let width = f.c.bytes().map_or(1, |b| b as i64);
    p.push("map_c", map(&ports.c, f.c, &[f.n, f.m], &[f.n * width], &[128 / width, plan.stage_rows() / 2], 128));
    if plan.form == Form::Pair {
        let width = f.d.bytes().map_or(1, |b| b as i64);
        for (name, port) in [("map_d_row", &ports.d_row), ("map_d_col", &ports.d_col)] {
            p.push(name, map(port, f.d, &[f.n, f.m], &[f.n * width], &[128 / width, 16], 128));
        }
    }
    p.push("sfa", ptr(&ports.sfa));
    p.push("sfb", if listed { Arg::Null } else { ptr(&ports.sfb) });
    p.push("maps", maybe(r.maps));
    p.push("sfb_at", maybe(r.sfb_at));
    for (name, index) in [
        ("fields", r.fields),
        ("row_exp", r.row_exp),
        ("col_exp", r.col_exp),
        ("col_top", r.col_top),
        ("row_flag", r.row_flag),
        ("col_flag", r.col_flag),
        ("head", r.head),
        ("table", r.table),
    ] {
        p.push(name, region(index));
    }
    for (name, port) in [
        ("alpha", &ports.alpha),
        ("prob", &ports.prob),
        ("norm_const", &ports.norm_const),
        ("d_row", &ports.d_row),
        ("d_col", &ports.d_col),
        ("d_srelu", &ports.d_srelu),
        ("sfd_row", &ports.sfd_row),
        ("sfd_col", &ports.sfd_col),
        ("sfd_col_d_srelu", &ports.sfd_col_d_srelu),
    ] {
        p.push(name, ptr(port));
    }
    p.push("dprob", r.slots.map_or_else(|| ptr(&ports.dprob), region));
    p.push("amax", ptr(&ports.amax));
    p.push("dbias", maybe(r.partial));
    if plan.form == Form::Pair {
        p.push("part_sums", maybe(r.part_sums));
        p.push("part_count", maybe(r.part_count));
    }
    p.push("clamp", Arg::F32(f.tanh_clamp_scale.unwrap_or(1.0)));
    p.sizes(&[("n", f.n), ("k", f.k)]);
    p.i64("m", f.m);
    p
}
