//! Rules, workspace and ranking of the NVFP4 backward rows.

use super::goldens::{plain, sm120, sm90};
use super::{heuristics, mismatch, rows};
use crate::sdpa::testing::Case;
use crate::{DType, DeclineCode as Code, Knob, Knobs, LaunchPlan, Mode, Row, Target};

fn on(cc: u32) -> Target {
    Target::describe(cc).expect("a known device")
}

fn code(case: &Case, knobs: &Knobs, cc: u32) -> Option<Code> {
    mismatch(sm120(), &case.facts(), knobs, &on(cc)).map(|d| d.code)
}

fn hopper_code(case: &Case, cc: u32) -> Option<Code> {
    mismatch(sm90(), &case.facts(), &Knobs::NONE, &on(cc)).map(|d| d.code)
}

fn lowered_by(row: &Row, case: &Case) -> LaunchPlan {
    (row.lower)(&case.facts(), &Knobs::NONE, &on(90)).expect("an accepted graph lowers")
}

fn lowered(case: &Case) -> LaunchPlan {
    lowered_by(sm120(), case)
}

fn names(plan: LaunchPlan) -> Vec<&'static str> {
    let name = |s: &crate::Step| match s {
        crate::Step::Kernel(l) => l.name,
        crate::Step::Host(_) => "host",
    };
    plan.steps.iter().map(name).collect()
}

fn regions(plan: &LaunchPlan) -> Vec<(&'static str, u64)> {
    plan.regions.iter().map(|r| (r.name, r.bytes)).collect()
}

/// Facts 8.3: the reference's copies and delta (here in 128-row blocks), and the accumulator that its dQ kernel does not need.
#[test]
fn workspace_is_copies_delta_and_accumulator() {
    let (b, h, s_q, s_kv) = (2, 8, 200, 300);
    let want = vec![
        ("q_fake", 256 * b * h * s_q),
        ("k_fake", 256 * b * h * s_kv),
        ("v_fake", 256 * b * h * s_kv),
        ("delta", 4 * b * h * 256),
        ("dq_accum", 512 * b * h * 256),
    ];
    assert_eq!(regions(&lowered(&plain())), want);
    let extra = |case: &Case| regions(&lowered(case)).into_iter().map(|r| r.0).skip(5).collect::<Vec<_>>();
    assert_eq!(extra(&Case { deterministic: true, ..plain() }), ["dq_sem"]);
    assert_eq!(extra(&Case { h_kv: 4, ..plain() }), ["dk_ws", "dv_ws"]);
}

/// The chain of the issue: one kernel before main and one behind it.
#[test]
fn the_chain_is_three_launches_and_a_reduction_for_shared_keys() {
    assert_eq!(names(lowered(&plain())), ["prep", "main", "cvt"]);
    assert_eq!(names(lowered(&Case { h_kv: 2, deterministic: true, ..plain() })), ["prep", "main", "reduce", "cvt"]);
}

/// The wgmma row keeps a group in one block where that leaves enough blocks, and then needs no partial sums.
#[test]
fn the_hopper_row_reduces_only_what_it_split() {
    let long = Case { s_q: 16_384, s_kv: 16_384, ..plain() };
    for (case, chain) in [
        (plain(), &["prep", "main", "cvt"][..]),
        (Case { h_kv: 2, ..plain() }, &["prep", "main", "reduce", "cvt"]),
        (Case { h_kv: 1, ..long }, &["prep", "main", "cvt"]),
    ] {
        assert_eq!(names(lowered_by(sm90(), &case)), chain, "{case:?}");
    }
}

#[test]
fn what_the_hopper_row_serves() {
    let (d64, deterministic) = (Case { d_qk: 64, d_v: 64, ..plain() }, Case { deterministic: true, ..plain() });
    for case in [&plain(), &d64, &deterministic] {
        assert_eq!(hopper_code(case, 90), None);
        for cc in [89, 100, 120] {
            assert_eq!(hopper_code(case, cc), Some(Code::Arch));
        }
    }
    assert_eq!(hopper_code(&Case { d_qk: 96, d_v: 96, ..plain() }, 90), Some(Code::HeadDim));
    assert_eq!(hopper_code(&Case { d_qk: 128, d_v: 64, ..plain() }, 90), Some(Code::HeadDim));
    assert_eq!(hopper_code(&Case { dtype: DType::F16, ..plain() }, 90), Some(Code::DType));
    assert_eq!(hopper_code(&Case { left: Some(5), bottom_right: true, ..plain() }, 90), Some(Code::Feature));
}

#[test]
fn what_the_row_declines() {
    let none = Knobs::NONE;
    for cc in [90, 100, 103, 110, 120, 121] {
        assert_eq!(code(&plain(), &none, cc), None);
        assert_eq!(code(&Case { d_qk: 64, d_v: 64, ..plain() }, &none, cc), None);
    }
    assert_eq!(code(&plain(), &none, 89), Some(Code::Arch));
    assert_eq!(code(&Case { d_qk: 96, d_v: 96, ..plain() }, &none, 90), Some(Code::HeadDim));
    assert_eq!(code(&Case { d_qk: 128, d_v: 64, ..plain() }, &none, 90), Some(Code::HeadDim));
    assert_eq!(code(&Case { dtype: DType::F16, ..plain() }, &none, 90), Some(Code::DType));
    assert_eq!(code(&Case { left: Some(5), bottom_right: true, ..plain() }, &none, 90), Some(Code::Feature));
}

/// Only tiles that were measured with the quantiser inside; the larger ones only where they fit.
#[test]
fn tiles_are_the_two_of_each_head_dim() {
    let at =
        |d: i64, m, n, cc| code(&Case { d_qk: d, d_v: d, ..plain() }, &Knobs::new(&[(Knob::TileM, m), (Knob::TileN, n)]), cc);
    let served = |cc| {
        let all = [
            (64, 64, 64),
            (64, 64, 128),
            (64, 128, 64),
            (64, 128, 128),
            (128, 64, 64),
            (128, 64, 128),
            (128, 128, 64),
            (128, 128, 128),
        ];
        all.into_iter().filter(|&(d, m, n)| at(d, m, n, cc).is_none()).collect::<Vec<_>>()
    };
    assert_eq!(served(90), [(64, 64, 128), (64, 128, 128), (128, 64, 64), (128, 64, 128)]);
    assert_eq!(served(120), [(64, 64, 128), (128, 64, 64)]);
}

#[test]
fn measured_tiles_lead_on_the_device_of_the_measurements() {
    let rows: Vec<&'static Row> = rows::ROWS.iter().collect();
    let ranked = |d: i64, cc, mode| {
        let facts = Case { d_qk: d, d_v: d, ..plain() }.facts();
        heuristics::recommend(&facts, &on(cc), &rows, mode).iter().map(|c| format!("{}{}", c.id, c.knobs)).collect::<Vec<_>>()
    };
    assert_eq!(ranked(128, 90, Mode::A), ["20817", "20800[TILE_M=64,TILE_N=128]", "20800[TILE_M=64,TILE_N=64]"]);
    assert_eq!(ranked(64, 90, Mode::A), ["20817", "20800[TILE_M=128,TILE_N=128]", "20800[TILE_M=64,TILE_N=128]"]);
    assert_eq!(ranked(128, 120, Mode::A), ["20800[TILE_M=64,TILE_N=64]"]);
    assert_eq!(ranked(128, 90, Mode::Fallback), ["20817", "20800[TILE_M=64,TILE_N=64]"]);
}
