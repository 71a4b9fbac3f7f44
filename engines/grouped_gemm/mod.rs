//! Grouped block-scaled matrix product with the dsReLU backward epilogue: the facts, formats and helpers that its rows share.
//!
//! Rows `off[e-1]..off[e]` of A, C and D belong to expert `e`; ends are multiples of [`ROW_ALIGN`]. For those rows
//! `G[m, n] = alpha[e] * sum over k of A[m, k] * SFA * B[n, k, e] * SFB`, then the epilogue of [`Formula`].
//!
//! What is written: D_row, D_col, D_srelu and their scales for the rows of experts only (rows from the last end on are not touched, as
//! with packed attention); dprob of every row (0 where no expert is); dbias and amax of every expert (0 and -inf where it has no rows).
//! Nothing is accumulated onto what the buffers held before.

pub mod epilogue;
pub mod facts;
pub mod groups;
pub mod matching;
pub mod oracle;
pub mod scales;
pub mod slots;
#[cfg(test)]
pub mod testing;

pub use facts::{Formula, GemmPort, GroupedGemmFacts, GroupedGemmPorts, Weights};

/// Multiple of rows that every expert's end must be: `m_aligned` of the specification.
pub const ROW_ALIGN: i64 = 256;

/// Most experts of one node.
pub const MAX_EXPERTS: i64 = 1024;
