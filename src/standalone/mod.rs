//! Functions for people without a graph: thin over the graph, with the executables kept.
//!
//! ```
//! use frostgraph::standalone::{sdpa_backward, scratch_workspace_bytes, Operand, SdpaBackwardCall};
//! use frostgraph::prelude::*;
//! # fn main() -> frostgraph::Result<()> {
//! let dim = [1, 1, 4, 8];
//! let (x, lse) = (vec![0.5f32; 32], vec![0.0f32; 4]);
//! let [mut dq, mut dk, mut dv] = [(); 3].map(|()| vec![0.0f32; 32]);
//! let input = || Operand::read(&x, dim);
//! let mut call = SdpaBackwardCall::new(input(), input(), input(), input(), input(), Operand::read(&lse, [1, 1, 4, 1]));
//! (call.dq, call.dk, call.dv) = (Operand::write(&mut dq, dim), Operand::write(&mut dk, dim), Operand::write(&mut dv, dim));
//! call.causal = true;
//! let mut scratch = HostWorkspace::new(scratch_workspace_bytes(&Device::cpu(), &call)?).expect("memory");
//! sdpa_backward(&Device::cpu(), &Stream::cpu(), call, &mut scratch.workspace())?;
//! # assert!(dv.iter().all(|x| x.is_finite()));
//! # Ok(())
//! # }
//! ```

mod backward;
mod cache;
mod grouped_gemm;
mod moe;
mod operand;
mod qat;
mod run;

pub use backward::{scratch_workspace_bytes, sdpa_backward, SdpaBackwardCall};
pub use grouped_gemm::{
    dbias_workspace_shape, dprob_workspace_shape, grouped_gemm_dsrelu, grouped_gemm_workspace_bytes, reduce_dbias_workspace,
    reduce_dprob_workspace, GroupedGemmDsreluCall,
};
pub use moe::{moe_grouped_matmul, moe_grouped_matmul_workspace_bytes, MoeGroupedMatmulCall};
pub use operand::{Element, Operand};
pub use qat::{
    nvfp4_attention_qat_backward, nvfp4_attention_qat_forward, AllocatedGradients, Nvfp4QatBackwardCall, Nvfp4QatForwardCall,
};
