//! The CUDA forward rows as data: configurations, declines, launches.

mod hopper;

use super::goldens::{decode_row, hopper_row, prefill_row};
use super::{config, prefill, prefill_sm90};
use crate::sdpa::testing::{port, Case};
use crate::sdpa::{Direction, Scale, SdpaFacts};
use crate::{
    Arg, Base, DType, DeclineCode as Code, Facts, Feature, FeatureSet, Knob, Knobs, LaunchPlan, Port, Row, Step, Target,
};

const ARCHES: [u32; 9] = [80, 86, 89, 90, 100, 103, 110, 120, 121];

pub(super) fn target(cc: u32) -> Target {
    Target::describe(cc).expect("a known device")
}

pub(super) fn forward() -> Case {
    Case { direction: Direction::Forward, ..Case::default() }
}

/// One token of 32 query heads on 8 key heads.
pub(super) fn token(b: i64, s_kv: i64) -> Case {
    Case { b, h_q: 32, h_kv: 8, s_q: 1, s_kv, ..forward() }
}

fn bent(case: &Case, bend: impl FnOnce(&mut SdpaFacts)) -> Facts {
    let mut f = case.sdpa();
    bend(&mut f);
    Facts::Sdpa(Box::new(f))
}

fn declined(row: &Row, facts: &Facts, knobs: &Knobs) -> Code {
    super::mismatch(row, facts, knobs, &target(90)).expect("a decline").code
}

fn served(row: &Row, facts: &Facts) {
    assert_eq!(super::mismatch(row, facts, &Knobs::NONE, &target(90)), None);
}

fn plan(row: &Row, facts: &Facts, knobs: &Knobs, cc: u32) -> LaunchPlan {
    assert_eq!(super::mismatch(row, facts, knobs, &target(cc)), None);
    (row.lower)(facts, knobs, &target(cc)).expect("an accepted graph lowers")
}

fn arg(plan: &LaunchPlan, step: usize, name: &str) -> Arg {
    let Step::Kernel(l) = &plan.steps[step] else { panic!("a kernel") };
    let at = l.names.iter().position(|n| *n == name).unwrap_or_else(|| panic!("{} has no {name}", l.name));
    l.args[at].clone()
}

fn define(plan: &LaunchPlan, step: usize, name: &str) -> i64 {
    let Step::Kernel(l) = &plan.steps[step] else { panic!("a kernel") };
    l.kernel.defines.iter().find(|d| d.0 == name).unwrap_or_else(|| panic!("no {name}")).1
}

#[test]
fn every_head_dim_has_a_configuration_on_every_architecture() {
    for cc in ARCHES {
        let Target::Cuda { smem_optin, .. } = target(cc) else { panic!("a CUDA target") };
        for d_qk in (8..=256).step_by(8) {
            for d_v in (8..=256).step_by(8) {
                for bias in [false, true] {
                    let p =
                        config::prefill(prefill_row(), (d_qk, d_v), bias, &Knobs::NONE, smem_optin).expect("default tiles fit");
                    assert!(p.smem <= 101_376, "the default is what every architecture has: {p:?}");
                    assert!(p.d_qk >= d_qk && p.d_v >= d_v && p.q_tile() * p.d_v * 2 <= p.smem, "{p:?}");
                }
                let c = config::decode(decode_row(), d_qk, d_v, smem_optin).expect("a ring fits");
                assert!(c.smem <= i64::from(smem_optin) && c.stages >= 2 && c.d_qk >= d_qk && c.d_v >= d_v, "{c:?}");
                assert!(smem_optin > 101_376 || c.smem <= 101_376);
            }
        }
    }
    assert_eq!(config::flavour(264, 264), None);
    assert_eq!(config::flavour(12, 8), None);
}

#[test]
fn flavours_hold_what_runs_on_them() {
    for (given, want) in
        [((8, 8), (32, 32)), ((40, 24), (64, 64)), ((64, 72), (96, 96)), ((136, 64), (192, 128)), ((64, 200), (256, 256))]
    {
        assert_eq!(config::flavour(given.0, given.1), Some(want), "{given:?}");
    }
}

