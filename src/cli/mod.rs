//! Verbs, their common options, and the way from a result to what is printed and to the exit status.

mod bench;
mod bundle;
mod choose;
mod explain;
mod flops;
mod grouped;
mod load;
mod matrix;
mod moe;
mod plans;
mod progress;
mod report;
mod run;
mod runner;
mod schema;
mod sdpa;
mod text;
mod tune;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand, ValueEnum};
use frostgraph::{Error, ErrorCode};
use report::{Exit, Report};
use std::process::ExitCode;

const ABOUT: &str =
    "Graph compiler for fused attention: a graph becomes ranked plans, a plan becomes launches, launches become results.";

/// frostgraph: from an operation graph to ranked plans to results.
#[derive(Debug, Parser)]
#[command(name = "frostgraph", version, about = ABOUT, after_help = report::EXIT_HELP, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
    /// What is printed on standard output.
    #[arg(long, global = true, value_enum, default_value_t = Format::Human)]
    format: Format,
    /// Columns of human output; the terminal's, or 100, when not given.
    #[arg(long, allow_negative_numbers = true, global = true, value_parser = clap::value_parser!(u16).range(40..))]
    width: Option<u16>,
    /// Worker threads of the CPU engines; all cores when not given. Results do not depend on it.
    #[arg(long, allow_negative_numbers = true, global = true, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Human,
    Json,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Ranked plans of a graph, and why the other engines do not serve it.
    Plans(plans::Args),
    /// Facts, rows, ranked plans, declines, and the launch plan with its workspace and kernels.
    Explain(explain::Args),
    /// Run a graph on given or seeded inputs; compare with the f64 oracle on request.
    Run(run::Args),
    /// Time plans.
    Bench(bench::Args),
    /// Time every plan and print the record of the fastest one.
    Tune(tune::Args),
    /// The support matrix of all engines.
    Matrix(matrix::Args),
    /// Compile the kernels of a plan ahead of time; needs NVRTC, no GPU.
    Compile(bundle::CompileArgs),
    /// List, verify or clear the cache of compiled kernels.
    Cache(bundle::CacheArgs),
    /// The JSON Schema of graph files.
    Schema(schema::Args),
}

/// What every verb needs to print for people.
#[derive(Debug, Clone, Copy)]
struct Style {
    width: usize,
}

/// Parses, runs, prints; the only place that decides the exit status.
pub fn main() -> ExitCode {
    init_log();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) if e.use_stderr() && e.kind() != ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            return failed(&usage(&e.render().to_string()), asked_format(std::env::args_os()));
        }
        Err(e) => {
            let exit = if e.use_stderr() { Exit::Usage } else { Exit::Success };
            // A closed pipe on the help text is no fault.
            let _ = e.print();
            return exit.into();
        }
    };
    if let Some(n) = cli.threads {
        if let Err(e) = rayon::ThreadPoolBuilder::new().num_threads(n.into()).build_global() {
            let e = Error::new(ErrorCode::Usage, format!("--threads {n}: {e}"), "as many threads as this machine can start");
            return failed(&e, cli.format);
        }
    }
    let style = Style { width: cli.width.map_or_else(terminal_width, usize::from) };
    let result = match &cli.verb {
        Verb::Plans(a) => plans::run(a, style),
        Verb::Explain(a) => explain::run(a, style),
        Verb::Run(a) => run::run(a, style),
        Verb::Bench(a) => bench::run(a),
        Verb::Tune(a) => tune::run(a),
        Verb::Matrix(a) => matrix::run(a),
        Verb::Compile(a) => bundle::compile(a),
        Verb::Cache(a) => bundle::cache(a),
        Verb::Schema(_) => schema::run(),
    };
    match result {
        Ok(report) => print(&report, cli.format),
        Err(e) => failed(&e, cli.format),
    }
}

fn failed(e: &Error, format: Format) -> ExitCode {
    let exit = Exit::of(e);
    match format {
        Format::Human => eprintln!("error: {e}"),
        Format::Json => eprintln!("{}", report::error_json(e, exit)),
    }
    exit.into()
}

/// The parser's message as an error of ours: its first paragraph is what was given, its "Usage" what is expected, its tips are help.
fn usage(message: &str) -> Error {
    let line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut parts = message.split("\n\n").map(line).filter(|p| !p.is_empty());
    let given = parts.next().unwrap_or_default();
    let (usage, help): (Vec<String>, Vec<String>) = parts.partition(|p| p.starts_with("Usage: "));
    let expected = usage.first().map_or("what --help lists", |u| u.trim_start_matches("Usage: "));
    Error::new(ErrorCode::Usage, given.trim_start_matches("error: "), expected).help(help.join(" "))
}

/// What a command line that could not be parsed asks for.
fn asked_format(args: impl Iterator<Item = std::ffi::OsString>) -> Format {
    let words: Vec<String> = args.map(|w| w.to_string_lossy().into_owned()).collect();
    let json = words.iter().any(|w| w == "--format=json") || words.windows(2).any(|w| w[0] == "--format" && w[1] == "json");
    if json {
        Format::Json
    } else {
        Format::Human
    }
}

fn print(report: &Report, format: Format) -> ExitCode {
    use std::io::Write;
    for line in &report.notes {
        // An error of several lines stays one.
        eprintln!("{}", text::printable(line));
    }
    let text = match format {
        Format::Human => text::printable(&report.human),
        Format::Json => format!("{:#}\n", report.json),
    };
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Ok(()) => report.exit.into(),
        // The reader has seen enough (`frostgraph plans g.json | head`).
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => report.exit.into(),
        Err(e) => {
            let e = Error::new(ErrorCode::FileWrite, e.to_string(), "room for what is printed").at("standard output");
            failed(&e, format)
        }
    }
}

/// `FROSTGRAPH_LOG` takes the filter syntax of `tracing` (`debug`, `frostgraph::plan=trace`); warnings only when unset.
fn init_log() {
    use tracing_subscriber::EnvFilter;
    let given = std::env::var("FROSTGRAPH_LOG").ok().filter(|v| !v.trim().is_empty());
    let (filter, fault) = match given.as_deref().map(EnvFilter::try_new) {
        None => (EnvFilter::new("warn"), None),
        Some(Ok(filter)) => (filter, None),
        Some(Err(e)) => (EnvFilter::new("warn"), Some(e)),
    };
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    if let Some(e) = fault {
        tracing::warn!(error = %e, "FROSTGRAPH_LOG is no filter; warnings are shown");
    }
}

fn terminal_width() -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|c| c.parse::<usize>().ok());
    columns.unwrap_or(100).clamp(40, 240)
}

#[cfg(test)]
mod tests {
    #[test]
    fn arguments_are_consistent() {
        use clap::CommandFactory;
        super::Cli::command().debug_assert();
    }
}
