//! From the command line's graph options to a planned graph.

use frostgraph::graph::Graph;
use frostgraph::json::{self, Strictness, Warning};
use frostgraph::plan::{BuildOptions, Built};
use frostgraph::tensor_file::read_text;
use frostgraph::{Device, Error, ErrorCode, Result};
use std::path::PathBuf;

/// The graph and the device it is planned for.
#[derive(Debug, Clone, clap::Args)]
pub struct GraphArgs {
    /// Graph file: cudnn-frontend graph JSON 1.0 or 2.0, or a log that holds one; `-` reads standard input.
    pub graph: PathBuf,
    /// Device to plan for: cpu, cuda:N, or an architecture such as sm_90 that need not be here.
    #[arg(long, default_value = "cpu")]
    pub device: String,
    /// Refuse keys that the file format does not define.
    #[arg(long)]
    pub strict: bool,
    /// Offer opt-in engines, as FROSTGRAPH_ENABLE_FROST_ENGINES=1 does.
    #[arg(long)]
    pub opt_in: bool,
}

/// A graph as it was read.
#[derive(Debug)]
pub struct Source {
    pub graph: Graph,
    pub warnings: Vec<Warning>,
    /// How the file is called in output.
    pub label: String,
}

impl GraphArgs {
    /// Reads the graph. Errors carry the file's name before the place inside it.
    pub fn read(&self) -> Result<Source> {
        let strictness = if self.strict { Strictness::Strict } else { Strictness::Lenient };
        let piped = self.graph.as_os_str() == "-";
        let label = if piped { "standard input".to_owned() } else { self.graph.display().to_string() };
        let loaded = if piped {
            let text = read_text(std::io::stdin().lock(), "a graph as UTF-8 text").map_err(|e| e.at(&label))?;
            json::from_str(&text, strictness)
        } else {
            json::from_path(&self.graph, strictness)
        };
        let loaded = loaded.map_err(|e| in_file(e, &label))?;
        Ok(Source { graph: loaded.graph, warnings: loaded.warnings, label })
    }

    /// Plans the graph; a node without a plan is no error yet, so that its declines can be shown.
    pub fn build(&self, source: &Source) -> Result<Built> {
        let device = device(&self.device)?;
        let options = BuildOptions { enable_opt_in: self.opt_in.then_some(true), allow_empty: true, ..BuildOptions::default() };
        source.graph.build_with(&device, &options).map_err(|e| in_file(e, &source.label))
    }
}

/// Puts the file's name before the place of a fault found in it; file faults name it already.
fn in_file(e: Error, file: &str) -> Error {
    match e.code {
        ErrorCode::FileRead => e,
        _ if e.at.is_empty() => e.at(file),
        _ => {
            let place = format!("{file}: {}", e.at);
            e.at(place)
        }
    }
}

/// The device of `--device`.
pub fn device(name: &str) -> Result<Device> {
    if name == "cpu" {
        return Ok(Device::cpu());
    }
    if name.starts_with("sm_") {
        return Device::describe(name);
    }
    let ordinal = match name {
        "cuda" => Some(0),
        _ => name.strip_prefix("cuda:").and_then(|n| n.parse::<u32>().ok().filter(|x| x.to_string() == n)),
    };
    let Some(ordinal) = ordinal else {
        return Err(Error::new(ErrorCode::BadDevice, format!("device '{name}'"), "cpu, cuda:N or an architecture such as sm_90"));
    };
    Device::cuda(ordinal).map_err(|e| {
        // The plan of a device that is not here can still be looked at and compiled.
        if e.help.is_empty() {
            e.help("Without the device, --device sm_90 plans for its architecture")
        } else {
            e
        }
    })
}
