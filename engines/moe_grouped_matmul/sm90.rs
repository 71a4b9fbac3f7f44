//! Lowers `moe_grouped_matmul_sm90`: one kernel, behind two that turn narrow operands into bf16, before one where the status word is asked for.

use super::routing::MAX_GROUPS;
use super::{MoeFacts, MoeMode, ScalePlace};
use crate::grouped_gemm::GemmPort;
use crate::sdpa::arith::{ceil_div, product};
use crate::sdpa::params::Params;
use crate::{
    Arg, Base, DType, Decline, DeclineCode as Code, Facts, Feature, KernelSpec, Knobs, Launch, LaunchPlan, Row, Step, Target,
};

const MAIN: [&str; 3] = ["main", "moe/sm90/main.cu", "fg_moe_main"];
const EXPAND: [&str; 3] = ["expand", "moe/sm90/expand.cu", "fg_moe_expand"];
const STATUS: [&str; 3] = ["status", "moe/sm90/status.cu", "fg_moe_status"];

/// Kernel sources of the row.
pub const SOURCES: &[&str] = &[EXPAND[1], MAIN[1], STATUS[1]];

/// Rows and columns of a tile of the output, and k of a pipeline stage.
const TILE: [i64; 3] = [128, 256, 64];
const THREADS: u32 = 384;
const STATUS_THREADS: u32 = 1024;
/// Threads of expand, and rows that a block of it takes.
const EXPAND_THREADS: u32 = 256;
const EXPAND_ROWS: i64 = 8;
/// Shared memory of main, as `config.cuh` lays it out: four stages, staging of results, tile descriptions, barriers, alignment.
const SMEM: u32 = 4 * (128 + 256) * 128 + 8 * 2 * 2048 + 4 * 16 + 256 + 1024;
/// Elements of 16 bytes' worth of 16-bit values: what copies and stores move at once.
const UNIT: i64 = 8;

/// Whether operands have to be turned into 16-bit values first.
fn narrow(f: &MoeFacts) -> bool {
    !f.input.is_half()
}

/// Where main finds its operands.
#[derive(Clone, Copy)]
struct Operands {
    token: Base,
    weight: Base,
}

/// Regions of the 16-bit operands in `plan`, or the tensors themselves; `None` when sizes leave 64 bits.
fn operands(f: &MoeFacts, plan: &mut LaunchPlan) -> Option<Operands> {
    let uid = |port: &Option<GemmPort>| port.as_ref().map(|p| Base::Tensor(p.uid));
    if !narrow(f) {
        return Some(Operands { token: uid(&f.ports.token)?, weight: uid(&f.ports.weight)? });
    }
    let mut region = |name, extents: &[i64]| {
        let bytes = u64::try_from(product(extents)?.checked_mul(2)?).ok()?;
        plan.region(name, bytes).map(Base::Region)
    };
    Some(Operands { token: region("token16", &[f.tokens, f.k])?, weight: region("weight16", &[f.experts, f.n, f.k])? })
}

/// Refuses what the kernels cannot serve: layouts, extents and their limits, workspace.
fn rules(row: &Row, f: &MoeFacts, target: &Target) -> Result<u32, Decline> {
    let refuse = |code, fact: String, reason: String| Err(row.decline(code, fact, reason));
    let &Target::Cuda { sm_count, smem_optin, total_memory, .. } = target else {
        return refuse(Code::Arch, "device=cpu".into(), "the device is cpu; this row serves CUDA devices".into());
    };
    for (name, value) in [("K", f.k), ("N", f.n)] {
        if value % UNIT != 0 {
            return refuse(
                Code::Geometry,
                format!("{name}={value}"),
                format!("{name} is {value}; this row serves multiples of {UNIT}"),
            );
        }
    }
    let limit = i64::from(i32::MAX) / 2;
    let tiles = (ceil_div(f.routed, TILE[0]).saturating_add(f.groups)).saturating_mul(ceil_div(f.n, TILE[1]));
    let counts = [
        ("tokens", f.tokens),
        ("routed rows", f.routed),
        ("N", f.n),
        ("K", f.k),
        ("columns of all experts", f.experts.saturating_mul(f.n)),
        ("tiles", tiles),
    ];
    if let Some((name, n)) = counts.into_iter().find(|c| c.1 >= limit) {
        return refuse(Code::Geometry, format!("{name}={n}"), format!("{name} is {n}; this row serves up to {}", limit - 1));
    }
    if !(1..=MAX_GROUPS).contains(&f.groups) {
        return refuse(
            Code::Geometry,
            format!("groups={}", f.groups),
            format!("there are {} groups; this row serves 1 to {MAX_GROUPS}", f.groups),
        );
    }
    if narrow(f) && n_major(f) {
        let reason = format!("the weights are {} with n contiguous; this row serves k contiguous of such types", f.input);
        return refuse(Code::Layout, "layout=weight".into(), reason);
    }
    if let Some((name, why)) = layout(f) {
        return refuse(Code::Layout, format!("layout={name}"), format!("{name} {why}"));
    }
    if SMEM > smem_optin {
        let reason = format!("the kernel needs {SMEM} bytes of shared memory; the device grants {smem_optin}");
        return refuse(Code::Resources, format!("smem={SMEM}"), reason);
    }
    let mut trial = LaunchPlan::default();
    match operands(f, &mut trial) {
        Some(_) if trial.workspace_bytes <= total_memory => Ok(sm_count),
        Some(_) | None => {
            let reason =
                format!("the 16-bit operands take {} bytes or more; the device has {total_memory} in all", trial.workspace_bytes);
            refuse(Code::Resources, "workspace=beyond the device".into(), reason)
        }
    }
}

