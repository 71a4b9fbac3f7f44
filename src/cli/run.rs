//! `frostgraph run`.

use super::choose::ChoiceArgs;
use super::load::GraphArgs;
use super::report::{Exit, Report};
use super::runner::Buffers;
use super::{plans, progress, text, Style};
use frostgraph::graph::FrozenGraph;
use frostgraph::plan::Built;
use frostgraph::sample::{self, Comparison, HostTensors};
use frostgraph::tensor_file::{self, TensorFile};
use frostgraph::{Error, ErrorCode, Result};
use serde_json::{json, Value};
use std::fmt::Write;
use std::path::PathBuf;

/// Options of `run`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    graph: GraphArgs,
    #[command(flatten)]
    choice: ChoiceArgs,
    #[command(flatten)]
    data: DataArgs,
    /// Write the outputs to this safetensors file.
    #[arg(long)]
    outputs: Option<PathBuf>,
    /// Compare every output with the f64 oracle; the exit status is 1 when an error exceeds its tolerance.
    #[arg(long)]
    check: bool,
}

/// Where inputs come from.
#[derive(Debug, Clone, clap::Args)]
pub struct DataArgs {
    /// Safetensors file with the inputs; keys are tensor names, or uid:N where a name is missing or ambiguous.
    #[arg(long)]
    inputs: Option<PathBuf>,
    /// Fill inputs from this seed: all of them, or with --inputs those that the file lacks. 0 without --inputs.
    #[arg(long, allow_negative_numbers = true)]
    seed: Option<u64>,
}

impl DataArgs {
    /// All inputs of the graph; further lines say what of the file is not used.
    pub fn load(&self, graph: &FrozenGraph, strict: bool, notes: &mut Vec<String>) -> Result<HostTensors> {
        let mut given = HostTensors::default();
        let Some(path) = &self.inputs else {
            return progress::spin("filling inputs", || sample::inputs(graph, self.seed.unwrap_or(0), given));
        };
        let file = TensorFile::open(path)?;
        if self.seed.is_none() {
            file.require_all(graph).map_err(|e| e.help("Pass --seed to fill the missing ones"))?;
        }
        for name in file.foreign(graph)? {
            if strict {
                return Err(Error::new(ErrorCode::TensorFile, format!("tensor \"{name}\""), "inputs of the graph only")
                    .at(path.display().to_string()));
            }
            notes.push(format!("warning: {}: tensor \"{name}\" is no input of the graph and is ignored", path.display()));
        }
        let seed = self.seed.unwrap_or(0);
        file.read_dense(graph, &mut given)?;
        let mut given = sample::indices(graph, seed, given)?;
        file.read_packed(graph, &mut given)?;
        progress::spin("filling inputs", || sample::inputs(graph, seed, given))
    }
}

