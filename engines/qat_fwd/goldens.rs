//! Typical QAT forwards whose launch plans are kept as text.

use super::rows;
use crate::sdpa::goldens::{self, Golden};
use crate::sdpa::testing::{Case, Order};
use crate::sdpa::{Direction, Recipe};
use crate::{Knob, Knobs, Row};

pub(super) fn sm90_row() -> &'static Row {
    &rows::ROWS[0]
}

pub(super) fn mma_row() -> &'static Row {
    &rows::ROWS[1]
}

pub(super) fn case() -> Case {
    Case { direction: Direction::Forward, recipe: Recipe::Nvfp4Qat, ..Case::default() }
}

pub(super) fn cases() -> Vec<(&'static Row, Golden)> {
    let mma = [
        ("dense_d128", "sm_90", case(), Knobs::NONE),
        (
            "causal_gqa_padded_strided_stats_l2_d64",
            "sm_120",
            Case {
                h_kv: 2,
                right: Some(0),
                bottom_right: true,
                padded: true,
                stats_gap: 3,
                d_qk: 64,
                d_v: 64,
                order: Order::Bhsd,
                ..case()
            },
            Knobs::new(&[(Knob::SchedPolicy, 2)]),
        ),
        (
            "window_without_stats_d80_48",
            "sm_100",
            Case { left: Some(31), right: Some(5), d_qk: 80, d_v: 48, stats: false, ..case() },
            Knobs::NONE,
        ),
    ];
    let [_, causal, window] = mma.clone();
    let sm90 = [
        ("sm90_causal_gqa_padded_strided_stats_l2_d64", "sm_90", causal.2, causal.3),
        ("sm90_window_without_stats_d80_48", "sm_90", window.2, window.3),
    ];
    mma.map(|g| (mma_row(), g)).into_iter().chain(sm90.map(|g| (sm90_row(), g))).collect()
}

#[test]
fn launch_plans_match_their_goldens() {
    goldens::check("nvfp4_qat_fwd", cases().iter().map(|(row, g)| (*row, g)), super::mismatch);
}
