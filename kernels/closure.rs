//! Include closures: which sources one kernel is made of, and their common digest.
//!
//! The digest identifies an implementation: cubin cache keys, ahead-of-time bundles and GPU evidence (I9) all carry it. It depends on
//! contents only, never on file times or on where anything is installed (field report 116).

use crate::{sha256::sha256_hex, Source, SOURCES};

/// Why a closure cannot be formed; each is a fault in `kernels/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClosureError {
    /// No embedded source has this path.
    Missing {
        /// The path asked for.
        path: String,
        /// Who includes it; empty for a root.
        from: String,
    },
    /// An include that is not `#include "path/below/kernels"` (I10).
    Foreign {
        /// The line.
        line: String,
        /// The source that holds it.
        from: String,
    },
}

impl std::fmt::Display for ClosureError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ClosureError::Missing { path, from } if from.is_empty() => write!(f, "no kernel source '{path}'"),
            ClosureError::Missing { path, from } => write!(f, "{from} includes '{path}', which is not an embedded source"),
            ClosureError::Foreign { line, from } => write!(f, "{from}: '{line}' is not an include of a path below kernels/"),
        }
    }
}

impl std::error::Error for ClosureError {}

/// The paths a source text includes, in order.
fn includes(source: &Source) -> Result<Vec<&str>, ClosureError> {
    let mut found = Vec::new();
    for line in source.text.lines() {
        let Some(rest) = line.trim_start().strip_prefix('#') else { continue };
        let Some(rest) = rest.trim_start().strip_prefix("include") else { continue };
        let path = rest.trim_start().strip_prefix('"').and_then(|r| r.split_once('"')).map(|(path, _)| path);
        found.push(path.ok_or_else(|| ClosureError::Foreign { line: line.trim().to_owned(), from: source.path.to_owned() })?);
    }
    Ok(found)
}

fn closure_in<'a>(sources: &'a [Source], roots: &[&str]) -> Result<Vec<&'a Source>, ClosureError> {
    let mut todo: Vec<(String, String)> = roots.iter().map(|r| (r.to_string(), String::new())).collect();
    let mut found: Vec<&Source> = Vec::new();
    while let Some((path, from)) = todo.pop() {
        if found.iter().any(|s| s.path == path) {
            continue;
        }
        let source = sources.iter().find(|s| s.path == path).ok_or(ClosureError::Missing { path, from })?;
        found.push(source);
        todo.extend(includes(source)?.into_iter().map(|p| (p.to_owned(), source.path.to_owned())));
    }
    found.sort_by_key(|s| s.path);
    Ok(found)
}

/// The sources that these roots reach through `#include`, the roots themselves among them, ordered by path.
pub fn closure(roots: &[&str]) -> Result<Vec<&'static Source>, ClosureError> {
    closure_in(SOURCES, roots)
}

fn digest_of(sources: &[&Source]) -> String {
    // Lengths before contents: moving a line from one file to its neighbour must not give the same bytes.
    let mut bytes = Vec::new();
    for s in sources {
        for part in [s.path.as_bytes(), s.text.as_bytes()] {
            bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
            bytes.extend_from_slice(part);
        }
    }
    sha256_hex(&bytes)
}

/// Digest (64 hex digits) of the closure of these roots: the `kernel_digest` of evidence records.
pub fn digest(roots: &[&str]) -> Result<String, ClosureError> {
    Ok(digest_of(&closure(roots)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &[Source] = &[
        Source { path: "a.cu", text: "#include \"common/x.cuh\"\n  #  include \"common/y.cuh\"\nint a;\n" },
        Source { path: "b.cu", text: "int b;\n" },
        Source { path: "common/x.cuh", text: "#include \"common/y.cuh\"\n" },
        Source { path: "common/y.cuh", text: "#include \"common/x.cuh\"\nint y;\n" },
        Source { path: "bad.cu", text: "#include <cuda_bf16.h>\n" },
        Source { path: "lost.cu", text: "#include \"gone.cuh\"\n" },
    ];

    fn paths(roots: &[&str]) -> Vec<&'static str> {
        closure_in(TREE, roots).unwrap().iter().map(|s| s.path).collect()
    }

    #[test]
    fn closure_follows_includes_once_and_sorts() {
        assert_eq!(paths(&["a.cu"]), ["a.cu", "common/x.cuh", "common/y.cuh"]);
        assert_eq!(paths(&["b.cu"]), ["b.cu"]);
        assert_eq!(paths(&["b.cu", "a.cu"]), paths(&["a.cu", "b.cu"]));
    }

    #[test]
    fn faults_name_the_file() {
        assert_eq!(
            closure_in(TREE, &["lost.cu"]).unwrap_err().to_string(),
            "lost.cu includes 'gone.cuh', which is not an embedded source"
        );
        assert_eq!(
            closure_in(TREE, &["bad.cu"]).unwrap_err().to_string(),
            "bad.cu: '#include <cuda_bf16.h>' is not an include of a path below kernels/"
        );
        assert_eq!(closure_in(TREE, &["no.cu"]).unwrap_err().to_string(), "no kernel source 'no.cu'");
    }

    /// Report 116: one changed character changes the digest; sources outside the closure do not.
    #[test]
    fn digest_follows_contents_only() {
        let edited: Vec<Source> =
            TREE.iter()
                .map(|s| {
                    if s.path == "common/y.cuh" {
                        Source { path: s.path, text: "#include \"common/x.cuh\"\nint z;\n" }
                    } else {
                        *s
                    }
                })
                .collect();
        let d = |tree: &[Source], root: &str| digest_of(&closure_in(tree, &[root]).unwrap());
        assert_ne!(d(TREE, "a.cu"), d(&edited, "a.cu"));
        assert_eq!(d(TREE, "b.cu"), d(&edited, "b.cu"));
        let moved = [Source { path: "a.cu", text: "int a;\nint " }, Source { path: "a.cuh", text: "b;" }];
        let other = [Source { path: "a.cu", text: "int a;\n" }, Source { path: "a.cuh", text: "int b;" }];
        assert_ne!(digest_of(&moved.iter().collect::<Vec<_>>()), digest_of(&other.iter().collect::<Vec<_>>()));
    }

    /// I10: every embedded kernel's closure exists and stays below `kernels/`.
    #[test]
    fn embedded_sources_are_closed_i10() {
        for s in SOURCES {
            closure(&[s.path]).unwrap();
        }
    }
}
