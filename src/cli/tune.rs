//! `frostgraph tune`: times every plan and keeps the record of the fastest.

use super::bench::{positive, table, time_all, timing_json};
use super::load::GraphArgs;
use super::report::Report;
use super::run::DataArgs;
use super::{flops, plans};
use frostgraph::{tensor_file, Error, ErrorCode, Result};
use serde_json::json;
use std::fmt::Write;
use std::path::PathBuf;

/// Options of `tune`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    graph: GraphArgs,
    #[command(flatten)]
    data: DataArgs,
    /// Seconds to spend on each plan.
    #[arg(long, default_value_t = 0.5, value_parser = positive)]
    seconds: f64,
    /// Write the record of the fastest plan to this file, for --record.
    #[arg(long)]
    save: Option<PathBuf>,
}

pub fn run(args: &Args) -> Result<Report> {
    let source = args.graph.read()?;
    let built = args.graph.build(&source)?;
    if built.plan_count() == 0 {
        // Selecting gives the error with every decline.
        built.best()?;
    }
    let mut notes = plans::notes(&source);
    let inputs = args.data.load(built.graph(), args.graph.strict, &mut notes)?;
    let (mut timings, mut failures) = time_all(built.plans().collect(), &inputs, args.seconds, built.graph())?;
    notes.append(&mut failures);
    // The order of the list breaks ties, so that equal plans do not change places from run to run.
    timings.sort_by(|a, b| a.median().total_cmp(&b.median()));
    let Some(best) = timings.first() else {
        return Err(Error::new(ErrorCode::NoPlan, "no plan was timed", "a plan that runs"));
    };
    let records = serde_json::to_value(best.plan.records()).unwrap_or_default();
    let work = flops::of_graph(built.graph(), &inputs);
    let mut human = plans::heading(&source, &built);
    human.push_str(&table(&timings, work));
    let _ = writeln!(human, "fastest {}\nrecord {records}", best.plan);
    if let Some(path) = &args.save {
        tensor_file::write_beside(path, format!("{records:#}\n").as_bytes())?;
        let _ = writeln!(human, "wrote {}", path.display());
    }
    let json = json!({
        "device": built.device().target.name(),
        "fastest": { "name": best.plan.to_string(), "records": records },
        "plans": timings.iter().map(|t| timing_json(t, work)).collect::<Vec<_>>(),
        "saved": args.save.as_ref().map(|p| p.display().to_string()),
    });
    Ok(Report { notes, ..Report::success(human, json) })
}
