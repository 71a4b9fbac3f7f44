//! What the kernels cannot serve: layouts, extents and their limits, workspace.

use super::{n_major, narrow, operands, SMEM, TILE, UNIT};
use crate::grouped_gemm::GemmPort;
use crate::moe_grouped_matmul::routing::MAX_GROUPS;
use crate::moe_grouped_matmul::MoeFacts;
use crate::sdpa::arith::{ceil_div, product};
use crate::{DType, Decline, DeclineCode as Code, LaunchPlan, Row, Target};

/// The number of multiprocessors, or the first rule that refuses.
pub(super) fn rules(row: &Row, f: &MoeFacts, target: &Target) -> Result<u32, Decline> {
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
