//! Operation graphs: tensors, nodes, the builder, freezing and validation.
//!
//! A [`Graph`] is built up by hand or read from JSON, then frozen: uids are assigned, shapes inferred, rules checked, nodes ordered.
//! Only a frozen graph can be analysed, so nothing downstream sees an unvalidated one.

mod attrs;
mod builder;
mod check;
mod freeze;
mod frozen;
mod grouped_gemm;
mod infer;
mod moe;
mod node;
mod order;
mod ports;
mod qat;
pub mod rules;
mod sdpa;
mod tensor;
mod uids;

pub use attrs::{Alignment, AttnScale, Dropout, Implementation, Mask, QatAttrs, SdpaAttrs, SdpaBackwardAttrs};
pub use builder::{Compat, Graph, GraphOptions};
pub use frozen::FrozenGraph;
pub use grouped_gemm::{BMajor, DsreluFormula, GemmWeights, GroupedGemmDsrelu, GroupedGemmDsreluAttrs, GroupedGemmDsreluOutputs};
pub use moe::{Dequantized, MoeGroupedMatmul, MoeGroupedMatmulAttrs, MoeGroupedMatmulOutputs, MoeMode, MoeScales};
pub use node::{Node, Op};
pub use ports::{InPort, OutPort};
pub use qat::{Nvfp4Qat, Nvfp4QatBackward, Nvfp4QatGrads, Nvfp4QatOutputs};
pub use sdpa::{Sdpa, SdpaBackward, SdpaGrads, SdpaOutputs};
pub use tensor::{RaggedOffset, Reordering, ScalarValue, Tensor, TensorId};
