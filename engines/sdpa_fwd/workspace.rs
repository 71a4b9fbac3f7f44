//! Workspace of a split decode: every split's rows, normalised, and their natural-log LSE (S4).

use super::config::Decode;
use crate::sdpa::arith::product;
use crate::{LaunchPlan, SdpaFacts};

/// Region indices of a split plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Regions {
    /// fp32 `[splits, B, H_q, S_q, padded d_v]`.
    pub part_o: usize,
    /// fp32 `[splits, B, H_q, S_q]`.
    pub part_lse: usize,
}

/// Appends the regions to a plan: none for one split. The outer `None` is a size that leaves 64 bits.
pub fn carve(f: &SdpaFacts, c: &Decode, splits: i64, plan: &mut LaunchPlan) -> Option<Option<Regions>> {
    if splits <= 1 {
        return Some(None);
    }
    let rows = product(&[4, splits, f.b, f.h_q, f.s_q])?;
    let mut add = |name, bytes: i64| plan.region(name, u64::try_from(bytes).ok()?);
    Some(Some(Regions { part_o: add("part_o", rows.checked_mul(c.d_v)?)?, part_lse: add("part_lse", rows)? }))
}
