//! The heuristics of the CUDA forward rows: splits, visible keys, ranked lists.

use super::heuristics::{split_inputs, visible_keys};
use super::split;
use super::tests::{forward, target, token};
use crate::sdpa::testing::Case;
use crate::{Mode, Row};

fn ranked(case: &Case, cc: u32, mode: Mode) -> Vec<String> {
    let rows: Vec<&'static Row> = super::rows::ROWS.iter().collect();
    super::heuristics::recommend(&case.facts(), &target(cc), &rows, mode).iter().map(|c| format!("{}{}", c.id, c.knobs)).collect()
}

/// One CTA a multiprocessor, as measured on an H200 for one token, heads 32/8, d 128. At 1,024 keys 4 and 8 splits took the same time.
#[test]
fn splits_agree_with_measurement() {
    for (b, s_kv, want) in [
        (1, 1024, 8),
        (1, 4096, 16),
        (1, 8192, 16),
        (1, 32_768, 16),
        (1, 131_072, 16),
        (4, 1024, 4),
        (4, 4096, 4),
        (4, 8192, 4),
        (4, 131_072, 4),
        (16, 1024, 1),
        (16, 131_072, 1),
        (64, 1024, 1),
        (64, 131_072, 1),
    ] {
        let best = &ranked(&token(b, s_kv), 90, Mode::A)[0];
        assert_eq!(best, &format!("20551[SPLIT_KV={want}]"), "batch {b}, {s_kv} keys");
    }
}

/// What the chooser is told, split and unsplit alike: launch geometry of packed rows, the device, the keys that a row can see.
#[test]
fn inputs_of_the_split_chooser() {
    let (launch, p) = split_inputs(&Case { s_q: 3, ..token(2, 8000) }.sdpa(), &target(90)).expect("a CUDA device");
    assert_eq!((launch.q_tiles, launch.heads, launch.batch, launch.ctas_per_tile), (1, 8, 2, 1));
    assert_eq!((p.kv_tiles, p.sm_count, p.rows, p.min_tiles), (125, 132, 3 * 32 * 2, 2));
    assert_eq!((p.partial_floor, p.serial), (0.35, 0.1));
    assert_eq!(split::choose(&launch, &launch, &p).0, 8);
}

/// Visible keys of a band against a count over every (row, key).
#[test]
fn visible_keys_are_counted() {
    for s_q in [1, 3, 16] {
        for (left, right) in
            [(None, None), (None, Some(0)), (Some(5), Some(0)), (Some(40), Some(2)), (Some(0), None), (None, Some(7))]
        {
            for bottom_right in [false, true] {
                for s_kv in [1, 20, 64] {
                    let case = Case { s_q, s_kv, left, right, bottom_right, ..forward() };
                    let diag = if case.sdpa().mask.bottom_right { s_kv - s_q } else { 0 };
                    let kept = |k: i64| {
                        (0..s_q).any(|q| left.is_none_or(|w| k >= q + diag - w) && right.is_none_or(|r| k <= q + diag + r))
                    };
                    let count = (0..s_kv).filter(|&k| kept(k)).count() as i64;
                    assert_eq!(visible_keys(&case.sdpa()), count, "{case:?}");
                }
            }
        }
    }
}

/// Facts §7.8, the list of 20508: its orders are 2, 1, 0 under a causal mask, and 0 alone is the fallback. Packing and tiles follow.
#[test]
fn prefill_golden_of_facts_7_8() {
    let case = Case { b: 2, h_q: 16, h_kv: 4, s_q: 1024, s_kv: 1024, right: Some(0), ..forward() };
    let at = |pack, sched, m, n| format!("20508[PACK_GQA={pack},SCHED_POLICY={sched},TILE_M={m},TILE_N={n}]");
    assert_eq!(
        ranked(&case, 80, Mode::A),
        [at(0, 2, 128, 64), at(0, 1, 128, 64), at(0, 0, 128, 64), at(1, 2, 128, 64), at(0, 2, 128, 128), at(0, 2, 64, 64)]
    );
    assert_eq!(ranked(&case, 80, Mode::Fallback), [at(0, 0, 64, 64)]);
    let dense = Case { right: None, h_kv: 16, ..case.clone() };
    assert_eq!(ranked(&dense, 90, Mode::A)[0], at(0, 0, 128, 64));
    assert!(ranked(&dense, 90, Mode::A).iter().all(|p| p.contains("SCHED_POLICY=0")), "equal tiles need no order");
    let few = Case { s_q: 40, ..case.clone() };
    assert_eq!(ranked(&few, 90, Mode::A)[0], at(1, 2, 128, 64), "rows of one head do not fill a tile");
    let long = Case { s_kv: 1 << 17, s_q: 1 << 17, d_qk: 256, d_v: 256, ..case };
    assert_eq!(ranked(&long, 90, Mode::A)[0], at(0, 1, 64, 64), "one head is 128 MiB: no section fits");
}

#[test]
fn decode_leads_where_it_serves() {
    let list = ranked(&token(1, 8192), 90, Mode::A);
    assert_eq!(list[..4], ["20551[SPLIT_KV=16]", "20551[SPLIT_KV=1]", "20551[SPLIT_KV=8]", "20551[SPLIT_KV=32]"]);
    assert!(list[4].starts_with("20508["));
    assert_eq!(ranked(&token(1, 8192), 90, Mode::Fallback)[0], "20551[SPLIT_KV=1]");
}
