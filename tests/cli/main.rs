//! The command line, run as a user runs it.
#![cfg(feature = "cli")]

mod bad_input;
mod generated;
mod verbs;

use std::path::PathBuf;
use std::process::{Command, Output};

/// The built program in the repository's root, with no engine switches and a private cache.
fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_frostgraph"));
    command
        .current_dir(root())
        .env_remove("FROSTGRAPH_ENABLE_FROST_ENGINES")
        .env_remove("CUDNN_FRONTEND_ENABLE_FROST_ENGINES")
        .env_remove("FROSTGRAPH_DISABLE_ENGINES")
        .env_remove("FROSTGRAPH_LOG")
        .env_remove("COLUMNS")
        .env("FROSTGRAPH_CACHE_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/cli-cache"))
        .args(args);
    command
}

fn frostgraph(args: &[&str]) -> Output {
    program(args).output().expect("the program starts")
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn stdout(o: &Output) -> String {
    String::from_utf8(o.stdout.clone()).expect("UTF-8")
}

fn stderr(o: &Output) -> String {
    String::from_utf8(o.stderr.clone()).expect("UTF-8")
}

/// Standard output of a call that must succeed.
fn ok(args: &[&str]) -> String {
    let o = frostgraph(args);
    assert!(o.status.success(), "{args:?}: {:?}\n{}\n{}", o.status.code(), stdout(&o), stderr(&o));
    stdout(&o)
}

/// The same as JSON.
fn json(args: &[&str]) -> serde_json::Value {
    let text = ok(&[args, &["--format", "json"]].concat());
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// Exit status and standard error of a call that must fail.
fn fails(args: &[&str]) -> (i32, String) {
    let o = frostgraph(args);
    let code = o.status.code().expect("no signal");
    assert_ne!(code, 0, "{args:?}: {}", stdout(&o));
    assert!(!stderr(&o).contains("panicked"), "{args:?}: {}", stderr(&o));
    (code, stderr(&o))
}
