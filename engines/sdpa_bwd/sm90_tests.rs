//! The wgmma chain as data: configuration, workspace, declines, launches.

use super::goldens::sm90;
use super::sm90::{choose, Choice};
use crate::sdpa::testing::Case;
use crate::{Arg, DType, DeclineCode as Code, Facts, Knobs, LaunchPlan, Step, Target};

fn h200() -> Target {
    Target::describe(90).expect("a known device")
}

fn declined(case: &Case) -> Option<Code> {
    super::mismatch(sm90(), &case.facts(), &Knobs::NONE, &h200()).map(|d| d.code)
}

fn plan(case: &Case) -> LaunchPlan {
    let facts = case.facts();
    assert_eq!(super::mismatch(sm90(), &facts, &Knobs::NONE, &h200()), None, "{case:?}");
    (sm90().lower)(&facts, &Knobs::NONE, &h200()).expect("an accepted graph lowers")
}

fn names(case: &Case) -> Vec<&'static str> {
    let name = |s: &Step| match s {
        Step::Kernel(l) => l.name,
        Step::Host(h) => h.name,
    };
    plan(case).steps.iter().map(name).collect()
}

fn choice(case: &Case) -> Choice {
    let Facts::Sdpa(f) = case.facts() else { panic!("attention facts") };
    choose(sm90(), &f, &h200()).expect("an accepted graph")
}

fn square(s: i64, d: i64) -> Case {
    Case { b: 1, h_q: 64, h_kv: 8, s_q: s, s_kv: s, d_qk: d, d_v: d, ..Case::default() }
}

#[test]
fn head_dims_choose_the_tile() {
    for ((d_qk, d_v), dims, q_tile) in [
        ((8, 8), (64, 64), 128),
        ((64, 64), (64, 64), 128),
        ((72, 64), (128, 128), 64),
        ((128, 128), (128, 128), 64),
        ((136, 72), (192, 128), 48),
        ((136, 136), (192, 192), 64),
        ((192, 192), (192, 192), 64),
        ((200, 8), (256, 256), 64),
        ((256, 256), (256, 256), 64),
    ] {
        let c = choice(&Case { d_qk, d_v, ..Case::default() });
        assert_eq!((c.dims, c.q_tile), (dims, q_tile), "{d_qk}/{d_v}");
    }
    assert_eq!(declined(&Case { d_qk: 264, d_v: 264, ..Case::default() }), Some(Code::HeadDim));
}

/// dQ takes the place of its dS, 32 KB a tile: in three of them beside the K of the next item, or in four that let the relay be two tiles ahead of its turn.
/// A bias wants the registers.
#[test]
fn head_dim_64_leaves_dq_over_its_ds() {
    let d64 = Case { h_q: 2, h_kv: 2, d_qk: 64, d_v: 64, ..Case::default() };
    let of = |case: &Case| (choice(case).order, choice(case).smem());
    // K, V, two Q, two dO; LSE, -delta as eight bf16 a row; what they are multiplied with, as long as memcheck takes it to be, over the barriers and items.
    let tiles = 6 * 16_384;
    assert_eq!(of(&d64), (super::sm90::LATE, tiles + 16_384 + 3 * 32_768 + 1024 + 4096 + 2048));
    assert_eq!(of(&Case { right: Some(0), ..d64 }), of(&d64));
    assert_eq!(of(&Case { deterministic: true, ..d64 }), (super::sm90::LATE, tiles + 4 * 32_768 + 2048 + 512));
    assert_ne!(choice(&Case { bias: Some((DType::F32, 1)), ..d64 }).order, super::sm90::LATE);
}

/// Two blocks of a cluster divide dQ of neighbouring key tiles where sequences are long and nothing but a causal mask is asked for.
#[test]
fn pairs_of_blocks_share_dq_of_long_sequences() {
    let main = |case: &Case| {
        let launch = plan(case).steps.into_iter().find_map(|s| match s {
            Step::Kernel(l) if l.name == "main" => Some(l),
            _ => None,
        });
        let l = launch.expect("main");
        let order = l.kernel.defines.iter().find(|d| d.0 == "FG_ORDER").map(|d| d.1);
        (order, l.cluster[0], l.grid[0])
    };
    let pair = |grid| (Some(7), 2, grid);
    let causal = |s| Case { right: Some(0), ..square(s, 128) };
    assert_eq!(main(&square(8192, 128)), pair(8 * 64));
    assert_eq!(main(&square(512, 128)), pair(32 * 4));
    assert_eq!(main(&square(256, 128)).0, Some(2));
    assert_eq!(main(&causal(8192)), pair(32 * 64));
    assert_eq!((main(&causal(4096)).0, main(&causal(4096)).1), (Some(2), 1));
    // 65 key tiles.
    assert_eq!(main(&square(8200, 128)).0, Some(2));
    for other in [
        Case { deterministic: true, ..square(8192, 128) },
        Case { right: Some(0), left: Some(1024), ..square(8192, 128) },
        Case { bias: Some((DType::F32, 1)), ..square(8192, 128) },
    ] {
        assert_eq!((main(&other).0, main(&other).1), (Some(2), 1), "{other:?}");
    }
    // K, V, two Q, two dO, three dS, the other K; LSE and -delta as eight bf16 a row, ones, barriers; 16 rows of O and dO for each of two warps.
    assert_eq!(choice(&square(8192, 128)).smem(), 6 * 32_768 - 2 * 16_384 + 3 * 16_384 + 512 + 2048 + 256 + 128 + 16_384);
}

