//! Typical backward graphs whose launch plans are kept as text.

use super::rows;
use crate::sdpa::goldens::{self, Golden};
use crate::sdpa::testing::{Case, Order};
use crate::{DType, Knob, Knobs};

pub(super) fn cases() -> Vec<Golden> {
    let none = Knobs::NONE;
    let case = Case::default();
    vec![
        ("dense_d64", "sm_120", Case { s_q: 512, s_kv: 512, d_qk: 64, d_v: 64, ..case.clone() }, none.clone()),
        (
            "two_kernel_gqa_causal_d128",
            "sm_120",
            Case { h_kv: 2, right: Some(0), bottom_right: true, deterministic: true, ..case.clone() },
            none.clone(),
        ),
        (
            "relay_window_f16_d64",
            "sm_90",
            Case { left: Some(63), right: Some(0), deterministic: true, d_qk: 64, d_v: 64, dtype: DType::F16, ..case.clone() },
            none.clone(),
        ),
        (
            "packed_gqa_token_major_i64_d128",
            "sm_90",
            Case {
                h_kv: 4,
                right: Some(0),
                thd: Some(DType::I64),
                token_major_stats: true,
                totals: Some((350, 500)),
                dsink: true,
                sink: true,
                ..case.clone()
            },
            none.clone(),
        ),
        (
            "broadcast_dbias_deterministic_sink_d32",
            "sm_120",
            Case {
                bias: Some((DType::F32, 1)),
                dbias: Some(DType::BF16),
                sink: true,
                dsink: true,
                deterministic: true,
                d_qk: 32,
                d_v: 32,
                ..case.clone()
            },
            none.clone(),
        ),
        (
            "padded_mla_96_40_bhsd_strided_stats",
            "sm_121",
            Case { padded: true, right: Some(5), d_qk: 96, d_v: 40, order: Order::Bhsd, stats_gap: 3, ..case.clone() },
            none.clone(),
        ),
        ("single_buffer_d256", "sm_120", Case { d_qk: 256, d_v: 256, b: 1, h_q: 1, h_kv: 1, s_q: 1, ..case.clone() }, none),
        ("explicit_tiles_d128", "sm_90", Case { right: Some(0), ..case }, Knobs::new(&[(Knob::TileM, 64), (Knob::TileN, 128)])),
    ]
}

fn row(name: &str) -> &'static crate::Row {
    rows::ROWS.iter().find(|r| r.name == name).expect("the row")
}

pub(super) fn sm90() -> &'static crate::Row {
    row(rows::SM90_NAME)
}

pub(super) fn sm120() -> &'static crate::Row {
    row("sdpa_bwd_sm120")
}

pub(super) fn sm90_cases() -> Vec<Golden> {
    let none = Knobs::NONE;
    let case = Case::default();
    vec![
        ("sm90_dense_d64", "sm_90", Case { s_q: 512, s_kv: 512, d_qk: 64, d_v: 64, ..case.clone() }, none.clone()),
        (
            "sm90_gqa_causal_deterministic_d128",
            "sm_90",
            Case { h_kv: 2, right: Some(0), bottom_right: true, deterministic: true, ..case.clone() },
            none.clone(),
        ),
        (
            "sm90_long_gqa_window_f16_d64",
            "sm_90",
            Case {
                s_q: 32_768,
                s_kv: 32_768,
                h_kv: 2,
                left: Some(63),
                right: Some(0),
                d_qk: 64,
                d_v: 64,
                dtype: DType::F16,
                ..case.clone()
            },
            none.clone(),
        ),
        (
            "sm90_packed_gqa_i64_sink_96_40",
            "sm_90",
            Case {
                h_kv: 4,
                right: Some(0),
                thd: Some(DType::I64),
                token_major_stats: true,
                totals: Some((350, 500)),
                dsink: true,
                sink: true,
                d_qk: 96,
                d_v: 40,
                ..case.clone()
            },
            none.clone(),
        ),
        ("sm90_padded_192_128", "sm_90", Case { padded: true, d_qk: 192, d_v: 128, ..case.clone() }, none.clone()),
        (
            "sm90_broadcast_dbias_deterministic_d64",
            "sm_90",
            Case {
                bias: Some((DType::F32, 1)),
                dbias: Some(DType::BF16),
                deterministic: true,
                d_qk: 64,
                d_v: 64,
                ..case.clone()
            },
            none.clone(),
        ),
        (
            "sm90_padded_gqa_deterministic_200_136",
            "sm_90",
            Case { padded: true, h_kv: 4, right: Some(0), deterministic: true, d_qk: 200, d_v: 136, ..case },
            none,
        ),
    ]
}

#[test]
fn launch_plans_match_their_goldens() {
    let (portable, hopper) = (cases(), sm90_cases());
    let all = portable.iter().map(|g| (sm120(), g)).chain(hopper.iter().map(|g| (sm90(), g)));
    goldens::check("sdpa_bwd", all, super::mismatch);
}
