//! Parameters and switches of the launches, in the order of the entry points.

use super::{launch, n_major, narrow, Operands, EXPAND, EXPAND_ROWS, EXPAND_THREADS, TILE, UNIT};
use crate::grouped_gemm::GemmPort;
use crate::moe_grouped_matmul::{MoeFacts, MoeMode, ScalePlace};
use crate::sdpa::arith::ceil_div;
use crate::sdpa::params::Params;
use crate::{Arg, Base, DType, Step};

fn ptr(port: &Option<GemmPort>) -> Arg {
    port.as_ref().map_or(Arg::Null, |p| Arg::Ptr(Base::Tensor(p.uid)))
}

/// One operand into bf16, row by row: the token's rows, or the columns of all experts.
pub(super) fn expand(f: &MoeFacts, bases: Operands, token: bool) -> Step {
    let ports = &f.ports;
    let (values, scales, out) =
        if token { (&ports.token, &ports.token_scale, bases.token) } else { (&ports.weight, &ports.weight_scale, bases.weight) };
    let (outers, rows) = if token { (1, f.tokens) } else { (f.experts, f.n) };
    // Axes of rows, and of blocks of scales.
    let (row_axis, block_axis) = if token { (1, 2) } else { (2, 1) };
    let stride = |port: &Option<GemmPort>, axis: usize| port.as_ref().map_or(0, |p| p.stride[axis]);
    let bytes = |elements: i64| if f.input == DType::F4E2M1 { elements / 2 } else { elements };
    let kind = match f.input {
        DType::F8E5M2 => 1,
        DType::F4E2M1 => 2,
        _ => 0,
    };
    let (sf, vec, place) = match f.scales {
        None => (0, 32, ScalePlace::Strided),
        Some(s) => (if s.dtype == DType::F8E4M3 { 2 } else { 1 }, s.vec, if token { s.token } else { s.weight }),
    };
    let defines = vec![("FG_ATOMS", i64::from(place == ScalePlace::Atoms)), ("FG_IN", kind), ("FG_SF", sf), ("FG_SF_VEC", vec)];
    let mut p = Params::default();
    p.push("values", ptr(values));
    p.push("scales", ptr(scales));
    p.push("out", Arg::Ptr(out));
    p.i64("outer_bytes", bytes(stride(values, 0)));
    p.i64("row_bytes", bytes(stride(values, row_axis)));
    p.i64("sf_outer", stride(scales, 0));
    p.i64("sf_row", stride(scales, row_axis));
    p.i64("sf_block", stride(scales, block_axis));
    p.sizes(&[("outers", outers), ("rows", rows), ("k", f.k)]);
    let grid = ceil_div(outers * rows, EXPAND_ROWS);
    launch(EXPAND, defines, [grid as u32, EXPAND_THREADS], 0, p)
}

/// Switches of main and status, by name.
pub(super) fn defines(f: &MoeFacts) -> Vec<(&'static str, i64)> {
    let output = match f.output {
        DType::BF16 => 1,
        DType::F16 => 2,
        _ => 0,
    };
    let mode = match f.mode {
        MoeMode::None => 0,
        MoeMode::Gather => 1,
        MoeMode::Scatter => 2,
    };
    let wide = f.ports.first_token_offset.as_ref().is_some_and(|p| p.dtype == DType::I64);
    vec![
        ("FG_BF16", i64::from(f.input != DType::F16)),
        ("FG_END", i64::from(f.explicit_end)),
        ("FG_MODE", mode),
        ("FG_NMAJOR", i64::from(n_major(f))),
        ("FG_OFFSET64", i64::from(wide)),
        ("FG_OUT", output),
    ]
}

/// Of main.
pub(super) fn main(f: &MoeFacts, bases: Operands) -> Params {
    let ports = &f.ports;
    let dtype = if narrow(f) { DType::BF16 } else { f.input };
    // Strides of rows and experts in elements; expanded operands have no gaps. Of an extent of 1 the stride is never used to address, but has to
    // be legal.
    let stride = |port: &Option<GemmPort>, axis: usize| {
        port.as_ref().map_or(UNIT, |p| if p.dim[axis] == 1 { UNIT } else { p.stride[axis] })
    };
    let (token_row, weight_row, expert) = if narrow(f) {
        (f.k, f.k, f.n * f.k)
    } else {
        (stride(&ports.token, 1), stride(&ports.weight, if n_major(f) { 1 } else { 2 }), stride(&ports.weight, 0))
    };
    let mut p = Params::default();
    let map_a = || Params::map(bases.token, dtype, &[f.k, f.tokens], &[token_row * 2], &[TILE[2], TILE[0]], 128);
    p.push("map_a", if f.mode == MoeMode::Gather { Arg::NoMap } else { map_a() });
    let (dim, columns) = if n_major(f) { ([f.n, f.k, f.experts], TILE[2]) } else { ([f.k, f.n, f.experts], TILE[1]) };
    p.push("map_b", Params::map(bases.weight, dtype, &dim, &[weight_row * 2, expert * 2], &[TILE[2], columns, 1], 128));
    p.push("token", if f.mode == MoeMode::Gather { Arg::Ptr(bases.token) } else { Arg::Null });
    p.push("offsets", ptr(&ports.first_token_offset));
    p.push("index", ptr(&ports.token_index));
    p.push("ks", ptr(&ports.token_ks));
    p.push("output", ptr(&ports.output));
    p.i64("token_stride", token_row);
    p.i64("output_stride", ports.output.as_ref().map_or(0, |p| p.stride[1]));
    p.sizes(&[("tokens", f.tokens), ("routed", f.routed), ("n", f.n), ("k", f.k), ("groups", f.groups), ("experts", f.experts)]);
    // Of consequence when scattering only, where it is at least 1.
    p.sizes(&[("top_k", f.top_k.max(1))]);
    p
}

/// Of status.
pub(super) fn status(f: &MoeFacts) -> Params {
    let ports = &f.ports;
    let mut p = Params::default();
    for (name, port) in [
        ("offsets", &ports.first_token_offset),
        ("index", &ports.token_index),
        ("ks", &ports.token_ks),
        ("status", &ports.status),
    ] {
        p.push(name, ptr(port));
    }
    p.sizes(&[
        ("tokens", f.tokens),
        ("routed", f.routed),
        ("groups", f.groups),
        ("experts", f.experts),
        ("top_k", f.top_k.max(1)),
    ]);
    p
}
