//! Typical forward graphs whose launch plans are kept as text.

use super::rows;
use crate::sdpa::goldens::{self, Golden};
use crate::sdpa::testing::{Case, Order};
use crate::sdpa::Direction;
use crate::{DType, Knob, Knobs, Row};

pub(super) fn decode_row() -> &'static Row {
    &rows::ROWS[0]
}

pub(super) fn hopper_row() -> &'static Row {
    &rows::ROWS[1]
}

pub(super) fn prefill_row() -> &'static Row {
    &rows::ROWS[2]
}

pub(super) fn cases() -> Vec<(&'static Row, Golden)> {
    let none = Knobs::NONE;
    let case = Case { direction: Direction::Forward, ..Case::default() };
    let one = Case { s_q: 1, h_kv: 2, s_kv: 4096, ..case.clone() };
    let split = |n| Knobs::new(&[(Knob::SplitKv, n)]);
    let prefill = [
        ("prefill_dense_d128", "sm_90", case.clone(), none.clone()),
        (
            "prefill_causal_gqa_packed_l2_d64",
            "sm_80",
            Case { h_kv: 2, right: Some(0), bottom_right: true, d_qk: 64, d_v: 64, ..case.clone() },
            Knobs::new(&[(Knob::PackGqa, 1), (Knob::SchedPolicy, 2)]),
        ),
        (
            "prefill_packed_tokens_i64_mla_192_128",
            "sm_121",
            Case { d_qk: 192, right: Some(0), thd: Some(DType::I64), token_major_stats: true, sink: true, ..case.clone() },
            none.clone(),
        ),
        (
            "prefill_bias_window_padded_strided_stats_d40",
            "sm_86",
            Case {
                bias: Some((DType::F32, 1)),
                left: Some(31),
                right: Some(5),
                padded: true,
                stats_gap: 3,
                d_qk: 40,
                d_v: 24,
                order: Order::Bhsd,
                dtype: DType::F16,
                stats_log2: true,
                ..case.clone()
            },
            Knobs::new(&[(Knob::TileM, 64), (Knob::TileN, 128), (Knob::SchedPolicy, 1)]),
        ),
        ("prefill_inference_d256", "sm_120", Case { d_qk: 256, d_v: 256, stats: false, ..case.clone() }, none.clone()),
    ];
    let decode = [
        ("decode_one_launch_d128", "sm_80", one.clone(), none),
        ("decode_split_8_d128", "sm_90", one.clone(), split(8)),
        (
            "decode_split_sink_log2_speculative_padded_d256",
            "sm_120",
            Case {
                s_q: 4,
                d_qk: 256,
                d_v: 256,
                right: Some(0),
                bottom_right: true,
                padded: true,
                sink: true,
                stats_log2: true,
                ..one
            },
            split(4),
        ),
    ];
    let sched = |n| Knobs::new(&[(Knob::SchedPolicy, n)]);
    let none_of_all = Knobs::NONE;
    let hopper = [
        ("hopper_causal_gqa_d128", "sm_90", Case { h_kv: 2, right: Some(0), ..case.clone() }, sched(2)),
        (
            "hopper_packed_tokens_i64_mla_192_128",
            "sm_90",
            Case {
                d_qk: 192,
                right: Some(0),
                thd: Some(DType::I64),
                token_major_stats: true,
                sink: true,
                stats_log2: true,
                ..case.clone()
            },
            sched(0),
        ),
        (
            "hopper_window_padded_strided_stats_d40_f16",
            "sm_90",
            Case {
                left: Some(31),
                right: Some(5),
                padded: true,
                stats_gap: 3,
                d_qk: 40,
                d_v: 24,
                order: Order::Bhsd,
                dtype: DType::F16,
                ..case.clone()
            },
            sched(1),
        ),
        (
            "hopper_packed_heads_short_tiles_d64",
            "sm_90",
            Case { h_q: 6, h_kv: 2, right: Some(0), d_qk: 64, d_v: 64, ..case.clone() },
            Knobs::new(&[(Knob::TileM, 64), (Knob::PackGqa, 1), (Knob::SchedPolicy, 2)]),
        ),
        (
            "hopper_bias_negative_scale_d128",
            "sm_90",
            Case { bias: Some((DType::F32, 1)), scale: -0.1, ..case.clone() },
            none_of_all.clone(),
        ),
        (
            "hopper_bias_packed_heads_d64",
            "sm_90",
            Case { h_q: 6, h_kv: 2, bias: Some((DType::BF16, 2)), d_qk: 64, d_v: 64, ..case.clone() },
            Knobs::new(&[(Knob::TileM, 64), (Knob::PackGqa, 1)]),
        ),
        ("hopper_inference_d256", "sm_90", Case { d_qk: 256, d_v: 256, stats: false, ..case.clone() }, sched(0)),
    ];
    let prefill = prefill.map(|g| (prefill_row(), g));
    let prefill = prefill.into_iter().chain(hopper.map(|g| (hopper_row(), g)));
    prefill.into_iter().chain(decode.map(|g| (decode_row(), g))).collect()
}

#[test]
fn launch_plans_match_their_goldens() {
    goldens::check("sdpa_fwd", cases().iter().map(|(row, g)| (*row, g)), super::mismatch);
}
