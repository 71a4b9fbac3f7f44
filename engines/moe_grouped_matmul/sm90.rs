//! Lowers `moe_grouped_matmul_sm90`: one kernel, and one more where the status word is asked for.

use super::routing::MAX_GROUPS;
use super::{MoeFacts, MoeMode};
use crate::grouped_gemm::GemmPort;
use crate::sdpa::arith::{ceil_div, product};
use crate::sdpa::params::Params;
use crate::{
    Arg, Base, DType, Decline, DeclineCode as Code, Facts, Feature, KernelSpec, Knobs, Launch, LaunchPlan, Row, Step, Target,
};

const MAIN: [&str; 3] = ["main", "moe/sm90/main.cu", "fg_moe_main"];
const STATUS: [&str; 3] = ["status", "moe/sm90/status.cu", "fg_moe_status"];

/// Kernel sources of the row.
pub const SOURCES: &[&str] = &[MAIN[1], STATUS[1]];

/// Rows and columns of a tile of the output, and k of a pipeline stage.
const TILE: [i64; 3] = [128, 256, 64];
const THREADS: u32 = 384;
const STATUS_THREADS: u32 = 1024;
/// Shared memory of main, as `config.cuh` lays it out: four stages, staging of results, tile descriptions, barriers, alignment.
const SMEM: u32 = 4 * (128 + 256) * 128 + 8 * 2 * 2048 + 4 * 16 + 256 + 1024;
/// Elements of 16 bytes' worth of 16-bit values: what copies and stores move at once.
const UNIT: i64 = 8;

/// Refuses what the kernels cannot serve: layouts, extents and their limits.
fn rules(row: &Row, f: &MoeFacts, target: &Target) -> Result<u32, Decline> {
    let refuse = |code, fact: String, reason: String| Err(row.decline(code, fact, reason));
    let &Target::Cuda { sm_count, smem_optin, .. } = target else {
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
    let counts =
        [("tokens", f.tokens), ("routed rows", f.routed), ("N", f.n), ("K", f.k), ("experts", f.experts), ("tiles", tiles)];
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
    if let Some((name, why)) = layout(f) {
        return refuse(Code::Layout, format!("layout={name}"), format!("{name} {why}"));
    }
    if SMEM > smem_optin {
        let reason = format!("the kernel needs {SMEM} bytes of shared memory; the device grants {smem_optin}");
        return refuse(Code::Resources, format!("smem={SMEM}"), reason);
    }
    Ok(sm_count)
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
    let tiles = (ceil_div(f.routed, TILE[0]) + f.groups).saturating_mul(ceil_div(f.n, TILE[1]));
    let grid = i64::from(sm_count).min(tiles).max(1);
    out.steps.push(launch(MAIN, f, [grid as u32, THREADS], SMEM, main(f)));
    if f.ports.status.is_some() {
        out.steps.push(launch(STATUS, f, [1, STATUS_THREADS], 0, status(f)));
    }
    Ok(out)
}

fn launch([name, source, entry]: [&'static str; 3], f: &MoeFacts, [grid, block]: [u32; 2], smem: u32, p: Params) -> Step {
    let (args, names) = p.done();
    Step::Kernel(Launch {
        name,
        kernel: KernelSpec { source, entry, defines: defines(f) },
        grid: [grid, 1, 1],
        cluster: [1, 1, 1],
        block: [block, 1, 1],
        smem,
        pdl: true,
        args,
        names,
    })
}

/// Switches of both kernels, by name.
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
        ("FG_BF16", i64::from(f.input == DType::BF16)),
        ("FG_END", i64::from(f.explicit_end)),
        ("FG_MODE", mode),
        ("FG_NMAJOR", i64::from(n_major(f))),
        ("FG_OFFSET64", i64::from(wide)),
        ("FG_OUT", output),
    ]
}

fn main(f: &MoeFacts) -> Params {
    let ports = &f.ports;
    // The stride of an extent of 1 is never used to address, but has to be legal.
    let bytes = |port: &GemmPort, axis: usize| if port.dim[axis] == 1 { 16 } else { port.stride[axis] * 2 };
    let mut p = Params::default();
    let map_a = ports.token.as_ref().filter(|_| f.mode != MoeMode::Gather).map_or(Arg::NoMap, |t| {
        Params::map(Base::Tensor(t.uid), f.input, &[f.k, f.tokens], &[bytes(t, 1)], &[TILE[2], TILE[0]], 128)
    });
    p.push("map_a", map_a);
    let map_b = ports.weight.as_ref().map_or(Arg::NoMap, |w| {
        let (dim, axis, columns) = if n_major(f) { ([f.n, f.k, f.experts], 1, 64) } else { ([f.k, f.n, f.experts], 2, TILE[1]) };
        Params::map(Base::Tensor(w.uid), f.input, &dim, &[bytes(w, axis), bytes(w, 0)], &[TILE[2], columns, 1], 128)
    });
    p.push("map_b", map_b);
    p.push("token", if f.mode == MoeMode::Gather { ptr(&ports.token) } else { Arg::Null });
    p.push("offsets", ptr(&ports.first_token_offset));
    p.push("index", ptr(&ports.token_index));
    p.push("ks", ptr(&ports.token_ks));
    p.push("output", ptr(&ports.output));
    let row = |port: &Option<GemmPort>| port.as_ref().map_or(0, |p| p.stride[1]);
    p.i64("token_stride", row(&ports.token));
    p.i64("output_stride", row(&ports.output));
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
