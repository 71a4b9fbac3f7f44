//! Buffers and errors of the CPU engines.

use crate::Uid;
use std::collections::BTreeMap;

/// Caller buffers of one execution by tensor uid, as raw bytes in native endianness.
///
/// The executor checks sizes, alignment and presence before a host step runs.
#[derive(Debug, Default)]
pub struct HostBuffers<'a> {
    /// Read-only operands.
    pub inputs: BTreeMap<Uid, &'a [u8]>,
    /// Operands that the step writes.
    pub outputs: BTreeMap<Uid, &'a mut [u8]>,
    /// Scratch of at least the plan's workspace bytes, 128-byte aligned.
    pub workspace: &'a mut [u8],
}

/// A fault found while a CPU engine runs: the caller's data contradicts the graph (a length above its extent, an offset past
/// the buffer, a page index outside the pool).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostError {
    /// What was found.
    pub given: String,
    /// What the contract is.
    pub expected: String,
    /// The tensor at fault.
    pub tensor: String,
}

impl std::fmt::Display for HostError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}; expected {}", self.tensor, self.given, self.expected)
    }
}

impl std::error::Error for HostError {}