pub fn run(args: &Args, style: Style) -> Result<Report> {
    let source = args.graph.read()?;
    let built = args.graph.build(&source)?;
    let plan = args.choice.choose(&built)?;
    if let Some(path) = &args.outputs {
        tensor_file::check_writable(path)?;
    }
    if args.check && sample::output_ids(built.graph()).is_empty() {
        let given = "--check of a graph whose outputs are all virtual";
        return Err(Error::new(ErrorCode::CheckFailed, given, "an output that is not virtual, to compare").at(&source.label));
    }
    let mut notes = plans::notes(&source);
    let executable = plan.compile()?;
    let inputs = args.data.load(built.graph(), args.graph.strict, &mut notes)?;
    if args.check {
        // Before anything runs: gradients from another recipe's auxiliaries would agree with an oracle that is given the same ones.
        sample::check_auxiliaries(built.graph(), &inputs)?;
    }
    let results = sample::outputs(built.graph(), &inputs)?;
    let mut buffers = Buffers::new(&built, &inputs, results, executable.workspace_bytes())?;
    let time = progress::spin("running", || buffers.with(|s, b, w| executable.execute_timed(s, b, w)))?;
    let results = buffers.finish()?;
    if let Some(path) = &args.outputs {
        tensor_file::write_file(path, built.graph(), &sample::output_ids(built.graph()), &results, &inputs)?;
    }
    let comparisons = if args.check {
        let expected = progress::spin("evaluating the f64 oracle", || sample::expected(built.graph(), &inputs))?;
        Some(sample::check(&expected, &inputs, &results)?)
    } else {
        None
    };

    let mut human = plans::heading(&source, &built);
    plans::list(&mut human, &built, 8, style);
    plans::declines(&mut human, &built, style);
    let _ = writeln!(human, "chosen {plan}");
    let _ = writeln!(human, "time {}, workspace {} bytes", text::seconds(time.as_secs_f64()), executable.workspace_bytes());
    let passed = outputs_text(&mut human, &built, comparisons.as_deref());
    if let Some(path) = &args.outputs {
        let _ = writeln!(human, "wrote {}", path.display());
    }
    let json = json!({
        "device": built.device().target.name(),
        "plans": built.plans().take(8).enumerate().map(|(i, p)| plans::plan_json(i, &p)).collect::<Vec<_>>(),
        "nodes": built.nodes().iter().map(|n| plans::node_json(&built, n)).collect::<Vec<_>>(),
        "chosen": { "name": plan.to_string(), "records": plan.records() },
        "seconds": time.as_secs_f64(),
        "workspace_bytes": executable.workspace_bytes(),
        "outputs": outputs_json(&built, comparisons.as_deref()),
        "passed": args.check.then_some(passed),
        "outputs_file": args.outputs.as_ref().map(|p| p.display().to_string()),
        "warnings": plans::warnings_json(&source),
    });
    Ok(Report { human, json, notes, exit: if passed { Exit::Success } else { Exit::CheckFailed } })
}

fn outputs_text(out: &mut String, built: &Built, checked: Option<&[Comparison]>) -> bool {
    let Some(list) = checked else {
        out.push_str("outputs\n");
        let keys = tensor_file::keys(built.graph());
        let rows: Vec<Vec<String>> = sample::output_ids(built.graph())
            .into_iter()
            .map(|id| {
                let t = built.graph().tensor(id);
                let dtype = t.dtype.map_or("", |d| d.short());
                vec![keys[&id].clone(), dtype.into(), format!("{:?}", t.dim)]
            })
            .collect();
        text::table(out, "  ", &["tensor", "type", "extents"], &rows);
        return true;
    };
    let rows: Vec<Vec<String>> = list
        .iter()
        .map(|c| {
            let verdict = match (c.passed(), c.error.is_finite()) {
                (true, _) => "ok",
                (false, true) => "FAILED",
                (false, false) => "FAILED: not finite",
            };
            let name = if c.name.is_empty() { format!("uid:{}", c.uid) } else { c.name.clone() };
            vec![name, c.dtype.short().into(), format!("{:.3e}", c.error), format!("{:.0e}", c.tolerance), verdict.into()]
        })
        .collect();
    out.push_str("relative Frobenius error against the f64 oracle on the rounded inputs\n");
    text::table(out, "  ", &["tensor", "type", "error", "tolerance", "verdict"], &rows);
    let unknown = sample::output_ids(built.graph()).len() - list.len();
    if unknown > 0 {
        let _ = writeln!(
            out,
            "  {} that the oracle does not compute: not checked, so the check fails",
            text::count(unknown, "output")
        );
    }
    unknown == 0 && list.iter().all(Comparison::passed)
}

fn outputs_json(built: &Built, checked: Option<&[Comparison]>) -> Value {
    let keys = tensor_file::keys(built.graph());
    let of = |uid: i64| checked.and_then(|list| list.iter().find(|c| c.uid == uid));
    sample::output_ids(built.graph())
        .into_iter()
        .map(|id| {
            let t = built.graph().tensor(id);
            let c = of(t.uid.unwrap_or_default());
            json!({
                "key": keys[&id],
                "uid": t.uid,
                "type": t.dtype.map(|d| d.short()),
                "extents": t.dim,
                // JSON has no infinity: an error that no tolerance covers is null.
                "error": c.map(|c| c.error).filter(|e| e.is_finite()),
                "tolerance": c.map(|c| c.tolerance),
                "passed": c.map(Comparison::passed),
            })
        })
        .collect()
}
