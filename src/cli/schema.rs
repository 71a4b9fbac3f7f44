//! `frostgraph schema`.

use super::report::Report;
use frostgraph::Result;

/// Options of `schema`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {}

/// The JSON Schema, in both formats: it is JSON already.
pub fn run() -> Result<Report> {
    let schema = frostgraph::json::schema();
    Ok(Report::success(format!("{schema:#}\n"), schema))
}
