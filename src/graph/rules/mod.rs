//! Validation rules V1 to V28 and V45 to V48 of facts §2.3 as one table, evaluated in table order; the first violation is the error.
//!
//! Some rules only express what cuDNN could not run. Where this project's own engines run it, the rule carries a [`Lift`]: under
//! [`Compat::Frostgraph`] it is skipped when the lift's condition holds, and what the rule guarded becomes a fact that rows serve or
//! decline (V4 becomes `Feature::StridedHeadDim`, for instance). Under [`Compat::Cudnn`] every rule applies as it stands.

pub(crate) mod grouped_gemm;
mod lengths;
mod masks;
pub(crate) mod moe;
mod operands;
mod paged;
mod view;

use super::{Compat, Node, Op, Tensor};
use crate::{Error, ErrorCode, Result};
pub use grouped_gemm::{GemmRule, GEMM_RULES};
pub use moe::{MoeRule, MOE_RULES};
pub(super) use operands::operands;
use view::View;

/// Operations a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Both directions.
    All,
    /// `sdpa`.
    Forward,
    /// `sdpa_backward`.
    Backward,
}

/// Why and when a rule does not apply under [`Compat::Frostgraph`].
pub struct Lift {
    /// What the engines do instead.
    pub why: &'static str,
    /// Where the service is demanded: a field report or a line of the specification.
    pub source: &'static str,
    when: fn(&View) -> bool,
}

/// One validation rule.
pub struct Rule {
    /// Number in facts §2.3.
    pub number: u32,
    /// Error code of a violation.
    pub code: ErrorCode,
    /// Operations it is about.
    pub scope: Scope,
    /// What must not be, in one line.
    pub forbids: &'static str,
    /// Set where our own engines serve what the rule forbids.
    pub lift: Option<Lift>,
    check: fn(&View) -> Option<Fault>,
}

/// What was found, what is allowed, and what to do where that is not obvious.
pub(super) struct Fault {
    given: String,
    expected: &'static str,
    help: &'static str,
}

/// A violation when `found`; the text is built only then.
fn fault(found: bool, expected: &'static str, given: impl FnOnce() -> String) -> Option<Fault> {
    found.then(|| Fault { given: given(), expected, help: "" })
}

const fn rule(number: u32, code: ErrorCode, scope: Scope, forbids: &'static str, check: fn(&View) -> Option<Fault>) -> Rule {
    Rule { number, code, scope, forbids, lift: None, check }
}

impl Rule {
    const fn lifted(mut self, why: &'static str, source: &'static str, when: fn(&View) -> bool) -> Rule {
        self.lift = Some(Lift { why, source, when });
        self
    }
}

fn always(_: &View) -> bool {
    true
}