/// Q 128x128 with one buffer of 64 keys of K and V, Q 64x96 with two; and rings of the decode kernel.
#[test]
fn shared_memory_by_hand() {
    let at = |dims, bias| config::prefill(prefill_row(), dims, bias, &Knobs::NONE, 101_376).expect("fits");
    let p = at((128, 128), false);
    assert_eq!((p.warps, p.m_tiles, p.kv_tile, p.stages, p.smem), (4, 2, 64, 1, 2 * (128 * 128 + 64 * 256)));
    let p = at((96, 96), true);
    assert_eq!((p.warps, p.m_tiles, p.kv_tile, p.stages, p.smem), (4, 1, 64, 2, 2 * (64 * 96 + 2 * 64 * 192)));
    let c = config::decode(decode_row(), 128, 128, 101_376).expect("fits");
    assert_eq!((c.warps, c.keys, c.stages, c.smem), (4, 16, 3, 4 * 3 * 16 * 256 * 2));
    let c = config::decode(decode_row(), 256, 256, 101_376).expect("fits");
    assert_eq!((c.warps, c.keys, c.stages, c.smem), (2, 16, 3, 2 * 3 * 16 * 512 * 2));
}

#[test]
fn tiles_that_a_device_or_a_head_dim_lacks_decline() {
    let tiles = |m, n| Knobs::new(&[(Knob::TileM, m), (Knob::TileN, n)]);
    let wide = Case { d_qk: 256, d_v: 256, ..forward() }.facts();
    let on = |cc, m, n| super::mismatch(prefill_row(), &wide, &tiles(m, n), &target(cc)).map(|d| d.code);
    assert_eq!(on(90, 128, 64), None);
    assert_eq!(on(120, 128, 64), Some(Code::Resources));
    assert_eq!(on(90, 64, 128), Some(Code::Knob));
    let pack = Knobs::new(&[(Knob::PackGqa, 1)]);
    assert_eq!(declined(prefill_row(), &forward().facts(), &pack), Code::Knob, "nothing to pack");
}

#[test]
fn decode_ends_where_its_rows_end() {
    let at = |s_q, group: i64| {
        let facts = Case { h_q: 2 * group, h_kv: 2, s_q, ..forward() }.facts();
        super::mismatch(decode_row(), &facts, &Knobs::NONE, &target(90)).map(|d| d.code)
    };
    assert_eq!((at(16, 8), at(1, 128), at(16, 1)), (None, None, None));
    assert_eq!((at(17, 1), at(16, 9), at(1, 129)), (Some(Code::Geometry), Some(Code::Geometry), Some(Code::Geometry)));
    served(prefill_row(), &Case { s_q: 1, ..forward() }.facts());
}

#[test]
fn lengths_have_one_form() {
    let cu = |label, n| Some(port(16, label, [n, 1, 1, 1], DType::I32));
    let case = Case { s_q: 4, ..forward() };
    let cumulative = bent(&case, |f| {
        f.features = f.features.with(Feature::CuSeqLen).with(Feature::Padding);
        f.ports.cu_seq_len_q = cu("q", 3);
        f.ports.cu_seq_len_kv = cu("kv", 3);
    });
    for row in [prefill_row(), decode_row()] {
        served(row, &cumulative);
        let p = plan(row, &cumulative, &Knobs::NONE, 90);
        assert_eq!((define(&p, 0, "FG_PADDED"), define(&p, 0, "FG_CU_SEQ")), (1, 1));
        let mixed = bent(&Case { padded: true, ..case.clone() }, |f| {
            f.ports.seq_len_q = None;
            f.ports.cu_seq_len_q = cu("q", 3);
            f.features = f.features.with(Feature::CuSeqLen);
        });
        assert_eq!(declined(row, &mixed, &Knobs::NONE), Code::Lengths);
        let short = bent(&Case { padded: true, ..case.clone() }, |f| f.ports.seq_len_kv = cu("kv", 3));
        assert_eq!(declined(row, &short, &Knobs::NONE), Code::Lengths, "three lengths for two batches");
        let trimmed = bent(&Case { padded: true, ..case.clone() }, |f| {
            f.ports.seq_len_kv = None;
            f.features = f.features.without(Feature::Padding).with(Feature::SeqQTrim);
        });
        assert_eq!(define(&plan(row, &trimmed, &Knobs::NONE, 90), 0, "FG_PADDED"), 1);
    }
}

