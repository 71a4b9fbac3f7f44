//! Writes `SUPPORT_MATRIX_TRACKER.md` and its JSON twin, or checks them with `--check`.
//!
//! Exit status: 0 done or current, 1 stale or failed, 2 usage.

use frostgraph_support_matrix::{stale_files, write_files};
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => match write_files(&root) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => fail(&e.to_string()),
        },
        ["--check"] => match stale_files(&root) {
            Ok(stale) if stale.is_empty() => ExitCode::SUCCESS,
            Ok(stale) => fail(&format!("stale: {}; `cargo run -p frostgraph-support-matrix` rewrites them", stale.join(", "))),
            Err(e) => fail(&e.to_string()),
        },
        _ => {
            eprintln!("usage: frostgraph-support-matrix [--check]");
            ExitCode::from(2)
        }
    }
}

fn fail(text: &str) -> ExitCode {
    eprintln!("{text}");
    ExitCode::FAILURE
}
