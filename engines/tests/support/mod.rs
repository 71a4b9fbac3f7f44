//! Builds attention nodes with buffers, runs the CPU engines on them and compares with the f64 oracle.
//!
//! Buffers are laid out and read back by code of this module alone, so that a fault in the engines' element access shows.
#![allow(dead_code, unused_imports, reason = "each test binary uses a part of it")]

mod case;
mod judge;
mod memory;
mod run;
mod spec;

pub use case::Case;
pub use memory::{round, strides, Buffer, Rng, Spot, GUARD};
pub use run::{bits, element_bits, plan};
pub use spec::{masks, Layout, Packed, Spec, PACKED};

pub mod uid {
    pub const Q: i64 = 1;
    pub const K: i64 = 2;
    pub const V: i64 = 3;
    pub const O: i64 = 4;
    pub const STATS: i64 = 5;
    pub const DO: i64 = 6;
    pub const DQ: i64 = 7;
    pub const DK: i64 = 8;
    pub const DV: i64 = 9;
    pub const BIAS: i64 = 10;
    pub const DBIAS: i64 = 11;
    pub const SINK: i64 = 12;
    pub const DSINK: i64 = 13;
    pub const LEN_Q: i64 = 14;
    pub const LEN_KV: i64 = 15;
    pub const TABLE_K: i64 = 16;
    pub const TABLE_V: i64 = 17;
    pub const MAX: i64 = 18;
    pub const SUM: i64 = 19;
    pub const SCALE: i64 = 20;
    /// The high-precision O of an NVFP4 QAT forward; its backward reads it as uid [`O`].
    pub const HIGH: i64 = 21;
    /// Offsets of the tensor with uid `n` are `OFFSETS + n`.
    pub const OFFSETS: i64 = 100;
}
