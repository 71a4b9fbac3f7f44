//! `frostgraph matrix`.

use super::report::{Exit, Report};
use frostgraph::engines::MANIFEST;
use frostgraph::{Error, ErrorCode, Result};
use frostgraph_support_matrix as matrix;
use serde_json::json;
use std::path::PathBuf;

/// Options of `matrix`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Print nothing but whether the generated files below --root are what this build renders; the exit status is 1 when they are not.
    #[arg(long)]
    check: bool,
    /// Root of the repository for --check.
    #[arg(long, default_value = ".", requires = "check")]
    root: PathBuf,
}

pub fn run(args: &Args) -> Result<Report> {
    let broken =
        |e: matrix::EvidenceError| Error::new(ErrorCode::Evidence, e.given, e.expected).at(format!("evidence/{}", e.file));
    if args.check {
        // Files that are missing are stale; where all are, this is another folder.
        if ![matrix::MARKDOWN_FILE, matrix::JSON_FILE].iter().any(|f| args.root.join(f).exists()) {
            let given = format!("neither {} nor {}", matrix::MARKDOWN_FILE, matrix::JSON_FILE);
            let e = Error::new(ErrorCode::FileRead, given, "the root of frostgraph's repository (--root)");
            return Err(e.at(args.root.display().to_string()));
        }
        let stale = matrix::stale_files(&args.root).map_err(broken)?;
        let human = if stale.is_empty() {
            "current\n".into()
        } else {
            format!("stale: {}; `cargo run -p frostgraph-support-matrix` rewrites them\n", stale.join(", "))
        };
        let exit = if stale.is_empty() { Exit::Success } else { Exit::CheckFailed };
        return Ok(Report { exit, ..Report::success(human, json!({ "stale": stale })) });
    }
    let records = matrix::embedded_evidence().map_err(broken)?;
    let text = matrix::render_json(MANIFEST, &records);
    let json = serde_json::from_str(&text).map_err(|e| Error::new(ErrorCode::JsonValue, e.to_string(), "a rendered matrix"))?;
    Ok(Report::success(matrix::render_markdown(MANIFEST, &records), json))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The matrix crate cannot see this crate's codes; its own spelling has to stay the same.
    #[test]
    fn evidence_errors_have_one_code() {
        assert_eq!(matrix::EvidenceError::CODE, ErrorCode::Evidence.code());
    }
}
