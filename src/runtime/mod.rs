//! The CUDA runtime: finding the libraries, compiling kernels, keeping cubins.
//!
//! The only place of the workspace that touches CUDA and the only one with `unsafe` (I1). The driver is reached through cudarc; NVRTC
//! through an own binding (see [`nvrtc`]). Nothing here panics when a library is missing: see [`search`] for where they are looked for.
#![allow(unsafe_code)]

pub mod compile;
pub mod cubin_cache;
pub mod elf;
pub mod entry;
pub mod nvrtc;
pub mod search;
#[cfg(test)]
pub(crate) mod test_util;
pub mod usage;

pub use compile::{compile_kernel, Budget, Cubin};
pub use cubin_cache::CubinCache;
pub use nvrtc::Nvrtc;
pub use search::SearchPath;