/// Whether the weights lie with n contiguous.
fn n_major(f: &MoeFacts) -> bool {
    f.features.has(Feature::NMajorB)
}

/// The first operand whose base or strides 16-byte accesses and tensor maps cannot take, and why.
fn layout(f: &MoeFacts) -> Option<(&'static str, String)> {
    let p = &f.ports;
    let stride = |port: &GemmPort, axis: usize| if port.dim[axis] == 1 { 0 } else { port.stride[axis] };
    // Operand, contiguous axis, axes whose strides are whole units.
    let (inner, outer): (usize, &[usize]) = if n_major(f) { (2, &[0, 1]) } else { (1, &[0, 2]) };
    let wide: [(&'static str, &Option<GemmPort>, usize, &[usize]); 3] =
        [("token", &p.token, 2, &[1]), ("weight", &p.weight, inner, outer), ("output", &p.output, 2, &[1])];
    for (name, port, inner, outer) in wide {
        let Some(port) = port else { return Some((name, "is not there; this row needs it".into())) };
        if port.dim[inner] > 1 && port.stride[inner] != 1 {
            return Some((name, format!("has a stride of {} along axis {inner}; this row serves 1", port.stride[inner])));
        }
        if port.alignment % 16 != 0 {
            return Some((name, format!("is aligned to {} bytes; this row serves 16", port.alignment)));
        }
        for &axis in outer {
            // 16 bytes where copies and stores are as wide; narrow rows are read eight values at a time.
            let (s, unit) = (stride(port, axis), if port.dtype == DType::F32 { UNIT / 2 } else { UNIT });
            if s % unit != 0 || product(&[s, 4]).is_none_or(|b| b >= 1 << 40) {
                return Some((
                    name,
                    format!("has a stride of {s} along axis {axis}; this row serves multiples of {unit} below 2^38"),
                ));
            }
        }
    }
    let lists = [("first_token_offset", &p.first_token_offset), ("token_index", &p.token_index), ("token_ks", &p.token_ks)];
    for (name, port) in lists {
        let Some(port) = port else { continue };
        let gap = (0..port.dim.len()).find(|&a| port.dim[a] > 1 && port.stride[a] != 1);
        if let Some(axis) = gap {
            return Some((name, format!("has a stride of {} along axis {axis}; this row serves 1", port.stride[axis])));
        }
        let width = port.dtype.bytes().unwrap_or(4) as i64;
        if port.alignment % width != 0 {
            return Some((name, format!("is aligned to {} bytes; this row serves {width}", port.alignment)));
        }
    }
    None
}

/// The row's `extra` hook.
pub fn extra(row: &Row, facts: &Facts, _knobs: &Knobs, target: &Target) -> Option<Decline> {
    rules(row, facts.expect_moe(), target).err()
}

fn ptr(port: &Option<GemmPort>) -> Arg {
    port.as_ref().map_or(Arg::Null, |p| Arg::Ptr(Base::Tensor(p.uid)))
}

/// The launches for these facts.
///
/// # Errors
/// [`Decline`] where [`extra`] refuses.
pub fn lower(row: &Row, facts: &Facts, _knobs: &Knobs, target: &Target) -> Result<LaunchPlan, Decline> {
    let f = facts.expect_moe();
    let sm_count = rules(row, f, target)?;
    let mut out = LaunchPlan::default();
    let Some(bases) = operands(f, &mut out) else {
        return Err(row.decline(
            Code::Resources,
            "workspace=overflow",
            "the workspace size leaves 64 bits; this row serves sizes that fit",
        ));
    };
    if narrow(f) {
        for token in [true, false] {
            out.steps.push(expand(f, bases, token));
        }
    }
    let tiles = (ceil_div(f.routed, TILE[0]) + f.groups).saturating_mul(ceil_div(f.n, TILE[1]));
    let grid = i64::from(sm_count).min(tiles).max(1);
    out.steps.push(launch(MAIN, defines(f), [grid as u32, THREADS], SMEM, main(f, bases)));
    if f.ports.status.is_some() {
        out.steps.push(launch(STATUS, defines(f), [1, STATUS_THREADS], 0, status(f)));
    }
    Ok(out)
}

fn launch(
    [name, source, entry]: [&'static str; 3],
    defines: Vec<(&'static str, i64)>,
    [grid, block]: [u32; 2],
    smem: u32,
    p: Params,
) -> Step {
    let (args, names) = p.done();
    Step::Kernel(Launch {
        name,
        kernel: KernelSpec { source, entry, defines },
        grid: [grid, 1, 1],
        cluster: [1, 1, 1],
        block: [block, 1, 1],
        smem,
        pdl: true,
        args,
        names,
    })
}

/// One operand into bf16, row by row: the token's rows, or the columns of all experts.
fn expand(f: &MoeFacts, bases: Operands, token: bool) -> Step {
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
fn defines(f: &MoeFacts) -> Vec<(&'static str, i64)> {
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

fn main(f: &MoeFacts, bases: Operands) -> Params {
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

fn status(f: &MoeFacts) -> Params {
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