#[test]
fn packed_operands_agree_on_their_offsets() {
    let thd = Case { thd: Some(DType::I32), ..forward() };
    served(prefill_row(), &thd.facts());
    let other = bent(&thd, |f| {
        if let Some(r) = f.ports.o.as_mut().and_then(|p| p.ragged.as_mut()) {
            r.dtype = DType::I64;
        }
    });
    assert_eq!(declined(prefill_row(), &other, &Knobs::NONE), Code::Lengths);
    let bare = bent(&thd, |f| f.ports.seq_len_kv = None);
    assert_eq!(declined(prefill_row(), &bare, &Knobs::NONE), Code::Lengths);
    let bias = Case { bias: Some((DType::F32, 1)), ..thd.clone() };
    assert_eq!(declined(prefill_row(), &bias.facts(), &Knobs::NONE), Code::Bias);
    assert_eq!(declined(decode_row(), &Case { s_q: 1, ..thd }.facts(), &Knobs::NONE), Code::Feature);
}

fn paged(pages: i64, page: i64) -> Facts {
    bent(&Case { padded: true, ..token(2, 1000) }, |f| {
        f.features = f.features.with(Feature::PagedKv);
        f.page_size = Some(page);
        for (port, label) in [(&mut f.ports.k, "K"), (&mut f.ports.v, "V")] {
            *port = Some(crate::Port { dtype: DType::BF16, ..self::port(2, label, [99, 8, page, 128], DType::BF16) });
        }
        f.ports.page_table_k = Some(port(20, "table K", [2, 1, pages, 1], DType::I32));
        f.ports.page_table_v = Some(port(21, "table V", [2, 1, pages, 1], DType::I32));
    })
}

/// A table that ends before S_kv would be read past its end.
#[test]
fn pages_cover_the_keys() {
    for (page, pages) in [(8, 125), (256, 4), (24, 42)] {
        served(decode_row(), &paged(pages, page));
        assert_eq!(declined(decode_row(), &paged(pages - 1, page), &Knobs::NONE), Code::Lengths, "page {page}");
    }
    let p = plan(decode_row(), &paged(63, 16), &Knobs::NONE, 90);
    assert_eq!((define(&p, 0, "FG_PAGED"), define(&p, 0, "FG_PADDED")), (1, 1));
    assert_eq!(
        (arg(&p, 0, "table_k_sb"), arg(&p, 0, "table_k_ss"), arg(&p, 0, "page_size")),
        (Arg::I64(63), Arg::I64(1), Arg::I32(16))
    );
    assert_eq!(declined(prefill_row(), &paged(63, 16), &Knobs::NONE), Code::Feature);
    let Facts::Sdpa(mut f) = paged(63, 16) else { panic!("attention") };
    f.ports.page_table_v = None;
    assert_eq!(declined(decode_row(), &Facts::Sdpa(f.clone()), &Knobs::NONE), Code::Lengths, "K alone");
    f.ports.page_table_v = f.ports.page_table_k.clone();
    f.ports.seq_len_kv = None;
    assert_eq!(declined(decode_row(), &Facts::Sdpa(f), &Knobs::NONE), Code::Lengths, "no key lengths");
}

/// S4: with splits, partial LSEs are natural logs, and sink, log2 and lengths of Stats are the combine's.
#[test]
fn a_split_finishes_in_the_combine_s4() {
    let case = Case { sink: true, stats_log2: true, ..token(2, 4096) };
    let one = plan(decode_row(), &case.facts(), &Knobs::new(&[(Knob::SplitKv, 1)]), 90);
    assert_eq!((one.steps.len(), one.workspace_bytes), (1, 0), "no workspace without splits");
    assert_eq!((define(&one, 0, "FG_SINK"), define(&one, 0, "FG_STATS"), define(&one, 0, "FG_SPLIT")), (1, 2, 0));
    let p = plan(decode_row(), &case.facts(), &Knobs::new(&[(Knob::SplitKv, 8)]), 90);
    assert_eq!((define(&p, 0, "FG_SINK"), define(&p, 0, "FG_STATS"), define(&p, 0, "FG_SPLIT")), (0, 0, 1));
    assert_eq!((define(&p, 1, "FG_SINK"), define(&p, 1, "FG_STATS")), (1, 2));
    assert_eq!(arg(&p, 0, "o"), Arg::Null);
    let bytes: Vec<(&str, u64)> = p.regions.iter().map(|r| (r.name, r.bytes)).collect();
    assert_eq!(bytes, [("part_o", 8 * 2 * 32 * 128 * 4), ("part_lse", 8 * 2 * 32 * 4)]);
    let Step::Kernel(l) = &p.steps[0] else { panic!("a kernel") };
    assert_eq!(l.grid, [8 * 8 * 2, 1, 1], "splits x key heads x batch");
    let padded = plan(decode_row(), &Case { d_qk: 72, d_v: 72, ..token(1, 512) }.facts(), &Knobs::new(&[(Knob::SplitKv, 2)]), 90);
    assert_eq!(padded.regions[0].bytes, 2 * 32 * 96 * 4, "rows of the padded width");
}

