//! Grouped block-scaled matrix product with the dsReLU backward epilogue: the facts, formats and helpers that its rows share.
//!
//! Rows `off[e-1]..off[e]` of A, C and D belong to expert `e`; ends are multiples of [`ROW_ALIGN`]. For those rows
//! `G[m, n] = alpha[e] * sum over k of A[m, k] * SFA * B[n, k, e] * SFB`, then the epilogue of [`Formula`].
//!
//! What is written: D_row, D_col, D_srelu and their scales for the rows of experts only (rows from the last end on are not touched, as
//! with packed attention); dprob of every row (0 where no expert is); dbias and amax of every expert (0 and -inf where it has no rows).
//! Nothing is accumulated onto what the buffers held before. In the atoms of generated scales, places past the last column (of D_row) or past
//! the last row (of a column scale's matrix) get code 0.
//!
//! Weights behind lists (`B_ptrs`, `SFB_ptrs`): byte offsets into a pool, or device addresses. Entries are multiples of 16 and lead inside their
//! pool; of an address no more can be judged than that and that it is not null. An expert with rows and another entry is faulty, as one with a
//! faulty end is: [`groups::Status`]. Host engines take no addresses: a safe call could not tell a good one from a bad one.
//!
//! Non-finite values:
//! - a NaN scale (0xFF of E8M0, 0x7F of E4M3) or payload makes every G that it takes part in a NaN, and so do Inf times 0 and Inf minus Inf
//!   of E5M2 payloads. Scales whose product leaves single precision do no harm where the block's sum is 0 or the result is in range;
//! - relu keeps a NaN. With G not above 0, D is `prob * 2 * C * 0`: a NaN where C is infinite, and so it is
//!   where G is so far above a soft clamp that the slope is 0 in single precision;
//! - f16, bf16 and f32 results round as IEEE does, past the range to Inf. FP8 results saturate, NaN stays NaN (0x7F);
//! - a NaN does not count towards the largest magnitude of a block of generated scales; an infinite one gets the largest scale, 2^127, under
//!   which infinities saturate and finite values become 0;
//! - amax compares magnitudes as integers, so a NaN among an expert's D makes its amax NaN. dprob and dbias are plain sums.

pub mod epilogue;
pub mod facts;
pub mod groups;
pub mod matching;
pub mod oracle;
pub mod scales;
pub mod slots;
#[cfg(test)]
pub mod testing;
pub mod weights;

pub use facts::{Formula, GemmPort, GroupedGemmFacts, GroupedGemmPorts, Weights};

/// Multiple of rows that every expert's end must be: `m_aligned` of the specification.
pub const ROW_ALIGN: i64 = 256;

/// Most experts of one node.
pub const MAX_EXPERTS: i64 = 1024;
