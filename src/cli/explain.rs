//! `frostgraph explain`: everything that decides about a graph, on one page.

use super::choose::ChoiceArgs;
use super::load::GraphArgs;
use super::report::{Exit, Report};
use super::{grouped, moe, plans, sdpa, text, Style};
use frostgraph::engines::grouped_gemm::GemmPort;
use frostgraph::engines::{DType, Facts, Maturity, Ragged, Step, Uid, MANIFEST};
use frostgraph::plan::{Built, NodePlans, Plan};
use frostgraph::Result;
use serde_json::{json, Value};
use std::fmt::Write;

/// Options of `explain`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    graph: GraphArgs,
    #[command(flatten)]
    choice: ChoiceArgs,
}

pub fn run(args: &Args, style: Style) -> Result<Report> {
    let source = args.graph.read()?;
    let built = args.graph.build(&source)?;
    let asked = args.choice.plan.is_some() || args.choice.engine.is_some() || args.choice.record.is_some();
    // Without a plan there is still everything else to show.
    let plan = if built.plan_count() == 0 && !asked { None } else { Some(args.choice.choose(&built)?) };
    let mut human = plans::heading(&source, &built);
    for n in built.nodes() {
        let _ = writeln!(human, "\n{}", plans::place(&built, n));
        facts_text(&mut human, n.facts(), style);
        rows_text(&mut human, n, style);
    }
    human.push('\n');
    plans::list(&mut human, &built, 32, style);
    if let Some(plan) = &plan {
        human.push('\n');
        launch_text(&mut human, plan, style)?;
    }
    let json = json!({
        "device": built.device().target.name(),
        "nodes": built.nodes().iter().map(|n| node_json(&built, n)).collect::<Vec<_>>(),
        "plans": built.plans().take(32).enumerate().map(|(i, p)| plans::plan_json(i, &p)).collect::<Vec<_>>(),
        "plan": plan.as_ref().map(launch_json).transpose()?,
        "warnings": plans::warnings_json(&source),
    });
    let exit = if plan.is_some() { Exit::Success } else { Exit::NoPlan };
    Ok(Report { human, json, notes: plans::notes(&source), exit })
}

/// One operand of any operation, for the table and the JSON.
struct OperandLine<'a> {
    port: &'static str,
    uid: Uid,
    name: &'a str,
    dtype: DType,
    dim: &'a [i64],
    stride: &'a [i64],
    ragged: Option<Ragged>,
    is_virtual: bool,
}

fn gemm_line<'a>(port: &'static str, p: &'a GemmPort) -> OperandLine<'a> {
    OperandLine {
        port,
        uid: p.uid,
        name: &p.name,
        dtype: p.dtype,
        dim: &p.dim,
        stride: &p.stride,
        ragged: None,
        is_virtual: p.is_virtual,
    }
}

fn facts_of(facts: &Facts) -> Vec<(&'static str, String)> {
    match facts {
        Facts::Sdpa(f) => sdpa::facts_list(f),
        Facts::GroupedGemm(f) => grouped::facts_list(f),
        Facts::Moe(f) => moe::facts_list(f),
    }
}

fn operands_of(facts: &Facts) -> Vec<OperandLine<'_>> {
    match facts {
        Facts::Sdpa(f) => sdpa::operands(f)
            .into_iter()
            .map(|(port, p)| OperandLine {
                port,
                uid: p.uid,
                name: &p.name,
                dtype: p.dtype,
                dim: &p.dim,
                stride: &p.stride,
                ragged: p.ragged,
                is_virtual: p.is_virtual,
            })
            .collect(),
        Facts::GroupedGemm(f) => f.ports.all().map(|(port, p, _)| gemm_line(port, p)).collect(),
        Facts::Moe(f) => f.ports.all().map(|(port, p, _)| gemm_line(port, p)).collect(),
    }
}

fn facts_text(out: &mut String, facts: &Facts, style: Style) {
    out.push_str("  facts\n");
    for (name, value) in facts_of(facts) {
        text::wrap(out, &value, &format!("    {name:<9} "), "              ", style.width);
    }
    out.push_str("  operands\n");
    let list = |v: &[i64]| v.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
    let rows: Vec<Vec<String>> = operands_of(facts)
        .into_iter()
        .map(|p| {
            let ragged = p.ragged.map_or(String::new(), |r| format!("ragged by {} x{}", r.uid, r.multiplier));
            let place = if p.is_virtual { "virtual" } else { "" };
            let note = [ragged.as_str(), place].into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>().join(", ");
            vec![p.port.into(), p.uid.to_string(), p.dtype.short().into(), list(p.dim), list(p.stride), note]
        })
        .collect();
    text::table(out, "    ", &["port", "uid", "type", "extents", "strides", ""], &rows);
}

