//! `frostgraph plans`: the ranked list and every decline.

use super::load::{GraphArgs, Source};
use super::report::{Exit, Report};
use super::{text, Style};
use frostgraph::error::one_line;
use frostgraph::plan::{Built, NodePlans, Plan};
use frostgraph::Result;
use serde_json::{json, Value};
use std::fmt::Write;

/// Options of `plans`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    graph: GraphArgs,
    /// Most plans to list; a graph of n nodes has about n times as many as one node has.
    #[arg(long, allow_negative_numbers = true, default_value_t = 32)]
    limit: usize,
}

pub fn run(args: &Args, style: Style) -> Result<Report> {
    let source = args.graph.read()?;
    let built = args.graph.build(&source)?;
    let mut human = heading(&source, &built);
    list(&mut human, &built, args.limit, style);
    declines(&mut human, &built, style);
    let json = json!({
        "device": built.device().target.name(),
        "plan_count": built.plan_count(),
        "plans": built.plans().take(args.limit).enumerate().map(|(i, p)| plan_json(i, &p)).collect::<Vec<_>>(),
        "nodes": built.nodes().iter().map(|n| node_json(&built, n)).collect::<Vec<_>>(),
        "warnings": warnings_json(&source),
    });
    let exit = if built.plan_count() == 0 { Exit::NoPlan } else { Exit::Success };
    Ok(Report { human, json, notes: notes(&source), exit })
}

/// One line about the graph.
pub fn heading(source: &Source, built: &Built) -> String {
    let g = built.graph();
    format!(
        "{}: {}, {}, device {}\n",
        source.label,
        text::count(g.nodes().len(), "node"),
        text::count(g.tensors().count(), "tensor"),
        built.device().target.name()
    )
}

/// Numbered plans.
pub fn list(out: &mut String, built: &Built, limit: usize, style: Style) {
    let count = built.plan_count();
    if count == 0 {
        out.push_str("no plan serves the graph\n");
        return;
    }
    out.push_str("plans\n");
    for (i, plan) in built.plans().take(limit).enumerate() {
        text::wrap(out, &plan.to_string(), &format!("  {i:>3}  "), "       ", style.width);
    }
    if count > limit {
        let _ = writeln!(out, "       and {} more (--limit)", count - limit);
    }
}

/// Every decline of every node, in execution order.
pub fn declines(out: &mut String, built: &Built, style: Style) {
    for n in built.nodes().iter().filter(|n| !n.declined().is_empty()) {
        let _ = writeln!(out, "declined for {}", place(built, n));
        for d in n.declined() {
            text::wrap(out, &d.to_string(), "  ", "    ", style.width);
        }
    }
}

/// `node 0 'attn' SDPA`.
pub fn place(built: &Built, n: &NodePlans) -> String {
    let node = &built.graph().nodes()[n.node()];
    format!("node {} '{}' {}", n.node(), one_line(&node.name), node.op.tag())
}

/// Warnings of the reader, for standard error.
pub fn notes(source: &Source) -> Vec<String> {
    source.warnings.iter().map(|w| format!("warning: {}: {w}", source.label)).collect()
}

/// Warnings of the reader, for programs.
pub fn warnings_json(source: &Source) -> Value {
    source.warnings.iter().map(|w| json!({ "pointer": w.pointer, "message": w.message })).collect()
}

/// A plan for programs.
pub fn plan_json(index: usize, plan: &Plan) -> Value {
    json!({
        "index": index,
        "name": plan.to_string(),
        "deterministic": plan.is_deterministic(),
        "records": plan.records(),
    })
}

/// A node's ranked list and declines for programs.
pub fn node_json(built: &Built, n: &NodePlans) -> Value {
    let node = &built.graph().nodes()[n.node()];
    json!({
        "node": n.node(),
        "name": node.name,
        "tag": node.op.tag(),
        "family": n.family(),
        "ranked": n.ranked().iter().map(|r| json!({ "engine": r.row.name, "engine_id": r.row.id, "plan": r.to_string() })).collect::<Vec<_>>(),
        "declined": n
            .declined()
            .iter()
            .map(|d| json!({ "engine": d.engine, "code": d.code.code(), "reason": d.reason, "fact": d.fact }))
            .collect::<Vec<_>>(),
    })
}
