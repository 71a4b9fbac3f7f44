//! What the kernels cannot serve: extents and their limits, layouts, operands that are not there.

use super::form::Form;
use super::{Plan, BLOCK, TILE};
use crate::grouped_gemm::{GroupedGemmFacts, Weights, MAX_EXPERTS};
use crate::sdpa::arith::ceil_div;
use crate::{DType, Decline, DeclineCode as Code, Knobs, LaunchPlan, Row, Target};

/// The plan, or the first reason against it.
pub(super) fn rules<'a>(row: &Row, f: &'a GroupedGemmFacts, knobs: &Knobs, target: &Target) -> Result<Plan<'a>, Decline> {
    let &Target::Cuda { sm_count, smem_optin, total_memory, .. } = target else {
        let reason = "the device is cpu; this row serves CUDA devices".to_string();
        return Err(row.decline(Code::Arch, "device=cpu".to_string(), reason));
    };
    extents(row, f)?;
    operands(row, f)?;
    let form = Form::chosen(f, knobs, target);
    if !form.serves(f) {
        let what = if f.ports.d_srelu.is_some() { ", D_srelu" } else { "" };
        let reason = format!(
            "a cluster of two is asked for with A of {}, C of {} and D of {}{what}; it takes FP4, D as wide as C, no D_srelu, and not both a clamp and dbias",
            f.ab, f.c, f.d
        );
        return Err(row.decline(Code::Knob, format!("TILE_CGA_M={}", form.cluster()), reason));
    }
    let smem = Plan::smem(f, form);
    if smem > smem_optin {
        let reason = format!("the kernel needs {smem} bytes of shared memory; the device grants {smem_optin}");
        return Err(row.decline(Code::Resources, format!("smem={smem}"), reason));
    }
    let tiles = ceil_div(f.n, TILE[1]);
    let plan = Plan { f, form, blocks: [ceil_div(f.m, 128), f.experts * tiles], tiles, sm_count, smem };
    let mut trial = LaunchPlan::default();
    match plan.regions(&mut trial) {
        Some(_) if trial.workspace_bytes <= total_memory => Ok(plan),
        _ => {
            let reason =
                format!("the workspace takes {} bytes or more; the device has {total_memory} in all", trial.workspace_bytes);
            Err(row.decline(Code::Resources, "workspace=beyond the device".to_string(), reason))
        }
    }
}

/// Rows that TMA strides over must be multiples of 16 bytes, counts must fit 32 bits.
pub(in crate::grouped_gemm_dsrelu) fn extents(row: &Row, f: &GroupedGemmFacts) -> Result<(), Decline> {
    let refuse = |fact: String, reason: String| Err(row.decline(Code::Geometry, fact, reason));
    for (what, dtype) in [("C", f.c), ("D", f.d)] {
        let step = 128 / i64::from(dtype.bits());
        if f.n % step != 0 {
            let reason = format!("{what} is {dtype} with {} columns; this row serves multiples of {step}, 16 bytes", f.n);
            return refuse(format!("N={}", f.n), reason);
        }
    }
    if f.b_n_major && (f.ab == DType::F4E2M1 || f.n % 16 != 0) {
        let reason = format!("B is n-major {} with {} columns; this row serves FP8 and multiples of 16", f.ab, f.n);
        return refuse(format!("N={}", f.n), reason);
    }
    let step = if f.ab == DType::F4E2M1 { 32 } else { 16 };
    if f.k % step != 0 {
        let reason = format!("K is {}; this row serves multiples of {step}, 16 bytes of {}", f.k, f.ab);
        return refuse(format!("K={}", f.k), reason);
    }
    let (tiles, limit) = (ceil_div(f.n, TILE[1]), i64::from(i32::MAX));
    let counts = [
        ("M", f.m),
        ("N", f.n),
        ("K", f.k),
        ("tiles", ceil_div(f.m, TILE[0]).saturating_mul(tiles)),
        ("column blocks", f.experts.saturating_mul(tiles)),
        ("row blocks", ceil_div(f.m, BLOCK)),
    ];
    if let Some((name, n)) = counts.into_iter().find(|c| c.1 >= limit / 2) {
        return refuse(format!("{name}={n}"), format!("{name} is {n}; this row serves up to {}", limit / 2 - 1));
    }
    if !(1..=MAX_EXPERTS).contains(&f.experts) {
        let reason = format!("there are {} experts; this row serves 1 to {MAX_EXPERTS}", f.experts);
        return refuse(format!("experts={}", f.experts), reason);
    }
    if f.n.saturating_mul(f.k) >= 1 << 40 {
        let reason = "one expert's weights take 2^40 bytes or more; a tensor map's strides end there".to_string();
        return refuse("expert=2^40".to_string(), reason);
    }
    Ok(())
}

/// Types that belong together, operands that must be there, alignment of those that are copied by 16 bytes.
pub(in crate::grouped_gemm_dsrelu) fn operands(row: &Row, f: &GroupedGemmFacts) -> Result<(), Decline> {
    let fp8 = f.d.is_fp8();
    if fp8 != f.quantised {
        let with = if f.quantised { "" } else { "out" };
        let reason = format!("D is {} with{with} scales; this row serves FP8 with them and wider types without", f.d);
        return Err(row.decline(Code::DType, format!("D={}", f.d), reason));
    }
    let (p, list, pool) = (&f.ports, f.weights != Weights::Dense, f.weights != Weights::Addresses);
    let needed = [
        ("A", &p.a, true),
        ("B", &p.b, pool),
        ("C", &p.c, true),
        ("SFA", &p.sfa, true),
        ("SFB", &p.sfb, pool),
        ("B_ptrs", &p.b_ptrs, list),
        ("SFB_ptrs", &p.sfb_ptrs, list),
        ("padded_offsets", &p.padded_offsets, true),
        ("alpha", &p.alpha, true),
        ("prob", &p.prob, true),
        ("D_row", &p.d_row, true),
        ("D_col", &p.d_col, true),
        ("dprob", &p.dprob, true),
    ];
    if let Some((name, ..)) = needed.iter().find(|n| n.2 && n.1.is_none()) {
        let reason = format!("{name} is not there; this row needs it");
        return Err(row.decline(Code::Feature, format!("{name}=absent"), reason));
    }
    if let Some((name, port, _)) = p.all().find(|(name, port, _)| by_16_bytes(name) && port.alignment % 16 != 0) {
        let reason = format!("{name} is aligned to {} bytes; this row serves 16", port.alignment);
        return Err(row.decline(Code::Layout, format!("{name}.alignment={}", port.alignment), reason));
    }
    Ok(())
}

/// Operands that bulk copies and 16-byte accesses touch.
fn by_16_bytes(name: &str) -> bool {
    matches!(name, "A" | "B" | "C" | "SFA" | "SFB" | "prob" | "D_row" | "D_col" | "D_srelu")
}
