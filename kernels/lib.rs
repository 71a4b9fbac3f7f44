//! The CUDA C++ sources of frostgraph, embedded as text. No dependencies, no build step: NVRTC compiles them at run time.
//!
//! Sources include each other by path from this folder (`#include "common/ptx.cuh"`) and nothing from outside it (I10).
//! [`digest`] identifies a kernel by its include closure: cubin cache and evidence records use it (I9).
#![forbid(unsafe_code)]

mod hash;

pub use hash::{fnv1a_128, Fnv128};

/// One embedded source file: its path below `kernels/` (the spelling used by `#include`) and its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// Path below `kernels/`, with forward slashes.
    pub path: &'static str,
    /// The whole text.
    pub text: &'static str,
}

macro_rules! sources {
    ($($path:literal,)*) => { &[$(Source { path: $path, text: include_str!($path) },)*] };
}

/// Every embedded source, ordered by path. A new `.cu` or `.cuh` file gets a line here; a test compares the list with the folder.
pub static SOURCES: &[Source] = sources![];

/// The source with this path.
pub fn source(path: &str) -> Option<&'static Source> {
    SOURCES.iter().find(|s| s.path == path)
}

/// Paths that a source includes, in the order of the text. Conditional inclusion is ignored: an include in a branch counts.
pub fn includes(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?.trim_start();
        let close = match rest.chars().next()? {
            '"' => '"',
            '<' => '>',
            _ => return None,
        };
        rest[1..].split_once(close).map(|(path, _)| path)
    })
}

/// A source and everything it includes, directly or not, ordered by path. `None` when the path or an include is not embedded.
pub fn include_closure(path: &str) -> Option<Vec<&'static Source>> {
    let mut found = vec![source(path)?];
    let mut next = 0;
    while next < found.len() {
        for include in includes(found[next].text) {
            let s = source(include)?;
            if !found.contains(&s) {
                found.push(s);
            }
        }
        next += 1;
    }
    found.sort_by_key(|s| s.path);
    Some(found)
}

/// Identity of some kernels: 32 hexadecimal digits over the paths and texts of their joint include closure. It changes when any line
/// of any file in the closure changes, and with nothing else. `None` when a path or an include is not embedded.
pub fn digest(paths: &[&str]) -> Option<String> {
    let mut closure: Vec<&'static Source> = Vec::new();
    for path in paths {
        closure.extend(include_closure(path)?);
    }
    closure.sort_by_key(|s| s.path);
    closure.dedup_by_key(|s| s.path);
    let mut h = Fnv128::new();
    for s in closure {
        // Lengths keep `ab` + `c` apart from `a` + `bc`.
        h.write(&(s.path.len() as u64).to_le_bytes());
        h.write(s.path.as_bytes());
        h.write(&(s.text.len() as u64).to_le_bytes());
        h.write(s.text.as_bytes());
    }
    Some(format!("{:032x}", h.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn on_disk(dir: &Path, below: &str, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(dir).expect("the kernels folder is readable") {
            let path = entry.expect("a directory entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            let full = if below.is_empty() { name } else { format!("{below}/{name}") };
            if path.is_dir() {
                on_disk(&path, &full, found);
            } else if full.ends_with(".cu") || full.ends_with(".cuh") {
                found.push(full);
            }
        }
    }

    #[test]
    fn the_list_is_the_folder() {
        let mut found = Vec::new();
        on_disk(Path::new(env!("CARGO_MANIFEST_DIR")), "", &mut found);
        found.sort();
        let listed: Vec<&str> = SOURCES.iter().map(|s| s.path).collect();
        assert_eq!(listed, found, "sources![] in kernels/lib.rs must list every .cu and .cuh file, ordered by path");
    }

    #[test]
    fn i10_every_include_is_embedded() {
        for s in SOURCES {
            for include in includes(s.text) {
                assert!(source(include).is_some(), "{} includes {include}, which is not below kernels/", s.path);
            }
            assert!(include_closure(s.path).is_some_and(|c| c.contains(&s)), "{}", s.path);
        }
    }

    #[test]
    fn includes_are_found_in_any_spelling() {
        let text = "#include \"a/b.cuh\"\n  #  include <x.h>\n// #include \"no\"\n#if 1\n#include\"c.cuh\" // why\n#includefoo\n";
        assert_eq!(includes(text).collect::<Vec<_>>(), ["a/b.cuh", "x.h", "c.cuh"]);
    }

    #[test]
    fn digests_are_per_closure() {
        assert_eq!(digest(&["no/such.cu"]), None);
        let kernels: Vec<&str> = SOURCES.iter().map(|s| s.path).filter(|p| p.ends_with(".cu")).collect();
        let mut seen: Vec<String> = kernels.iter().map(|p| digest(&[p]).expect("a closure")).collect();
        seen.sort();
        let count = seen.len();
        seen.dedup();
        assert_eq!(seen.len(), count, "two kernels share a digest");
        if let [a, b, ..] = kernels[..] {
            assert_eq!(digest(&[a, b]), digest(&[b, a, a]), "order and repetition do not matter");
            assert_ne!(digest(&[a, b]), digest(&[a]));
        }
    }
}
