//! The CUDA C++ sources of frostgraph, embedded as text. No dependencies, no build step: NVRTC compiles them at run time.
#![forbid(unsafe_code)]

pub mod closure;
pub mod sha256;

pub use closure::{closure, digest, ClosureError};

/// One embedded source file: its path below `kernels/` (the spelling used by `#include`) and its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// Path below `kernels/`, with forward slashes.
    pub path: &'static str,
    /// The whole text.
    pub text: &'static str,
}

/// Every embedded source, ordered by path.
pub static SOURCES: &[Source] = &[];
