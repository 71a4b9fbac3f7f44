//! frostgraph: a graph compiler for fused attention kernels.
//!
//! Describe attention as a graph, build it for a device, look at the ranked plans and at the reason of every decline, pick one, run it.
//! Without a GPU the same graph runs on CPU engines, which are ordinary rows of the same registry.
//!
//! ```
//! use frostgraph::prelude::*;
//! # fn main() -> frostgraph::Result<()> {
//! let mut g = Graph::new(GraphOptions { io: DType::F32, ..Default::default() });
//! let [q, k, v] = ["Q", "K", "V"].map(|name| g.tensor(Tensor::new(name, [1, 2, 4, 8]))); // (batch, heads, sequence, head dim)
//! let out = g.sdpa(q, k, v, Sdpa { mask: Mask::causal(), attn_scale: Some(AttnScale::Value(0.35)), ..Default::default() })?;
//! g.output(out.o)?;
//!
//! let built = g.build(&Device::cpu())?;
//! let exe = built.best()?.compile()?; // or built.select_plan(i)?; built.plans() and built.declined() list what there is
//! let (x, mut o) = (vec![1.0f32; 64], vec![0.0f32; 64]);
//! let mut bindings = Bindings::new();
//! bindings.read(built.uid(q)?, &x).read(built.uid(k)?, &x).read(built.uid(v)?, &x).write(built.uid(out.o)?, &mut o);
//! let mut workspace = HostWorkspace::new(exe.workspace_bytes()).expect("memory");
//! exe.execute(&Stream::cpu(), &mut bindings, &mut workspace.workspace())?;
//! assert!(o.iter().all(|x| (x - 1.0).abs() < 1e-6)); // a weighted mean of ones
//! # Ok(())
//! # }
//! ```
#![doc = include_str!("ARCHITECTURE.md")]
#![deny(unsafe_code)]

pub mod analyze;
pub mod device;
pub mod error;
pub mod exec;
mod files;
pub mod graph;
pub mod json;
pub mod plan;
#[cfg(feature = "cuda")]
pub mod runtime;
pub mod sample;
pub mod standalone;
pub mod tensor_file;

pub use device::Device;
pub use error::{Error, ErrorCode, Result};
pub use exec::{Bindings, Executable, HostWorkspace, Stream, Workspace};
pub use frostgraph_engines as engines;
pub use frostgraph_engines::DType;
pub use graph::{Graph, GraphOptions, Mask, Sdpa, SdpaBackward, Tensor, TensorId};
pub use plan::{BuildOptions, Built, Plan, PlanRecord};

/// Everything that building and running a graph takes.
pub mod prelude {
    pub use crate::exec::{Bindings, Executable, HostWorkspace, Stream, Workspace};
    pub use crate::graph::{
        Alignment, AttnScale, Dropout, GemmWeights, Graph, GraphOptions, GroupedGemmDsrelu, GroupedGemmDsreluAttrs, Mask,
        MoeGroupedMatmul, MoeMode, MoeScales, Nvfp4Qat, Nvfp4QatBackward, Sdpa, SdpaBackward, SdpaGrads, SdpaOutputs, Tensor,
        TensorId,
    };
    pub use crate::plan::{BuildOptions, Built, Plan, PlanRecord};
    pub use crate::{DType, Device, Error, ErrorCode, Result};
}
