//! A lowering against its kernels' own text: parameters by name, order and kind, and the switches each source insists on.

use crate::{Arg, Launch};
use std::collections::BTreeSet;

/// The text that defines an entry point: the source itself or a file it includes.
fn definition(path: &str, entry: &str) -> &'static str {
    let call = format!("{entry}(");
    let found = frostgraph_kernels::closure(&[path]).expect("a closure").into_iter().find(|s| s.text.contains(&call));
    found.unwrap_or_else(|| panic!("{path} does not define {entry}")).text
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

/// Every launch passes exactly the parameters of its kernel, and the launches reach every one of `sources`.
pub fn check_parameters(launches: &[Launch], sources: &[&str]) {
    let mut seen = BTreeSet::new();
    for l in launches {
        let given: Vec<(&str, String)> = l.args.iter().map(kind).zip(l.names.iter().map(|n| n.to_string())).collect();
        assert_eq!(given, signature(definition(l.kernel.source, l.kernel.entry), l.kernel.entry), "{}", l.name);
        seen.insert(l.kernel.source);
    }
    assert_eq!(seen, sources.iter().copied().collect(), "the golden cases reach every kernel");
}

/// Every launch sets all switches that its source insists on, and none that no file of it reads.
pub fn check_switches(launches: &[Launch]) {
    for l in launches {
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
