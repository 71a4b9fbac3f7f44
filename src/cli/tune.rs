//! `frostgraph tune`: times every plan and keeps the record of the fastest.

use super::bench::{failure, positive, table, timing_json};
use super::load::GraphArgs;
use super::report::Report;
use super::run::DataArgs;
use super::runner::Buffers;
use super::{flops, plans, progress, text};
use frostgraph::{sample, tensor_file, Result};
use serde_json::json;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

/// Options of `tune`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    graph: GraphArgs,
    #[command(flatten)]
    data: DataArgs,
    /// Seconds to spend on each plan.
    #[arg(long, allow_negative_numbers = true, default_value_t = 0.5, value_parser = positive)]
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
    if let Some(path) = &args.save {
        tensor_file::check_writable(path)?;
    }
    let mut notes = plans::notes(&source);
    let inputs = args.data.load(built.graph(), args.graph.strict, &mut notes)?;
    let results = sample::outputs(built.graph(), &inputs)?;
    let mut buffers = Buffers::new(&built, &inputs, results, built.tune_workspace_bytes())?;
    let budget = Duration::from_secs_f64(args.seconds);
    let what = format!("timing {}", text::count(built.plan_count(), "plan"));
    let tuned = progress::spin(&what, || buffers.with(|s, b, w| built.tune(s, b, w, budget)))?;
    notes.extend(tuned.failed.iter().map(|(plan, e)| failure(plan, e)));
    let (best, timings) = (tuned.best(), &tuned.timings);
    let records = serde_json::to_value(best.records()).unwrap_or_default();
    let work = flops::of_graph(built.graph(), &inputs);
    let mut human = plans::heading(&source, &built);
    human.push_str(&table(timings, work));
    let _ = writeln!(human, "fastest {best}\nrecord {records}");
    if let Some(path) = &args.save {
        tensor_file::write_beside(path, format!("{records:#}\n").as_bytes())?;
        let _ = writeln!(human, "wrote {}", path.display());
    }
    let json = json!({
        "device": built.device().target.name(),
        "fastest": { "name": best.to_string(), "records": records },
        "plans": timings.iter().map(|t| timing_json(t, work)).collect::<Vec<_>>(),
        "saved": args.save.as_ref().map(|p| p.display().to_string()),
    });
    Ok(Report { notes, ..Report::success(human, json) })
}
