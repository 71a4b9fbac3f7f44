//! Mask resolution of facts §3.3, with the conflict policy of the two directions.

use crate::graph::{Alignment, Mask as Written};
use frostgraph_engines::sdpa::{Direction, Mask};

/// Bounds as they were spelled, the later setter's value where two conflict.
pub(super) struct Spelling {
    /// Length of the left bound.
    left: Option<i64>,
    right: Option<i64>,
    bottom_right: bool,
    conflict: Option<&'static str>,
}

impl Spelling {
    /// T7: conflicting spellings are malformed, except on a half-precision backward, where an explicit left bound beats the window, an
    /// explicit right bound beats the causal flag's 0, and the bottom-right flag decides the alignment.
    pub fn new(w: &Written, direction: Direction) -> Spelling {
        let causal = w.causal || w.causal_bottom_right;
        let conflict = match direction {
            Direction::Backward => None,
            Direction::Forward if w.sliding_window.is_some() && w.left_bound.is_some() => {
                Some("sliding_window_length and diagonal_band_left_bound are both given")
            }
            Direction::Forward if w.causal && w.causal_bottom_right => {
                Some("use_causal_mask and use_causal_mask_bottom_right are both given")
            }
            Direction::Forward if causal && w.right_bound.is_some() => {
                Some("a causal mask and diagonal_band_right_bound are both given")
            }
            Direction::Forward => None,
        };
        Spelling {
            left: w.left_bound.or(w.sliding_window),
            right: w.right_bound.or(causal.then_some(0)),
            bottom_right: w.causal_bottom_right || (w.alignment == Alignment::BottomRight && !w.causal),
            conflict,
        }
    }

    /// Why the spelling is malformed for every engine.
    pub fn invalid(&self) -> Option<String> {
        if let Some(c) = self.conflict {
            return Some(c.to_string());
        }
        if let Some(r) = self.right.filter(|&r| r < 0) {
            return Some(format!("right bound {r} is below 0"));
        }
        self.left.filter(|&l| l < 1).map(|l| format!("left bound {l} is below 1: a length of L keeps L keys"))
    }

    /// W = L - 1 (T5); the corner counts only where a bound exists.
    pub fn resolve(&self) -> Mask {
        let left = self.left.map(|l| l.saturating_sub(1));
        Mask { left, right: self.right, bottom_right: self.bottom_right && (left.is_some() || self.right.is_some()) }
    }
}