/// 64 keys a tile where dK and dV of 128 do not fit: twice the blocks, all of the shared memory.
#[test]
fn wide_head_dims_take_64_keys() {
    let wide = Case { d_qk: 256, d_v: 256, ..Case::default() };
    let main = |case: &Case| match &plan(case).steps[1] {
        Step::Kernel(l) => (l.grid[0], l.smem),
        Step::Host(_) => panic!("a kernel"),
    };
    let (narrow, _) = main(&Case { s_kv: 1024, ..Case::default() });
    assert_eq!(main(&Case { s_kv: 1024, ..wide }), (2 * narrow, 64 * 512 * 6 + 4 * 8192 + 1024 + 128));
}

#[test]
fn declines_name_what_the_portable_row_serves() {
    let packed = Case { thd: Some(DType::I32), totals: Some((350, 500)), ..Case::default() };
    assert_eq!(declined(&Case { bias: Some((DType::F32, 1)), ..packed }), Some(Code::Bias));
    let on = |cc| {
        super::mismatch(sm90(), &Case::default().facts(), &Knobs::NONE, &Target::describe(cc).expect("a device")).map(|d| d.code)
    };
    assert_eq!(on(100), Some(Code::Arch));
    assert_eq!(on(120), Some(Code::Arch));
}

#[test]
fn the_chain_has_what_the_graph_needs() {
    assert_eq!(names(&Case::default()), ["dot", "main", "cvt"]);
    // Four key heads leave too few blocks for groups: partial sums.
    assert_eq!(names(&Case { h_kv: 4, ..Case::default() }), ["dot", "main", "reduce", "cvt"]);
    assert_eq!(names(&Case { d_qk: 192, dsink: true, sink: true, ..Case::default() }), ["dot", "main", "cvt_t", "dsink"]);
    let dbias = Case { bias: Some((DType::F32, 1)), dbias: Some(DType::BF16), ..Case::default() };
    assert_eq!(names(&dbias), ["zero", "dot", "main", "cvt", "dbias_cvt"]);
    // fp32 dBias of the bias's own extent accumulates in place.
    assert_eq!(names(&Case { dbias: Some(DType::F32), ..dbias }), ["zero", "dot", "main", "cvt"]);
}

/// Whole tiles of 48 rows: 200 rows need 240, kept in 256.
#[test]
fn workspace_holds_whole_tiles() {
    let regions = |c: &Case| plan(c).regions.iter().map(|r| (r.name, r.bytes)).collect::<Vec<_>>();
    assert_eq!(regions(&Case::default()), [("delta", 16 * 256 * 4), ("dq_accum", 16 * 256 * 128 * 4)]);
    let edge = Case { s_q: 250, d_qk: 192, deterministic: true, ..Case::default() };
    assert_eq!(regions(&edge), [("delta", 16 * 384 * 4), ("dq_accum", 16 * 384 * 192 * 4), ("dq_sem", 16 * 8 * 4)]);
}

#[test]
fn a_group_is_split_until_the_device_is_busy() {
    assert_eq!(choice(&Case { h_kv: 1, ..Case::default() }).heads_item, 1);
    // Equal work: one block sums the whole group where the last wave is nearly full.
    assert_eq!(choice(&square(16_384, 128)).heads_item, 8);
    assert_eq!(names(&square(16_384, 128)), ["dot", "main", "cvt"]);
    assert_eq!(choice(&square(2048, 128)).heads_item, 8);
    // Causal work is unequal: sections of about a block for each of 132 multiprocessors, eight of them, 32 MB of L2 each.
    let causal = |s, deterministic| {
        let c = choice(&Case { right: Some(0), deterministic, ..square(s, 128) });
        (c.heads_item, c.interleave, c.ahead)
    };
    assert_eq!([16_384, 8192, 4096, 2048].map(|s| causal(s, false)), [(2, 1, 2), (2, 2, 2), (2, 4, 2), (1, 8, 2)]);
    assert_eq!([16_384, 8192, 4096, 2048].map(|s| causal(s, true)), [(2, 1, 0), (2, 2, 0), (2, 4, 0), (1, 8, 0)]);
    // A head of more than that is a section of its own.
    assert_eq!(causal(65_536, false).0, 1);
    let window = choice(&Case { right: Some(0), left: Some(1024), deterministic: true, ..square(4096, 128) });
    assert_eq!(window.interleave, 4);
    // Without a triangle: four, or as many as have 16 MB together.
    let relay = |s| choice(&Case { deterministic: true, h_kv: 64, ..square(s, 64) }).interleave;
    assert_eq!([16_384, 4096, 1024].map(relay), [4, 8, 32]);
}

