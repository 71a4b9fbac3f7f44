//! The lowering against the kernels' own text: parameters by name, order and kind, and the switches each source insists on.

use super::goldens::cases;
use super::lower::SOURCES;
use super::rows;
use crate::{Arg, Launch, Step, Target};
use std::collections::BTreeSet;

fn text(path: &str) -> &'static str {
    frostgraph_kernels::SOURCES
        .iter()
        .find(|s| s.path == path)
        .map(|s| s.text)
        .unwrap_or_else(|| panic!("{path} is not embedded"))
}

/// `(kind, name)` of every parameter of an entry point, read from its definition.
fn signature(source: &str, entry: &str) -> Vec<(&'static str, String)> {
    let at = source.find(&format!("{entry}(")).unwrap_or_else(|| panic!("{entry} is not defined"));
    let list = &source[at + entry.len() + 1..];
    let list = &list[..list.find(')').expect("a parameter list")];
    list.split(',')
        .map(|p| {
            let p = p.trim();
            let name = p.rsplit([' ', '*', '\n']).next().expect("a name").to_string();
            let kind = match p {
                _ if p.contains("TensorMap") => "map",
                _ if p.contains('*') => "pointer",
                _ if p.starts_with("i64 ") => "i64",
                _ if p.starts_with("i32 ") => "i32",
                _ if p.starts_with("float ") => "f32",
                _ => panic!("{entry}: parameter '{p}'"),
            };
            (kind, name)
        })
        .collect()
}

fn kind(a: &Arg) -> &'static str {
    match a {
        Arg::Ptr(_) | Arg::Null => "pointer",
        Arg::I32(_) => "i32",
        Arg::I64(_) => "i64",
        Arg::F32(_) => "f32",
        Arg::Map(_) | Arg::NoMap => "map",
    }
}

/// Switches that a source, or a file it includes, refuses to compile without: those of an `#if !defined` or `#ifndef` before an `#error`.
fn required(path: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for s in frostgraph_kernels::closure(&[path]).expect("a closure") {
        let lines: Vec<&str> = s.text.lines().map(str::trim_start).collect();
        for pair in lines.windows(2).filter(|p| p[0].starts_with("#if") && p[1].starts_with("#error")) {
            let words = pair[0].split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            found.extend(words.filter(|w| w.starts_with("FG_")).map(String::from));
        }
    }
    found
}

fn launches() -> Vec<Launch> {
    let mut all = Vec::new();
    for (_, device, case, knobs) in cases() {
        let target = device.strip_prefix("sm_").and_then(|d| d.parse().ok()).and_then(Target::describe).expect("a known device");
        let plan = (rows::ROWS[0].lower)(&case.facts(), &knobs, &target).expect("an accepted graph lowers");
        all.extend(plan.steps.into_iter().filter_map(|s| match s {
            Step::Kernel(l) => Some(l),
            Step::Host(_) => None,
        }));
    }
    all
}

#[test]
fn parameters_are_those_of_the_kernels() {
    let mut seen = BTreeSet::new();
    for l in launches() {
        let given: Vec<(&str, String)> = l.args.iter().map(kind).zip(l.names.iter().map(|n| n.to_string())).collect();
        assert_eq!(given, signature(text(l.kernel.source), l.kernel.entry), "{}", l.name);
        seen.insert(l.kernel.source);
    }
    assert_eq!(seen, SOURCES.iter().copied().collect(), "the golden cases reach every kernel of the chain");
}

#[test]
fn switches_are_those_the_sources_insist_on() {
    for l in launches() {
        let given: BTreeSet<String> = l.kernel.defines.iter().map(|d| d.0.to_string()).collect();
        let missing: Vec<String> = required(l.kernel.source).difference(&given).cloned().collect();
        assert!(missing.is_empty(), "{} lacks {missing:?}", l.name);
        let closure = frostgraph_kernels::closure(&[l.kernel.source]).expect("a closure");
        // A switch that is off changes nothing wherever it is not read; one that is on must reach the source.
        let on = l.kernel.defines.iter().filter(|d| d.1 != 0).map(|d| d.0);
        let unread: Vec<&str> = on.filter(|d| !closure.iter().any(|s| s.text.contains(d))).collect();
        assert!(unread.is_empty(), "{} is given {unread:?}, which it does not read", l.name);
    }
}

/// Pointers that no variant may leave out: a null here would be a fault on the device.
#[test]
fn outputs_are_never_null() {
    for l in launches() {
        for (name, arg) in l.names.iter().zip(&l.args) {
            let written = matches!(*name, "dk" | "dv" | "dq" | "dk_out" | "dv_out" | "delta" | "dst" | "dsink");
            assert!(!written || *arg != Arg::Null, "{}: {name}", l.name);
        }
    }
}
