//! The grouped product: what its operands must be (the rules of facts §9.2 that no row can lift, under their own numbers), and inference of
//! what the user left open.
//!
//! Rules about tiles, clusters and vectorised arithmetic are knobs of the rows and end in declines; those about determinism's workspaces do
//! not arise, because an executable owns them.

mod infer;
mod layout;
mod operands;
mod shape;
mod types;
mod view;

use crate::graph::infer::overflow;
use crate::graph::{GroupedGemmDsreluAttrs, Node, Tensor};
use crate::{Error, ErrorCode, Result};
pub(in crate::graph) use infer::{dtypes, input_strides, outputs};
pub(crate) use layout::n_major;
use layout::{b_major, layouts};
pub(in crate::graph) use operands::{foreign_ports, operands};
use operands::{idle_outputs, missing_scales, scale_group, srelu_scales};
use shape::{contraction, experts, extent_bytes, row_align, shapes};
use types::{c_type, fixed_types, input_types, result_types, scale_blocks, scale_types};
pub(crate) use view::payload;
use view::View;

/// What was found and what is allowed.
type Fault = Option<(String, String)>;

/// One rule of facts §9.2.
pub struct GemmRule {
    /// Number there.
    pub number: u32,
    /// Error code of a violation.
    pub code: ErrorCode,
    /// What must not be, in one line.
    pub forbids: &'static str,
    check: fn(&View<'_>) -> Fault,
}

const fn rule(number: u32, code: ErrorCode, forbids: &'static str, check: fn(&View<'_>) -> Fault) -> GemmRule {
    GemmRule { number, code, forbids, check }
}

/// The rules in evaluation order.
pub static GEMM_RULES: &[GemmRule] = &[
    rule(1, ErrorCode::GemmScaleGroup, "SFD_row, SFD_col and norm_const that are not all present or all absent", scale_group),
    rule(2, ErrorCode::GemmContraction, "a K of B other than A's", contraction),
    rule(3, ErrorCode::GemmShape, "an operand of other extents than facts §9.1 gives it", shapes),
    rule(4, ErrorCode::GemmLayout, "A that is not k-major, B that is neither, C or D that is not n-major", layouts),
    rule(5, ErrorCode::GemmInputType, "A other than E2M1, packed bytes, E4M3 or E5M2, and B of another type than A", input_types),
    rule(6, ErrorCode::GemmScaleType, "scales other than E8M0 or E4M3, and scales of different types", scale_types),
    rule(
        7,
        ErrorCode::GemmScaleBlock,
        "scale blocks other than 16 and 32, E4M3 scales of 32, FP8 inputs with blocks of 16",
        scale_blocks,
    ),
    rule(8, ErrorCode::GemmFixedType, "an operand whose type is fixed and that has another one", fixed_types),
    rule(9, ErrorCode::GemmCType, "C of a type other than f32, f16, bf16, E4M3, E5M2", c_type),
    rule(10, ErrorCode::GemmResultType, "results of a type that the inputs do not lead to, or of different types", result_types),
    rule(11, ErrorCode::GemmMissingScales, "FP8 results without SFD_row, SFD_col and norm_const", missing_scales),
    rule(12, ErrorCode::GemmIdleOutput, "an output that results of this type do not have", idle_outputs),
    rule(13, ErrorCode::GemmSreluScales, "D_srelu in FP8 without its column scales, or those without it", srelu_scales),
    rule(14, ErrorCode::GemmBMajor, "FP4 with n-major B", b_major),
    rule(19, ErrorCode::GemmRowAlign, "an alignment of the experts' rows other than 256", row_align),
    rule(20, ErrorCode::GemmExtentBytes, "contiguous extents of A, B or D that are no multiples of 16 bytes", extent_bytes),
    rule(21, ErrorCode::GemmExperts, "more than 1024 experts", experts),
];

/// Operands of other operations, attribute values, and the rules in order; the first violation is the error.
pub(in crate::graph) fn check(node: &Node, a: &GroupedGemmDsreluAttrs, tensors: &[Tensor]) -> Result<()> {
    let bad = |given: String, expected: &str| Err(Error::new(ErrorCode::BadAttribute, given, expected));
    if let Some(s) = a.tanh_clamp_scale.filter(|s| !s.is_finite() || *s <= 0.0) {
        return bad(format!("tanh_clamp_scale {s}"), "a finite number above 0");
    }
    let v = View { node, a, tensors };
    // Weights behind pointers have no extents of their own that would have been checked: with padding to whole atoms, in bits, per expert.
    let (m, n, k, l) = (v.m(), v.n(), v.k(), v.experts());
    let fits = |rows: i64, columns: i64, slices: i64| {
        let padded = rows.checked_add(128)?.checked_mul(columns.checked_add(128)?)?;
        padded.checked_mul(slices.max(1))?.checked_mul(64)
    };
    if [(m, k, 1), (n, k, l), (m, n, 1), (n, 1, l)].into_iter().any(|(r, c, s)| fits(r, c, s).is_none()) {
        return Err(overflow(&[m, n, k, l]));
    }
    for rule in GEMM_RULES {
        if let Some((given, expected)) = (rule.check)(&v) {
            return Err(Error::new(rule.code, given, format!("{expected} (rule {} of facts §9.2)", rule.number)));
        }
    }
    Ok(())
}
