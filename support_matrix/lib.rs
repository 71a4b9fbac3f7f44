//! Renders the support matrix from `frostgraph_engines::MANIFEST` and the evidence records.
//!
//! Everything is a function of the two: [`Matrix::new`] joins them, [`render_markdown`] and [`render_json`] print the join. The files at the
//! root of the repository, [`MARKDOWN_FILE`] and [`JSON_FILE`], are generated; a test rewrites them and fails once when they are stale.
#![forbid(unsafe_code)]

mod columns;
mod evidence;
mod files;
mod json;
mod markdown;
mod matrix;

pub use evidence::{embedded_evidence, parse_records, EvidenceError, Record};
pub use files::{stale_files, write_files, JSON_FILE, MARKDOWN_FILE};
pub use json::render_json;
pub use markdown::render_markdown;
pub use matrix::{Engine, FamilyLine, Flavour, Line, Matrix, Served, Status, ARCHITECTURES};
