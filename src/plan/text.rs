//! Plans and facts as text: deterministic, one fact a line, made for reading, goldens and bug reports.

use super::{Lowered, Plan};
use crate::exec::operand::label;
use crate::Result;
use frostgraph_engines::Facts;
use std::fmt::Write;

/// Geometry, element type and features on one line, for messages.
pub(super) fn summary(facts: &Facts) -> String {
    let mut s = match facts {
        Facts::Sdpa(f) => format!(
            "{} B={} H_q={} H_kv={} S_q={} S_kv={} d_qk={} d_v={}",
            f.dtype, f.b, f.h_q, f.h_kv, f.s_q, f.s_kv, f.d_qk, f.d_v
        ),
        Facts::Moe(f) => {
            let scales = f.scales.map_or(String::new(), |s| format!(" scales {}/{}", s.dtype, s.vec));
            let rows = format!("T={} R={} N={} K={} E={} G={}", f.tokens, f.routed, f.n, f.k, f.experts, f.groups);
            format!("{}{scales} output {} {rows}", f.input, f.output)
        }
        Facts::GroupedGemm(f) => {
            format!("{} scales {}/{} C {} D {} M={} N={} K={} L={}", f.ab, f.sf, f.sf_vec, f.c, f.d, f.m, f.n, f.k, f.experts)
        }
    };
    let features: Vec<&str> = facts.features().iter().map(|x| x.label()).collect();
    if !features.is_empty() {
        let _ = write!(s, "; {}", features.join(", "));
    }
    s
}

impl Plan {
    /// The plan as text: device, workspace, virtual tensors, and per node its engine with every launch and argument.
    pub fn launch_text(&self) -> Result<String> {
        let lowered = self.lower()?;
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = write_plan(&mut out, self, &lowered);
        Ok(out)
    }
}

fn write_plan(out: &mut String, plan: &Plan, l: &Lowered) -> std::fmt::Result {
    writeln!(out, "plan {plan}")?;
    writeln!(out, "device {}", plan.device().target.name())?;
    writeln!(out, "deterministic {}", if plan.is_deterministic() { "yes" } else { "no" })?;
    writeln!(out, "workspace in all {} bytes", l.workspace_bytes)?;
    for v in &l.virtuals {
        writeln!(out, "virtual {} {} bytes at {}", label(v.uid, &v.name), v.bytes, v.offset)?;
    }
    for n in &l.nodes {
        let node = &plan.built.frozen.nodes()[n.node];
        writeln!(out, "node {} '{}' {} by {}{}", n.node, node.name, node.op.tag(), n.row.name, n.knobs)?;
        for line in n.launches.to_string().lines() {
            writeln!(out, "  {line}")?;
        }
    }
    Ok(())
}
