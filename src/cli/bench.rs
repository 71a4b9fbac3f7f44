//! `frostgraph bench`.

use super::choose::{ChoiceArgs, PlanArg};
use super::load::GraphArgs;
use super::report::Report;
use super::run::DataArgs;
use super::runner::Runner;
use super::{flops, plans, progress, text};
use frostgraph::graph::FrozenGraph;
use frostgraph::plan::Plan;
use frostgraph::sample::{self, HostTensors};
use frostgraph::{Error, ErrorCode, Result};
use serde_json::{json, Value};
use std::time::{Duration, Instant};

/// Options of `bench`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    graph: GraphArgs,
    #[command(flatten)]
    choice: ChoiceArgs,
    #[command(flatten)]
    data: DataArgs,
    /// Seconds to spend on each plan, after one execution that is not counted.
    #[arg(long, default_value_t = 1.0, value_parser = positive)]
    seconds: f64,
}

/// A positive, finite number of seconds.
pub fn positive(s: &str) -> Result<f64, String> {
    match s.parse::<f64>() {
        Ok(x) if x > 0.0 && x.is_finite() => Ok(x),
        Ok(_) | Err(_) => Err("a positive number of seconds is expected".into()),
    }
}

/// Times of one plan.
#[derive(Debug)]
pub struct Timing {
    pub plan: Plan,
    pub workspace_bytes: u64,
    /// Seconds of each execution, ascending.
    pub seconds: Vec<f64>,
}

impl Timing {
    pub fn median(&self) -> f64 {
        self.seconds.get(self.seconds.len() / 2).copied().unwrap_or(f64::INFINITY)
    }

    fn fastest(&self) -> f64 {
        self.seconds.first().copied().unwrap_or(f64::INFINITY)
    }
}

pub fn run(args: &Args) -> Result<Report> {
    let source = args.graph.read()?;
    let built = args.graph.build(&source)?;
    let list: Vec<Plan> = if args.choice.plan == Some(PlanArg::All) {
        if built.plan_count() == 0 {
            // Selecting gives the error with every decline.
            built.best()?;
        }
        built.plans().collect()
    } else {
        vec![args.choice.choose(&built)?]
    };
    let mut notes = plans::notes(&source);
    let inputs = args.data.load(built.graph(), args.graph.strict, &mut notes)?;
    let (timings, mut failures) = time_all(list, &inputs, args.seconds, built.graph())?;
    notes.append(&mut failures);
    let work = flops::of_graph(built.graph(), &inputs);
    let mut human = plans::heading(&source, &built);
    human.push_str(&table(&timings, work));
    let json = json!({
        "device": built.device().target.name(),
        "flop": work,
        "plans": timings.iter().map(|t| timing_json(t, work)).collect::<Vec<_>>(),
        "warnings": plans::warnings_json(&source),
    });
    Ok(Report { notes, ..Report::success(human, json) })
}

/// Times plans in turn. A plan that fails is left out and said so, unless none is left.
pub fn time_all(list: Vec<Plan>, inputs: &HostTensors, seconds: f64, graph: &FrozenGraph) -> Result<(Vec<Timing>, Vec<String>)> {
    let bar = progress::bar(list.len() as u64, "plans");
    let (mut timings, mut failures, mut last) = (Vec::new(), Vec::new(), None);
    for plan in list {
        match time_one(&plan, graph, inputs, seconds) {
            Ok(t) => timings.push(t),
            Err(e) => {
                failures.push(format!("warning: {plan}: {e}"));
                last = Some(e);
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    match (timings.is_empty(), last) {
        (true, Some(e)) => Err(e),
        (true, None) => Err(Error::new(ErrorCode::NoPlan, "no plan to time", "a graph that some engine serves")),
        (false, _) => Ok((timings, failures)),
    }
}

fn time_one(plan: &Plan, graph: &FrozenGraph, inputs: &HostTensors, seconds: f64) -> Result<Timing> {
    let executable = plan.compile()?;
    let mut runner = Runner::new(&executable, graph, inputs, sample::outputs(graph, inputs)?)?;
    runner.run()?;
    let started = Instant::now();
    let mut times: Vec<f64> = Vec::new();
    // At least three, so that a median means something; at most enough for it to be stable.
    while times.len() < 3 || (started.elapsed() < Duration::from_secs_f64(seconds) && times.len() < 10_000) {
        times.push(runner.run()?.as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(Timing { plan: plan.clone(), workspace_bytes: executable.workspace_bytes(), seconds: times })
}

/// The table for people.
pub fn table(timings: &[Timing], work: f64) -> String {
    let mut out = String::new();
    let rows: Vec<Vec<String>> = timings
        .iter()
        .map(|t| {
            vec![
                t.plan.to_string(),
                format!("{:.3}", t.median() * 1e3),
                format!("{:.3}", t.fastest() * 1e3),
                format!("{:.4}", work / t.median() / 1e12),
                t.seconds.len().to_string(),
                t.workspace_bytes.to_string(),
            ]
        })
        .collect();
    text::table(&mut out, "", &["plan", "median ms", "least ms", "TFLOP/s", "runs", "workspace bytes"], &rows);
    out
}

/// One plan's times for programs.
pub fn timing_json(t: &Timing, work: f64) -> Value {
    json!({
        "name": t.plan.to_string(),
        "records": t.plan.records(),
        "median_seconds": t.median(),
        "least_seconds": t.fastest(),
        "tflops": work / t.median() / 1e12,
        "runs": t.seconds.len(),
        "workspace_bytes": t.workspace_bytes,
    })
}
