//! Reading and writing cudnn-frontend graph JSON.

mod errors;
mod fuzz;
mod growth;
mod log;
mod property;
mod roundtrip;
mod schema;
mod version1;

use serde_json::Value;
use std::path::PathBuf;

/// Files below `tests/graphs/cudnn`, written by cudnn-frontend 1.32.
fn case(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/graphs/cudnn").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The half-precision attention graphs among them.
const SDPA_CASES: &[&str] =
    &["json_sdpa_fwd.json", "json_sdpa_fwd_validated.json", "json_sdpa_fwd_thd.json", "json_sdpa_bwd.json"];

/// A value without its per-process graph number.
fn without_gid(text: &str) -> Value {
    let mut v: Value = serde_json::from_str(text).expect("valid JSON");
    v.as_object_mut().expect("an object").remove("gid");
    v
}

/// A sample with one edit made to its value.
fn edited(name: &str, edit: impl FnOnce(&mut Value)) -> String {
    let mut v: Value = serde_json::from_str(&case(name)).expect("valid JSON");
    edit(&mut v);
    v.to_string()
}
