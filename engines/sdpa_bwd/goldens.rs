//! Launch plans of typical graphs as text, compared with `tests/golden/*.launch`. `BLESS=1` rewrites them, except where `CI` is set.

use super::rows;
use crate::sdpa::testing::{Case, Order};
use crate::{DType, Knob, Knobs, Target};
use std::path::PathBuf;

pub(super) fn cases() -> Vec<(&'static str, &'static str, Case, Knobs)> {
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

#[test]
fn launch_plans_match_their_goldens() {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden"));
    let bless = std::env::var_os("BLESS").is_some();
    assert!(!(bless && std::env::var_os("CI").is_some()), "goldens are not blessed in CI");
    let mut stale = Vec::new();
    for (name, device, case, knobs) in cases() {
        let target = device.strip_prefix("sm_").and_then(|d| d.parse().ok()).and_then(Target::describe).expect("a known device");
        let row = &rows::ROWS[0];
        let facts = case.facts();
        assert_eq!(super::mismatch(row, &facts, &knobs, &target), None, "{name}");
        let plan = (row.lower)(&facts, &knobs, &target).expect("an accepted graph lowers");
        let text = format!("{} {}{knobs} on {device}\n{plan}", row.id, row.name);
        let path = folder.join(format!("sdpa_bwd_{name}.launch"));
        let old = std::fs::read_to_string(&path).unwrap_or_default();
        if old == text {
            continue;
        }
        if bless {
            std::fs::write(&path, &text).expect("the golden folder is writable");
        } else {
            let line = text.lines().zip(old.lines()).position(|(a, b)| a != b).unwrap_or(old.lines().count());
            let at = |t: &str| t.lines().nth(line).unwrap_or("(end)").to_string();
            stale.push(format!("{name}.launch line {}:\n  golden {}\n  now    {}", line + 1, at(&old), at(&text)));
        }
    }
    assert!(stale.is_empty(), "{}\nBLESS=1 cargo test -p frostgraph-engines goldens rewrites them", stale.join("\n"));
}
