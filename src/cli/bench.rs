//! `frostgraph bench`.

use super::choose::{ChoiceArgs, PlanArg};
use super::load::GraphArgs;
use super::report::Report;
use super::run::DataArgs;
use super::runner::Buffers;
use super::{flops, plans, progress, text};
use frostgraph::plan::{Plan, Timing};
use frostgraph::sample;
use frostgraph::{Error, ErrorCode, Result};
use serde_json::{json, Value};
use std::time::Duration;

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
    #[arg(long, allow_negative_numbers = true, default_value_t = 1.0, value_parser = positive)]
    seconds: f64,
}

/// A positive number of seconds.
pub fn positive(s: &str) -> Result<f64, String> {
    match s.parse::<f64>() {
        // A year is longer than anybody waits, and far from what a duration cannot hold.
        Ok(x) if x > 0.0 && x <= 3e7 => Ok(x),
        Ok(_) | Err(_) => Err("a positive number of seconds, a year at most, is expected".into()),
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
    let need = list.iter().filter_map(|p| p.workspace_bytes().ok()).max().unwrap_or(0);
    let mut buffers = Buffers::new(&built, &inputs, sample::outputs(built.graph(), &inputs)?, need)?;
    let (timings, mut failures) = time_all(list, &mut buffers, args.seconds)?;
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
fn time_all(list: Vec<Plan>, buffers: &mut Buffers<'_>, seconds: f64) -> Result<(Vec<Timing>, Vec<String>)> {
    let bar = progress::bar(list.len() as u64, "plans");
    let (mut timings, mut failures, mut first) = (Vec::new(), Vec::new(), None);
    for plan in list {
        match buffers.with(|s, b, w| plan.time(s, b, w, Duration::from_secs_f64(seconds))) {
            Ok(t) => timings.push(t),
            Err(e) => {
                failures.push(failure(&plan, &e));
                first = first.or(Some(e));
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    match (timings.is_empty(), first) {
        (true, Some(e)) => Err(e),
        (true, None) => Err(Error::new(ErrorCode::NoPlan, "no plan to time", "a graph that some engine serves")),
        (false, _) => Ok((timings, failures)),
    }
}

/// A plan that was left out.
pub fn failure(plan: &Plan, e: &Error) -> String {
    format!("warning: {plan}: {e}")
}

fn tflops(work: f64, t: &Timing) -> f64 {
    // An event's resolution is half a microsecond: nothing took no time.
    work / t.median().as_secs_f64().max(1e-9) / 1e12
}

/// The table for people.
pub fn table(timings: &[Timing], work: f64) -> String {
    let mut out = String::new();
    let rows: Vec<Vec<String>> = timings
        .iter()
        .map(|t| {
            vec![
                t.plan.to_string(),
                format!("{:.3}", t.median().as_secs_f64() * 1e3),
                format!("{:.3}", t.fastest().as_secs_f64() * 1e3),
                format!("{:.4}", tflops(work, t)),
                t.times.len().to_string(),
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
        "median_seconds": t.median().as_secs_f64(),
        "least_seconds": t.fastest().as_secs_f64(),
        "tflops": tflops(work, t),
        "runs": t.times.len(),
        "workspace_bytes": t.workspace_bytes,
    })
}
