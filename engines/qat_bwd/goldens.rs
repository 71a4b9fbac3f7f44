//! Typical NVFP4 backward graphs whose launch plans are kept as text.

use super::rows;
use crate::sdpa::goldens::{self, Golden};
use crate::sdpa::testing::{Case, Order};
use crate::sdpa::Recipe;
use crate::{DType, Knob, Knobs, Row};

fn row(name: &str) -> &'static Row {
    rows::ROWS.iter().find(|r| r.name == name).expect("the row")
}

pub(super) fn sm90() -> &'static Row {
    row("nvfp4_qat_bwd_sm90")
}

pub(super) fn sm120() -> &'static Row {
    row("nvfp4_qat_bwd_sm120")
}

/// A graph as the specification has it: bf16, contiguous (B, H, S, D), head dim 128.
pub(super) fn plain() -> Case {
    Case { recipe: Recipe::Nvfp4Qat, order: Order::Bhsd, dtype: DType::BF16, ..Case::default() }
}

pub(super) fn cases() -> Vec<Golden> {
    let none = Knobs::NONE;
    vec![
        ("cross_d128", "sm_120", plain(), none.clone()),
        ("causal_d64", "sm_120", Case { s_kv: 200, right: Some(0), d_qk: 64, d_v: 64, ..plain() }, none.clone()),
        (
            "relay_gqa_window_padded_bshd_d64",
            "sm_90",
            Case {
                h_kv: 2,
                left: Some(63),
                right: Some(0),
                padded: true,
                deterministic: true,
                order: Order::Bshd,
                stats_gap: 3,
                d_qk: 64,
                d_v: 64,
                ..plain()
            },
            none,
        ),
        ("large_tiles_d128", "sm_90", plain(), Knobs::new(&[(Knob::TileM, 64), (Knob::TileN, 128)])),
    ]
}

pub(super) fn sm90_cases() -> Vec<Golden> {
    let [_, causal, (_, _, relay, none), _] = <[Golden; 4]>::try_from(cases()).expect("four cases");
    vec![
        ("sm90_causal_d64", "sm_90", causal.2, none.clone()),
        ("sm90_relay_gqa_window_padded_bshd_d64", "sm_90", relay, none.clone()),
        ("sm90_long_gqa_d128", "sm_90", Case { s_q: 16_384, s_kv: 16_384, h_kv: 1, ..plain() }, none),
    ]
}

#[test]
fn launch_plans_match_their_goldens() {
    let (portable, hopper) = (cases(), sm90_cases());
    let all = portable.iter().map(|g| (sm120(), g)).chain(hopper.iter().map(|g| (sm90(), g)));
    goldens::check("nvfp4_qat_bwd", all, super::mismatch);
}
