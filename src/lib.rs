//! frostgraph: a graph compiler for fused attention kernels.
#![doc = include_str!("ARCHITECTURE.md")]
#![deny(unsafe_code)]

pub mod analyze;
pub mod device;
pub mod error;
pub mod exec;
pub mod graph;
pub mod json;
pub mod plan;
#[cfg(feature = "cuda")]
pub mod runtime;

pub use device::Device;
pub use error::{Error, ErrorCode, Result};
pub use frostgraph_engines as engines;
pub use frostgraph_engines::DType;
