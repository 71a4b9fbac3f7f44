//! The CUDA runtime: finding the libraries, compiling kernels, keeping cubins, launching chains.
//!
//! The only place of the workspace that touches CUDA and the only one with `unsafe` (I1). The driver is reached through cudarc; NVRTC
//! through an own binding (see [`nvrtc`]). Nothing here panics when a library is missing: see [`search`] for where they are looked for.
//!
//! ```text
//! LaunchPlan --chain--> prepared launches        KernelSpec --bundle | cubin_cache | nvrtc--> Cubin
//!                              \                                                              /
//!                               program (modules loaded on one device) --execute--> caller's stream
//! ```
#![allow(unsafe_code)]

pub mod bare;
pub mod bundle;
pub mod chain;
pub mod compile;
pub mod cubin_cache;
pub mod device;
mod driver;
pub mod elf;
pub mod entry;
pub mod memory;
pub mod nvrtc;
pub mod probe;
pub mod program;
pub mod search;
pub mod stream;
mod tensor_map;
#[cfg(test)]
pub(crate) mod test_util;
pub mod usage;

pub use bare::Bare;
pub use bundle::{compile_bundle, Bundle};
pub use chain::check_launch;
pub use compile::{compile_kernel, Budget, Cubin};
pub use cubin_cache::CubinCache;
pub use device::CudaDevice;
pub use memory::{DeviceBuffer, DeviceRange};
pub use nvrtc::Nvrtc;
pub use program::Program;
pub use search::SearchPath;
pub use stream::{CudaEvent, CudaGraph, CudaStream};