/// Every row of the family with its verdict, in rank order, then the declining ones in table order.
fn rows_text(out: &mut String, n: &NodePlans, style: Style) {
    let Some(name) = n.family() else {
        out.push_str("  no family of engines serves this operation\n");
        return;
    };
    let _ = writeln!(out, "  engines of family {name}");
    for (i, r) in n.ranked().iter().enumerate() {
        let maturity = maturity(r.row.maturity);
        text::wrap(out, &format!("{r} (id {}, {maturity})", r.row.id), &format!("    {i:>3}  "), "         ", style.width);
    }
    for d in n.declined() {
        text::wrap(out, &d.to_string(), "    no   ", "         ", style.width);
    }
}

fn maturity(m: Maturity) -> &'static str {
    match m {
        Maturity::Default => "default",
        Maturity::OptIn => "opt-in",
    }
}

fn launch_text(out: &mut String, plan: &Plan, style: Style) -> Result<()> {
    for line in plan.launch_text()?.lines() {
        let indent: String = line.chars().take_while(|c| *c == ' ').collect();
        // Words are re-joined by one space, so only lines that do not fit are touched.
        if line.chars().count() <= style.width {
            out.push_str(line);
            out.push('\n');
        } else {
            text::wrap(out, line, &indent, &format!("{indent}    "), style.width);
        }
    }
    let kernels = plan.kernels()?;
    if kernels.is_empty() {
        out.push_str("kernels none\n");
        return Ok(());
    }
    out.push_str("kernels\n");
    for k in kernels {
        let defines: Vec<String> = k.defines.iter().map(|(name, v)| format!("{name}={v}")).collect();
        text::wrap(out, &format!("{} {} {}", k.source, k.entry, defines.join(" ")), "  ", "      ", style.width);
    }
    Ok(())
}

fn node_json(built: &Built, n: &NodePlans) -> Value {
    let mut v = plans::node_json(built, n);
    let facts: serde_json::Map<String, Value> = facts_of(n.facts()).into_iter().map(|(k, v)| (k.to_string(), v.into())).collect();
    v["facts"] = facts.into();
    v["operands"] = operands_of(n.facts())
        .into_iter()
        .map(|p| {
            json!({
                "port": p.port, "uid": p.uid, "name": p.name, "type": p.dtype.short(), "extents": p.dim, "strides": p.stride,
                "ragged_offset": p.ragged.map(|r| r.uid), "virtual": p.is_virtual,
            })
        })
        .collect();
    let family = MANIFEST.iter().find(|x| Some(x.name) == n.family());
    v["rows"] = family
        .iter()
        .flat_map(|f| f.rows)
        .map(|r| json!({ "engine": r.name, "engine_id": r.id, "maturity": maturity(r.maturity), "note": r.note }))
        .collect();
    v
}

fn launch_json(plan: &Plan) -> Result<Value> {
    let lowered = plan.lower()?;
    let nodes: Vec<Value> = lowered
        .nodes
        .iter()
        .map(|n| {
            let steps: Vec<Value> = n
                .launches
                .steps
                .iter()
                .map(|s| match s {
                    Step::Host(call) => json!({ "host": call.name }),
                    Step::Kernel(l) => json!({
                        "kernel": l.name, "source": l.kernel.source, "entry": l.kernel.entry,
                        "defines": l.kernel.defines.iter().map(|(k, v)| json!({ "name": k, "value": v })).collect::<Vec<_>>(),
                        "grid": l.grid, "cluster": l.cluster, "block": l.block, "shared_bytes": l.smem, "pdl": l.pdl,
                    }),
                })
                .collect();
            let regions: Vec<Value> =
                n.launches.regions.iter().map(|r| json!({ "name": r.name, "offset": r.offset, "bytes": r.bytes })).collect();
            json!({ "node": n.node, "engine": n.row.name, "engine_id": n.row.id, "steps": steps, "regions": regions })
        })
        .collect();
    Ok(json!({
        "name": plan.to_string(),
        "records": plan.records(),
        "deterministic": plan.is_deterministic(),
        "workspace_bytes": lowered.workspace_bytes,
        "nodes": nodes,
    }))
}
