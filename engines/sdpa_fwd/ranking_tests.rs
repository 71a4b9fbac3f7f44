//! The heuristics of the CUDA forward rows: splits, visible keys, ranked lists.

use super::heuristics::visible_keys;
use super::split;
use super::tests::{forward, target, token};
use crate::sdpa::ranking::MAX_SETS_PER_ROW;
use crate::sdpa::testing::Case;
use crate::{DType, Facts, Knob, Knobs, Mode, Row, Step};

fn ranked(case: &Case, cc: u32, mode: Mode) -> Vec<String> {
    ranked_facts(&case.facts(), cc, mode)
}

fn ranked_facts(facts: &Facts, cc: u32, mode: Mode) -> Vec<String> {
    let rows: Vec<&'static Row> = super::rows::ROWS.iter().collect();
    super::heuristics::recommend(facts, &target(cc), &rows, mode).iter().map(|c| format!("{}{}", c.id, c.knobs)).collect()
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

/// Decode problems of every kind that moves the chooser's inputs: rows of one and of several tiles, groups, bands, few and many keys.
fn decodes() -> Vec<Case> {
    let mut all = Vec::new();
    for (s_q, h_q, h_kv) in [(1, 32, 8), (3, 32, 8), (16, 8, 1), (7, 6, 2), (1, 96, 1)] {
        for (left, right, bottom_right) in
            [(None, None, false), (None, Some(0), true), (Some(700), Some(0), true), (Some(40), Some(2), false)]
        {
            for s_kv in [16, 63, 700, 8000] {
                all.push(Case { s_q, h_q, h_kv, left, right, bottom_right, ..token(2, s_kv) });
            }
        }
    }
    all
}

/// Keys that some query row keeps, by looking at every pair.
fn visible_pairs(case: &Case) -> i64 {
    let f = case.sdpa();
    let diag = if f.mask.bottom_right { f.s_kv - f.s_q } else { 0 };
    let kept = |q: i64, k: i64| case.left.is_none_or(|w| k >= q + diag - w) && case.right.is_none_or(|r| k <= q + diag + r);
    (0..f.s_kv).filter(|&k| (0..f.s_q).any(|q| kept(q, k))).count() as i64
}

/// A spy in the chooser's place: both legs are told the blocks that are then launched, and the work is the keys that rows can see.
#[test]
fn the_split_chooser_is_told_what_is_launched() {
    let row = super::rows::ROWS.iter().find(|r| r.id == 20551).expect("the decode row");
    let mut split_once = 0;
    for case in decodes() {
        let (f, target) = (case.sdpa(), target(90));
        let mut seen = Vec::new();
        let list = super::heuristics::splits_by(&f, &target, &mut |split, unsplit, problem| {
            seen.push((*split, *unsplit, *problem));
            split::choose(split, unsplit, problem).0
        });
        let [(split, unsplit, problem)] = seen[..] else { panic!("asked {} times: {case:?}", seen.len()) };
        let blocks = |splits: i64| {
            let plan = (row.lower)(&case.facts(), &Knobs::new(&[(Knob::SplitKv, splits)]), &target).expect("served");
            let Step::Kernel(l) = &plan.steps[0] else { panic!("a kernel") };
            u64::from(l.grid[0])
        };
        let ctas = |l: &split::Launch| l.q_tiles * l.heads * l.batch * l.ctas_per_tile;
        assert_eq!(blocks(1), ctas(&unsplit), "{case:?}");
        for &splits in &list {
            assert_eq!(blocks(splits), ctas(&split) * splits as u64, "{splits} splits of {case:?}");
        }
        assert_eq!(problem.kv_tiles, visible_pairs(&case).unsigned_abs().div_ceil(64), "{case:?}");
        assert_eq!((problem.rows, problem.sm_count), ((case.s_q * case.h_q * case.b) as u64, 132));
        assert_eq!(problem.serial > 0.0, case.s_q >= 3);
        // What leads is what the chooser said, and no split keeps less than the model allows.
        assert_eq!(list[0], split::choose(&split, &unsplit, &problem).0 as i64);
        split_once += usize::from(list[0] > 1);
    }
    assert!(split_once >= 20, "{split_once} problems are split");
}

/// Every proposal was judged again with its knobs, stands once, and a row makes six at most.
#[test]
fn alternatives_are_rescored_unique_and_few() {
    let rows: Vec<&'static Row> = super::rows::ROWS.iter().collect();
    let long = |s_q: i64, base: Case| Case { s_q, s_kv: s_q.max(base.s_kv), ..base };
    let cases = decodes().into_iter().flat_map(|c| [c.clone(), long(40, c.clone()), long(5000, c)]);
    let mut most = 0;
    for case in cases {
        for cc in [80, 90, 120] {
            let (facts, target) = (case.facts(), target(cc));
            for mode in [Mode::A, Mode::B, Mode::OpenSource, Mode::Fallback] {
                let list = super::heuristics::recommend(&facts, &target, &rows, mode);
                for (n, c) in list.iter().enumerate() {
                    let row = rows.iter().find(|r| r.id == c.id).expect("a row that was offered");
                    assert_eq!(super::mismatch(row, &facts, &c.knobs, &target), None, "{} of {case:?}", c.knobs);
                    assert!(!list[..n].contains(c), "{} stands twice: {case:?}", c.knobs);
                    assert!(row.knobs.iter().all(|d| c.knobs.get(d.knob).is_some()), "{} is complete", c.knobs);
                }
                for row in &rows {
                    let n = list.iter().filter(|c| c.id == row.id).count();
                    assert!(n <= MAX_SETS_PER_ROW, "{n} of {}", row.name);
                    most = most.max(n);
                }
            }
        }
    }
    assert_eq!(most, MAX_SETS_PER_ROW, "the cap is reached");
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
                    assert_eq!(visible_keys(&case.sdpa()), visible_pairs(&case), "{case:?}");
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
    assert_eq!(ranked(&dense, 100, Mode::A)[0], at(0, 0, 128, 64));
    assert!(ranked(&dense, 100, Mode::A).iter().all(|p| p.contains("SCHED_POLICY=0")), "equal tiles need no order");
    let short = Case { s_q: 40, b: 20, ..case.clone() };
    assert_eq!(ranked(&short, 100, Mode::A)[0], at(1, 2, 128, 64), "rows of one head do not fill a tile");
    let long = Case { s_kv: 1 << 17, s_q: 1 << 17, d_qk: 256, d_v: 256, ..case };
    assert_eq!(ranked(&long, 100, Mode::A)[0], at(0, 1, 64, 64), "one head is 128 MiB: no section fits");
}

/// The wgmma row exists on 9.0 alone and leads there, short blocks of queries included (`kernels/sdpa/fwd/sm90/README.md`); its orders are 2, 1, 0
/// under a causal mask, then other rows of a tile and packed heads.
#[test]
fn hopper_leads_where_it_was_measured() {
    let case = Case { b: 8, h_q: 16, h_kv: 4, s_q: 1024, s_kv: 1024, right: Some(0), ..forward() };
    let hopper = |pack, sched, rows| format!("20517[PACK_GQA={pack},SCHED_POLICY={sched},TILE_M={rows}]");
    let list = ranked(&case, 90, Mode::A);
    assert_eq!(list[..5], [hopper(0, 2, 128), hopper(0, 1, 128), hopper(0, 0, 128), hopper(0, 2, 64), hopper(1, 2, 128)]);
    assert!(list[5].starts_with("20508["));
    assert_eq!(ranked(&case, 90, Mode::Fallback)[0], hopper(0, 0, 128));
    for cc in [80, 89, 100, 120] {
        assert!(ranked(&case, cc, Mode::A).iter().all(|p| !p.starts_with("20517")), "sm_{cc}");
    }
    // 17 tokens of eight heads fill two tiles of 128 rows, one head's a seventh of one: 154 us against 284 (B16 64/8, 4096 keys). With one batch both
    // take one round, and packed tiles leave multiprocessors idle: 310 against 254 us with 32768 keys.
    let few = |b, s_kv| Case { b, h_q: 64, h_kv: 8, s_q: 17, s_kv, bottom_right: true, ..case.clone() };
    assert!(ranked(&few(16, 4096), 90, Mode::A)[0].starts_with("20517[PACK_GQA=1"), "{:?}", ranked(&few(16, 4096), 90, Mode::A));
    assert!(
        ranked(&few(1, 32_768), 90, Mode::A)[0].starts_with("20517[PACK_GQA=0"),
        "{:?}",
        ranked(&few(1, 32_768), 90, Mode::A)
    );
    // Measured: S 128 at d 64 8.4 us on the portable row, 9.1 here; S 256 10.6 and 9.1; d 128 8.45 and 8.35.
    let at = |s, d| {
        let case = Case { b: 1, h_q: 8, h_kv: 8, s_q: s, s_kv: s, d_qk: d, d_v: d, ..case.clone() };
        ranked(&case, 90, Mode::A)[0][..5].to_string()
    };
    assert_eq!([at(128, 64), at(256, 64), at(128, 128)], ["20508", "20517", "20517"]);
}

/// The crossover with a bias that comes through shared memory on one H200 (`kernels/PERFORMANCE.md` section 18): us of the portable row, of tiles of 128 rows and of
/// 64 (none at d 256), one execution, for B1 H8, B4 H16 and B1 32/4. What leads is within 8 % of the fastest of them.
#[test]
fn the_fastest_tile_with_a_bias_leads() {
    type Line = (i64, [[f64; 3]; 3]);
    type Table<'a> = ((i64, i64), Option<i64>, &'a [Line]);
    const NO: f64 = f64::INFINITY;
    let tables: [Table<'_>; 8] = [
        (
            (64, 64),
            None,
            &[
                (128, [[12.3, 9.1, 8.7], [13.2, 10.7, 11.4], [13.1, 9.6, 9.6]]),
                (512, [[29.5, 15.0, 13.4], [67.9, 25.4, 29.6], [36.1, 17.9, 19.5]]),
                (1024, [[54.4, 21.9, 18.0], [218.9, 66.2, 71.8], [118.4, 37.1, 41.3]]),
                (2048, [[117.2, 36.4, 38.4], [797.0, 217.8, 230.8], [410.2, 113.6, 121.3]]),
            ],
        ),
        (
            (64, 64),
            Some(0),
            &[
                (64, [[9.3, 10.6, 10.3], [10.5, 11.2, 10.7], [9.9, 11.1, 11.2]]),
                (128, [[12.3, 11.3, 10.6], [13.5, 11.9, 11.4], [12.4, 10.8, 11.1]]),
                (512, [[28.9, 15.6, 12.7], [43.7, 23.6, 26.8], [33.1, 18.4, 17.8]]),
                (2048, [[107.5, 36.4, 28.1], [423.2, 129.8, 143.8], [218.9, 69.1, 74.4]]),
            ],
        ),
        (
            (128, 128),
            None,
            &[
                (64, [[9.8, 10.7, 8.1], [10.5, 11.5, 9.8], [10.3, 10.7, 8.7]]),
                (512, [[32.6, 16.6, 13.2], [77.8, 30.6, 34.8], [41.5, 20.8, 21.9]]),
                (2048, [[133.9, 40.4, 47.7], [936.9, 241.0, 314.3], [481.1, 126.3, 162.9]]),
            ],
        ),
        (
            (128, 128),
            Some(0),
            &[
                (256, [[18.9, 13.3, 10.5], [24.6, 17.5, 16.9], [20.9, 15.1, 11.8]]),
                (2048, [[121.9, 38.8, 31.6], [495.2, 148.5, 191.7], [253.0, 76.9, 92.9]]),
            ],
        ),
        ((192, 128), None, &[(1024, [[62.3, 25.0, 21.0], [265.7, 91.0, 107.1], [137.7, 50.7, 57.6]])]),
        ((192, 128), Some(0), &[(512, [[34.8, 19.1, 14.5], [52.4, 32.8, 32.4], [38.9, 22.9, 19.2]])]),
        ((256, 256), None, &[(64, [[11.9, 9.4, NO], [13.0, 11.4, NO], [12.4, 10.2, NO]])]),
        ((256, 256), Some(0), &[(2048, [[167.2, 53.9, NO], [719.1, 240.0, NO], [370.5, 129.2, NO]])]),
    ];
    for ((d_qk, d_v), right, lines) in tables {
        for &(s, times) in lines {
            for ((b, h_q, h_kv), us) in [(1, 8, 8), (4, 16, 16), (1, 32, 4)].into_iter().zip(times) {
                let case = Case { b, h_q, h_kv, s_q: s, s_kv: s, d_qk, d_v, right, bias: Some((DType::BF16, b)), ..forward() };
                let first = &ranked(&case, 90, Mode::A)[0];
                assert!(!first.contains("PACK_GQA=1"), "packed heads have no boxes of a bias: {first}");
                let at = if first.starts_with("20508") { 0 } else { 1 + usize::from(first.contains("TILE_M=64")) };
                let fastest = us.iter().copied().fold(NO, f64::min);
                assert!(us[at] <= 1.08 * fastest, "b{b} h{h_q} s{s} d{d_qk}/{d_v} {right:?}: {first} takes {} of {us:?}", us[at]);
            }
        }
    }
}