/// The rules in evaluation order. V1 to V3 come before inference, because inference needs operands of rank 4.
pub static RULES: &[Rule] = &[
    rule(1, ErrorCode::MissingPort, Scope::All, "a missing operand", operands::v1),
    rule(2, ErrorCode::DimRank, Scope::All, "an operand whose extents are not rank 4", operands::v2),
    rule(3, ErrorCode::StrideRank, Scope::All, "an operand whose strides are not rank 4", operands::v3),
    rule(4, ErrorCode::HeadDimStride, Scope::All, "a head-dim stride other than 1", operands::v4).lifted(
        "the CPU rows read any strides; others decline by the fact",
        "CPU engines serve a non-unit head stride",
        always,
    ),
    rule(5, ErrorCode::OneByOneBackward, Scope::Backward, "one query with one key", operands::v5).lifted(
        "one key means P = 1, so dQ = dK = 0 and dV = dO",
        "field reports 1 and 6",
        always,
    ),
    rule(6, ErrorCode::HeadRatio, Scope::All, "query heads that are no multiple of key/value heads", operands::v6),
    rule(7, ErrorCode::AlibiWithoutCausal, Scope::All, "ALiBi without a causal mask", masks::v7),
    rule(8, ErrorCode::BooleanBias, Scope::All, "a boolean bias", operands::v8),
    rule(9, ErrorCode::BothLengthForms, Scope::All, "lengths and cumulative lengths on one side", lengths::v9),
    rule(10, ErrorCode::PaddingWithoutLengths, Scope::All, "a padding mask without lengths on both sides", lengths::v10).lifted(
        "query lengths are optional: every query row is then valid",
        "sdpa_backward specification, padding: key lengths required, query lengths optional",
        lengths::only_kv,
    ),
    rule(11, ErrorCode::LengthsWithoutPadding, Scope::All, "lengths without a padding mask", lengths::v11),
    rule(12, ErrorCode::OneSidedLengths, Scope::All, "lengths on one side only", lengths::v12).lifted(
        "query lengths are optional: every query row is then valid",
        "sdpa_backward specification, padding: key lengths required, query lengths optional",
        lengths::only_kv,
    ),
    rule(13, ErrorCode::TotalsWithoutRagged, Scope::All, "declared token totals on a graph that is not ragged", lengths::v13),
    rule(14, ErrorCode::DropoutForms, Scope::All, "a dropout probability together with a dropout mask", masks::v14),
    rule(15, ErrorCode::DropoutOne, Scope::All, "a dropout probability of 1", masks::v15),
    rule(16, ErrorCode::BottomRightTall, Scope::All, "bottom-right causal with S_q above S_kv, unpadded", masks::v16).lifted(
        "the leading rows keep no key: O = 0, Stats = -inf, dQ = 0",
        "field report 51",
        always,
    ),
    rule(
        17,
        ErrorCode::BottomRightFeature,
        Scope::All,
        "bottom-right causal with bias, ALiBi, dropout, or ragged without a padding mask",
        masks::v17,
    ),
    rule(18, ErrorCode::WindowTall, Scope::All, "a left bound with S_q above S_kv, unpadded", masks::v18).lifted(
        "rows whose window holds no key are written: O = 0, Stats = -inf, dQ = 0",
        "field report 51, and fully masked rows are part of the CPU engines' service",
        always,
    ),
    rule(19, ErrorCode::WindowRagged, Scope::All, "a left bound on a ragged graph without a padding mask", masks::v19),
    rule(20, ErrorCode::NegativeRightBound, Scope::All, "a negative right bound", masks::v20),
    rule(21, ErrorCode::StatsDType, Scope::Forward, "Stats of a type other than FLOAT", operands::v21),
    rule(22, ErrorCode::RaggedWithoutPadding, Scope::Forward, "ragged operands without a padding mask", lengths::v22),
    rule(23, ErrorCode::ScoreModMask, Scope::Forward, "a score modification with a built-in mask", masks::v23),
    rule(24, ErrorCode::HeadDimMultiple, Scope::Forward, "head dims that are no multiples of 8", operands::v24),
    rule(25, ErrorCode::PagedWithoutLengths, Scope::Forward, "paged K/V without lengths on both sides", paged::v25),
    rule(26, ErrorCode::PagedMaxUnpaged, Scope::Forward, "a declared paged maximum without pages", paged::v26),
    rule(27, ErrorCode::PagedMaxBias, Scope::Forward, "a bias width other than the declared paged maximum", paged::v27),
    rule(28, ErrorCode::PagedMaxRngDump, Scope::Forward, "an rng dump width other than the declared paged maximum", paged::v28),
    rule(45, ErrorCode::ScoreModMaskBackward, Scope::Backward, "a score modification with a built-in mask", masks::v45),
    rule(46, ErrorCode::LeftBound, Scope::Backward, "a left bound of 0 or less", masks::v46),
    rule(47, ErrorCode::DSinkWithoutSink, Scope::Backward, "dSink without a sink", operands::v47),
    rule(48, ErrorCode::HeadDimMultipleBackward, Scope::Backward, "head dims that are no multiples of 8", operands::v24),
];

/// The first violation among rules V4 and up; V1 to V3 must hold.
pub(super) fn check(node: &Node, tensors: &[Tensor], compat: Compat) -> Result<()> {
    if let Op::GroupedGemmDsrelu(a) = &node.op {
        return grouped_gemm::check(node, a, tensors);
    }
    if let Op::MoeGroupedMatmul(a) = &node.op {
        return moe::check(node, a, tensors);
    }
    let view = View::new(node, tensors);
    for rule in RULES.iter().skip(3) {
        let in_scope = match rule.scope {
            Scope::All => true,
            Scope::Forward => !view.backward,
            Scope::Backward => view.backward,
        };
        if !in_scope {
            continue;
        }
        if let Some(fault) = (rule.check)(&view) {
            let lifted = compat == Compat::Frostgraph && rule.lift.as_ref().is_some_and(|l| (l.when)(&view));
            if !lifted {
                return Err(error(rule, fault));
            }
        }
    }
    Ok(())
}

fn error(rule: &Rule, fault: Fault) -> Error {
    let e = Error::new(rule.code, fault.given, format!("{} (rule V{})", fault.expected, rule.number));
    if fault.help.is_empty() {
        e
    } else {
        e.help(fault.help)
    }
}

/// Whether any of Q, K, V and O is packed.
pub(super) fn is_ragged(node: &Node, tensors: &[Tensor]) -> bool {
    node.op.mask().is_some() && View::new(node, tensors).ragged
}
