//! The plain grouped product: what its operands must be, under numbers of its own, and inference of what the user left open.

mod infer;
mod operands;
mod routing;
mod scales;
mod types;
mod view;

use crate::graph::{MoeGroupedMatmulAttrs, Node, Tensor};
use crate::{Error, ErrorCode, Result};
pub(in crate::graph) use infer::{dtypes, input_strides, outputs};
use operands::{contraction, layouts, shapes};
pub(in crate::graph) use operands::{foreign_ports, operands};
use routing::{offsets, routing, top_k};
use scales::{scale_shapes, scales};
use types::{fixed_types, input_types, output_type};
pub(crate) use view::View;

/// What was found and what is allowed.
type Fault = Option<(String, String)>;

/// One rule of the plain grouped product.
pub struct MoeRule {
    /// Number; the code is `FG13` and this number.
    pub number: u32,
    /// Error code of a violation.
    pub code: ErrorCode,
    /// What must not be, in one line.
    pub forbids: &'static str,
    check: fn(&View<'_>) -> Fault,
}

const fn rule(number: u32, code: ErrorCode, forbids: &'static str, check: fn(&View<'_>) -> Fault) -> MoeRule {
    MoeRule { number, code, forbids, check }
}

/// The rules in evaluation order.
pub static MOE_RULES: &[MoeRule] = &[
    rule(1, ErrorCode::MoeShape, "operands of other extents than (1, T, K), (E, K, N), (1, R, 1) and (1, R, N)", shapes),
    rule(2, ErrorCode::MoeContraction, "a K of the weights other than the token's", contraction),
    rule(3, ErrorCode::MoeLayout, "FP4 values whose K is not contiguous or leaves half a byte", layouts),
    rule(4, ErrorCode::MoeInputType, "tokens that are no floats, and weights of another type", input_types),
    rule(5, ErrorCode::MoeScales, "block scales of one operand only, of other types or blocks, or of wide operands", scales),
    rule(6, ErrorCode::MoeScaleShape, "scales of other extents than one a block, or whole atoms of 128 by 4", scale_shapes),
    rule(7, ErrorCode::MoeFixedType, "offsets that are no integers, indices and status other than INT32", fixed_types),
    rule(8, ErrorCode::MoeRouting, "indices that the mode does not have", routing),
    rule(9, ErrorCode::MoeOffsets, "a number of offsets that is neither G nor G + 1 for a multiple G of E", offsets),
    rule(10, ErrorCode::MoeOutputType, "an output other than f32, f16, bf16", output_type),
    rule(11, ErrorCode::MoeTopK, "a top_k of scatter that the rows are no multiple of", top_k),
];

/// The rules in order; the first violation is the error.
pub(in crate::graph) fn check(node: &Node, a: &MoeGroupedMatmulAttrs, tensors: &[Tensor]) -> Result<()> {
    let v = View { node, a, tensors };
    for rule in MOE_RULES {
        if let Some((given, expected)) = (rule.check)(&v) {
            let expected = format!("{expected} (rule {} of the plain grouped product)", rule.number);
            return Err(Error::new(rule.code, given, expected));
        }
    }
    Ok(())
}