/// The crossover with a bias that threads read (here its base is a multiple of 8 bytes only) on one H200 (`kernels/PERFORMANCE.md` section 18): time of the
/// portable row over the wgmma row's, one execution, for B1 H8, B4 H16 and B1 32/4.
#[test]
fn the_faster_row_with_a_bias_that_threads_read_leads() {
    type Line = (i64, [f64; 3]);
    /// Head dims, right bound, sizes.
    type Table<'a> = ((i64, i64), Option<i64>, &'a [Line]);
    let tables: [Table<'_>; 7] = [
        (
            (64, 64),
            None,
            &[(64, [0.80, 0.84, 0.79]), (256, [1.08, 0.76, 1.09]), (1024, [1.10, 0.69, 0.72]), (2048, [0.70, 0.64, 0.65])],
        ),
        ((64, 64), Some(0), &[(1024, [1.05, 0.67, 0.67]), (2048, [1.11, 0.66, 0.66])]),
        ((128, 128), None, &[(64, [0.73, 0.79, 0.76]), (512, [1.01, 0.82, 0.82]), (2048, [0.79, 0.76, 0.76])]),
        ((128, 128), Some(0), &[(256, [1.08, 0.76, 1.10]), (2048, [1.20, 0.76, 0.74])]),
        ((192, 128), None, &[(128, [1.07, 1.06, 1.02]), (1024, [1.17, 0.79, 0.79])]),
        ((192, 128), Some(0), &[(1024, [1.14, 0.75, 0.75]), (2048, [1.19, 0.77, 0.75])]),
        ((256, 256), Some(0), &[(64, [0.68, 0.80, 0.79]), (512, [0.72, 0.89, 0.86]), (2048, [0.85, 0.93, 0.93])]),
    ];
    for ((d_qk, d_v), right, lines) in tables {
        for &(s, ratios) in lines {
            for ((b, h_q, h_kv), ratio) in [(1, 8, 8), (4, 16, 16), (1, 32, 4)].into_iter().zip(ratios) {
                let bias = Some((DType::BF16, b));
                let case = Case { b, h_q, h_kv, s_q: s, s_kv: s, d_qk, d_v, right, bias, ..forward() };
                let mut facts = case.sdpa();
                facts.ports.bias.as_mut().expect("a bias").alignment = 8;
                let first = ranked_facts(&Facts::Sdpa(Box::new(facts)), 90, Mode::A)[0][..5].to_string();
                let want = if ratio < 1.0 { "20508" } else { "20517" };
                assert_eq!(first, want, "b{b} h{h_q} s{s} d{d_qk}/{d_v} {right:?}");
            }
        }
    }
}

