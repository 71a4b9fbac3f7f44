//! Resolved mask bounds. Query q keeps key k iff `q + diag - W <= k <= q + diag + R` (facts §3.3).

/// Band bounds around the diagonal.
///
/// `diag` is 0 (top-left) or `len_kv - len_q` (bottom-right), with the actual lengths of each sequence when padded or packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mask {
    /// W: keys further left than this are masked. A window *length* L is W = L - 1.
    pub left: Option<i64>,
    /// R: keys further right than this are masked; 0 is causal.
    pub right: Option<i64>,
    /// Anchor at the bottom-right corner; only meaningful with a bound.
    pub bottom_right: bool,
}

impl Mask {
    /// Offset of the diagonal for one sequence.
    pub fn diag(&self, len_q: i64, len_kv: i64) -> i64 {
        if self.bottom_right {
            len_kv - len_q
        } else {
            0
        }
    }

    /// Half-open range of kept keys of one query row, clipped to `[0, len_kv)`; may be empty (start >= end).
    pub fn kept(&self, q: i64, len_q: i64, len_kv: i64) -> (i64, i64) {
        let d = q + self.diag(len_q, len_kv);
        let lo = self.left.map_or(0, |w| d.saturating_sub(w)).max(0);
        let hi = self.right.map_or(len_kv, |r| d.saturating_add(r).saturating_add(1)).min(len_kv);
        (lo, hi.max(lo))
    }

    /// Whether any bound exists.
    pub fn is_bounded(&self) -> bool {
        self.left.is_some() || self.right.is_some()
    }
}