/// One query against 2^24 keys in the relay: 16 MB are 32768 heads of it. Main multiplies groups in turn by key tiles in 32 bits (2^17 of them: the product
/// would be 2^32, which is 0 there), so there are no more in turn than there are.
#[test]
fn groups_in_turn_are_groups_that_there_are() {
    let long = Case { s_q: 1, s_kv: 1 << 24, h_q: 2, h_kv: 2, deterministic: true, ..square(1, 64) };
    assert_eq!(choice(&long).interleave, 2);
    assert_eq!(choice(&Case { b: 3, s_kv: 1, ..long.clone() }).interleave, 6);
    assert_eq!(choice(&Case { s_q: 1 << 14, h_q: 64, h_kv: 64, s_kv: 1, ..long }).interleave, 4, "16 MB hold two");
}

/// The relay's sections walk upwards and downwards in turn: one size, near a device of blocks, two at least.
#[test]
fn sections_of_the_relay_are_a_device_of_blocks() {
    let sections = |h: i64, s, d| {
        let c = choice(&Case { h_q: h, h_kv: h, right: Some(0), deterministic: true, ..square(s, d) });
        (c.interleave, (h + c.interleave - 1) / c.interleave)
    };
    // 32 key tiles: four heads are 128 blocks of 132 multiprocessors.
    assert_eq!(
        [4, 6, 8, 10, 12, 14, 64].map(|h| sections(h, 4096, 128)),
        [(2, 2), (3, 2), (4, 2), (5, 2), (4, 3), (5, 3), (4, 16)]
    );
    assert_eq!(sections(64, 1024, 128), (16, 4));
    assert_eq!(sections(1, 16_384, 128), (1, 1));
    // Two devices where a key tile is no longer than a query tile: blocks that begin one tile apart would wait for one another.
    assert_eq!(sections(64, 4096, 64), (8, 8));
    assert_eq!(sections(16, 8192, 256), (2, 8));
}

/// A section's heads are prepared by blocks of an earlier one; `dot` then stops at the first sections.
#[test]
fn dot_prepares_what_no_block_can() {
    let case = Case { right: Some(0), ..square(4096, 128) };
    let dot = |case: &Case| match &plan(case).steps[0] {
        Step::Kernel(l) => {
            let wanted = |name: &str| matches!(name, "zero_f32" | "zero_i32" | "heads_q");
            (l.grid[0], l.names.iter().zip(&l.args).filter(|(n, _)| wanted(n)).map(|(_, a)| a.clone()).collect::<Vec<_>>())
        }
        Step::Host(_) => panic!("a kernel"),
    };
    // Two sections of four groups of two heads; eight sections have a counter each.
    assert_eq!(dot(&case), (64 * 16, vec![Arg::I64(16 * 4096 * 128), Arg::I64(8), Arg::I32(16)]));
    // Lengths, an order to keep, or too few heads: `dot` prepares all.
    let all = |case: &Case, h: u32| assert_eq!(dot(case).0, 64 * h, "{case:?}");
    all(&Case { deterministic: true, ..case }, 64);
    all(&Case { padded: true, ..case }, 64);
    all(&Case { h_q: 8, ..case }, 8);
}

/// At head dim 64 a block stays on its multiprocessor and takes one item after the other by a ticket, the first word of the counters, which `dot` clears.
#[test]
fn blocks_of_head_dim_64_stay() {
    let launch = |case: &Case, at: usize| match &plan(case).steps[at] {
        Step::Kernel(l) => {
            let cleared = l.names.iter().zip(&l.args).find(|(n, _)| **n == "zero_i32").map(|(_, a)| a.clone());
            (i64::from(l.grid[0]), cleared)
        }
        Step::Host(_) => panic!("a kernel"),
    };
    let long = Case { right: Some(0), h_kv: 64, ..square(4096, 64) };
    assert_eq!(launch(&long, 1).0, 132, "64 heads of 32 key tiles");
    assert_eq!(
        launch(&Case { h_q: 2, h_kv: 2, s_kv: 130, ..Case { d_qk: 64, d_v: 64, ..Case::default() } }, 1).0,
        2 * 2 * Case::default().b
    );
    // The ticket's line, and the sections, the turns, or nothing.
    assert_eq!(launch(&long, 0).1, Some(Arg::I64(32 + 16)));
    assert_eq!(launch(&Case { deterministic: true, ..long.clone() }, 0).1, Some(Arg::I64(32 + 64 * 128)));
    assert_eq!(launch(&Case { padded: true, ..long }, 0).1, Some(Arg::I64(32)));
    assert_eq!(launch(&square(4096, 128), 1).0, 64 / 8 * 32 * 8 / choice(&square(4096, 128)).heads_item);
}