/// A kernel launched early has to wait for its predecessor itself; the prefill kernel does not, and compute capability 8 has no such launch.
#[test]
fn early_launches_are_for_kernels_that_wait() {
    let waits = |p: &LaunchPlan| p.steps.iter().map(|s| matches!(s, Step::Kernel(l) if l.pdl)).collect::<Vec<_>>();
    let split = Knobs::new(&[(Knob::SplitKv, 4)]);
    assert_eq!(waits(&plan(prefill_row(), &forward().facts(), &Knobs::NONE, 90)), [false]);
    assert_eq!(waits(&plan(decode_row(), &token(1, 4096).facts(), &split, 90)), [true, true]);
    assert_eq!(waits(&plan(decode_row(), &token(1, 4096).facts(), &split, 89)), [false, false]);
    let text = |path: &str| frostgraph_kernels::SOURCES.iter().find(|s| s.path == path).expect("a source").text;
    for path in super::decode::SOURCES {
        assert!(text(path).contains("pdl_wait()"), "{path}");
    }
    assert!(!text(prefill::SOURCES[0]).contains("pdl_launch"));
}

/// On an H200: sections of 16 or 17 heads were the fastest of 8, 16, 24 and all at H 128, d 192/128, S 8192.
#[test]
fn a_section_fills_the_device_four_times() {
    let at = |case: &Case, packed, sched| {
        let f = case.sdpa();
        let c = config::prefill(prefill_row(), (f.d_qk, f.d_v), false, &Knobs::NONE, 232_448).expect("fits");
        prefill::section(&f, &c, packed, sched, &target(90))
    };
    let mla = Case { b: 1, h_q: 128, h_kv: 128, s_q: 8192, s_kv: 8192, d_qk: 192, ..forward() };
    assert_eq!(at(&mla, false, 2), 17, "4 x 264 CTAs over 64 tiles");
    assert_eq!(at(&mla, false, 1), 128, "one section");
    let gqa = Case { h_q: 64, h_kv: 8, ..mla.clone() };
    assert_eq!(at(&gqa, false, 2), 64, "8 key heads of 5 MiB fit 60 MiB");
    let gqa = Case { b: 4, ..gqa };
    assert_eq!((at(&gqa, false, 2), at(&gqa, true, 2)), (24, 3), "whole groups; packed, a tile has eight times the heads");
    assert_eq!(at(&Case { s_q: 64, ..mla }, false, 2), 128, "no more than there are");
}

#[test]
fn index_limits_decline() {
    let long = Case { b: 1, h_q: 1, h_kv: 1, s_q: 1 << 29, ..forward() };
    assert_eq!(declined(prefill_row(), &long.facts(), &Knobs::NONE), Code::Geometry);
    let many = Case { b: 1 << 16, h_q: 1 << 10, h_kv: 1 << 10, s_q: 1 << 14, ..forward() };
    assert_eq!(declined(prefill_row(), &many.facts(), &Knobs::NONE), Code::Geometry);
    let batches = Case { b: 1 << 27, h_q: 16, h_kv: 16, s_q: 1, s_kv: 8, d_qk: 8, d_v: 8, ..forward() };
    assert_eq!(declined(decode_row(), &batches.facts(), &Knobs::NONE), Code::Geometry);
}