/// Measured on one H200 in one run (`kernels/PERFORMANCE.md` section 11), us by rows of a tile: what leads is within 7 % of the fastest, most of it the fastest.
#[test]
fn rows_of_a_tile_agree_with_measurement() {
    let d64 = [192, 128, 64];
    let wide = [128, 64];
    /// Batch, heads, key heads, tokens, causal; times.
    type Line = (i64, i64, i64, i64, bool, &'static [f64]);
    /// Head dims, rows of a tile in the order of the times, shapes.
    type Table<'a> = ((i64, i64), &'a [i64], &'a [Line]);
    let tables: [Table<'_>; 3] = [
        (
            (64, 64),
            &d64,
            &[
                (2, 8, 2, 256, true, &[10.4, 10.8, 9.3]),
                (1, 16, 16, 512, true, &[13.8, 14.2, 12.4]),
                (1, 8, 8, 1024, false, &[20.2, 17.8, 13.3]),
                (1, 8, 8, 2048, true, &[29.6, 28.0, 22.4]),
                (1, 8, 8, 3072, true, &[40.9, 35.5, 36.5]),
                (1, 8, 8, 4096, true, &[50.8, 47.6, 53.1]),
                (1, 16, 16, 2048, true, &[29.8, 31.6, 36.1]),
                (1, 16, 16, 4096, true, &[80.7, 84.3, 99.1]),
                (1, 32, 32, 1024, true, &[22.6, 22.7, 27.5]),
                (1, 16, 16, 1024, false, &[22.0, 19.8, 20.9]),
                (1, 16, 16, 2048, false, &[55.8, 47.0, 49.1]),
                (1, 8, 8, 2048, false, &[32.7, 30.0, 29.4]),
                (1, 8, 8, 4096, false, &[96.4, 83.5, 81.3]),
                (1, 32, 32, 512, false, &[17.0, 14.8, 16.4]),
                (1, 12, 12, 1024, false, &[21.0, 18.7, 20.5]),
            ],
        ),
        (
            (128, 128),
            &wide,
            &[
                (1, 32, 8, 256, true, &[13.2, 11.4]),
                (1, 16, 16, 512, false, &[15.4, 12.6]),
                (1, 32, 8, 1024, true, &[28.4, 29.9]),
                (1, 16, 4, 1024, false, &[21.5, 24.4]),
                (1, 8, 8, 2048, true, &[31.7, 25.9]),
                (1, 8, 8, 4096, true, &[57.8, 67.8]),
                (1, 16, 16, 1024, true, &[23.6, 19.8]),
                (1, 16, 16, 2048, true, &[38.0, 44.4]),
                (1, 16, 16, 2048, false, &[54.9, 65.3]),
                (1, 8, 8, 1024, false, &[20.4, 16.1]),
                (1, 24, 8, 1024, false, &[33.8, 31.9]),
                (1, 8, 8, 2048, false, &[32.0, 36.5]),
                (1, 32, 8, 512, false, &[16.9, 19.4]),
            ],
        ),
        (
            (192, 128),
            &wide,
            &[
                (1, 16, 16, 512, true, &[17.9, 13.6]),
                (1, 16, 16, 1024, true, &[26.2, 22.7]),
                (1, 8, 8, 2048, true, &[37.9, 28.8]),
                (1, 16, 16, 2048, true, &[44.3, 53.4]),
            ],
        ),
    ];
    for ((d_qk, d_v), rows, lines) in tables {
        for &(b, h_q, h_kv, s, causal, times) in lines {
            let right = causal.then_some(0);
            let first = &ranked(&Case { b, h_q, h_kv, s_q: s, s_kv: s, d_qk, d_v, right, ..forward() }, 90, Mode::A)[0];
            let at = rows.iter().position(|r| first.contains(&format!("TILE_M={r}]"))).unwrap_or_else(|| panic!("{first}"));
            let best = times.iter().copied().fold(f64::MAX, f64::min);
            assert!(times[at] <= 1.07 * best, "d {d_qk} {h_q}/{h_kv} S {s} causal {causal}: {first}, {} of {times:?}", times[at]);
        }
    }
}

/// Measured on an H200: tiles of 64 rows where those of 128 are fewer than the multiprocessors, half as many under a band.
#[test]
fn few_blocks_take_shorter_tiles() {
    let first = |h: i64, s: i64, d: i64, causal: bool, cc: u32| {
        let right = causal.then_some(0);
        let case = Case { b: 1, h_q: h, h_kv: h, s_q: s, s_kv: s, d_qk: d, d_v: d, right, ..forward() };
        let first = ranked(&case, cc, Mode::A).into_iter().find(|p| p.starts_with("20508")).expect("a plan of the row");
        let at = |name: &str| first.split(name).nth(1).and_then(|t| t.split([',', ']']).next()?.parse::<i64>().ok());
        (at("TILE_M=").unwrap_or(0), at("TILE_N=").unwrap_or(0))
    };
    assert_eq!(first(16, 512, 128, false, 90), (64, 64), "64 blocks");
    assert_eq!(first(8, 1024, 64, false, 90), (64, 128), "64 blocks, 1,024 keys");
    assert_eq!(first(8, 1024, 64, false, 80), (64, 64), "128 keys a tile were measured on compute capability 9.0");
    assert_eq!(first(16, 1024, 128, false, 90), (64, 64), "128 blocks, 256 of 64 rows");
    assert_eq!(first(17, 1024, 128, false, 90), (128, 64), "136 blocks");
    assert_eq!(first(8, 2048, 128, true, 90), (64, 128), "half of 256 blocks of 64 rows");
    assert_eq!(first(32, 1024, 128, true, 90), (64, 64), "half of 256 blocks");
    assert_eq!(first(34, 1024, 128, true, 90), (128, 64), "half of 272 blocks");
}

#[test]
fn decode_leads_where_it_serves() {
    let list = ranked(&token(1, 8192), 90, Mode::A);
    assert_eq!(list[..4], ["20551[SPLIT_KV=16]", "20551[SPLIT_KV=1]", "20551[SPLIT_KV=8]", "20551[SPLIT_KV=32]"]);
    assert!(list[4].starts_with("20517["));
    assert_eq!(ranked(&token(1, 8192), 90, Mode::Fallback)[0], "20551[SPLIT_KV=1]");
}
