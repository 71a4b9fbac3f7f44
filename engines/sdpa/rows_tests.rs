//! Properties of every attention row of the manifest, over a spread of graphs.

use super::matching::head_dim_fit;
use super::testing::{Case, Order, Random};
use super::{Direction, Recipe};
use crate::{Caps, DType, Facts, Family, Knobs, Mode, Row, Target, MANIFEST};

fn targets() -> Vec<Target> {
    let cuda = [80, 86, 89, 90, 100, 103, 110, 120, 121];
    let mut all: Vec<Target> = cuda.into_iter().filter_map(Target::describe).collect();
    all.push(Target::Cpu);
    all
}

fn random_case(r: &mut Random) -> Case {
    let dims = [8, 40, 64, 96, 128, 192, 256, 264];
    let flip = |r: &mut Random, odds| r.below(odds) == 0;
    let (d_qk, d_v) = (dims[r.below(8)], dims[r.below(8)]);
    let d_v = if flip(r, 2) { d_qk } else { d_v };
    let h_kv = 1 + r.below(3) as i64;
    let thd = flip(r, 4).then(|| [DType::I32, DType::I64][r.below(2)]);
    let bias = (thd.is_none() && flip(r, 4)).then(|| [(DType::F32, 1), (DType::F32, 2)][r.below(2)]);
    let sink = flip(r, 4);
    let direction = [Direction::Forward, Direction::Backward][r.below(2)];
    let backward = direction == Direction::Backward;
    Case {
        direction,
        recipe: [Recipe::Plain, Recipe::Nvfp4Qat][usize::from(flip(r, 4))],
        b: 2,
        h_q: h_kv * (1 + r.below(3) as i64),
        h_kv,
        s_q: [1, 63, 128, 200][r.below(4)],
        s_kv: [64, 129, 300][r.below(3)],
        d_qk,
        d_v,
        dtype: [DType::F32, DType::F16, DType::BF16, DType::F8E4M3][r.below(4)],
        order: [Order::Bshd, Order::Bhsd, Order::Sbhd][r.below(3)],
        left: flip(r, 3).then(|| r.below(100) as i64),
        right: flip(r, 2).then(|| r.below(2) as i64 * 5),
        bottom_right: flip(r, 2),
        padded: flip(r, 3),
        thd,
        token_major_stats: flip(r, 2),
        totals: flip(r, 2).then_some((300, 400)),
        bias,
        dbias: bias.filter(|_| backward && flip(r, 2)).map(|_| DType::F32),
        sink,
        dsink: sink && backward && flip(r, 2),
        deterministic: backward && flip(r, 2),
        scale: [0.125, 1.0, 0.0][r.below(3)],
        stats: flip(r, 2),
        stats_log2: !backward && flip(r, 6),
        stats_gap: [0, 0, 3][r.below(3)],
        paged: false,
        dropout: flip(r, 12),
        alibi: flip(r, 12),
    }
}

/// The same graph with one thing less. Only removals that leave a graph of the same kind: a bias goes with its gradient.
fn simpler(c: &Case) -> Vec<Case> {
    let no = |edit: fn(&mut Case)| {
        let mut s = c.clone();
        edit(&mut s);
        s
    };
    vec![
        no(|s| s.deterministic = false),
        no(|s| s.dbias = None),
        no(|s| (s.bias, s.dbias) = (None, None)),
        no(|s| s.dsink = false),
        no(|s| (s.sink, s.dsink) = (false, false)),
        no(|s| s.dropout = false),
        no(|s| s.alibi = false),
        no(|s| s.left = None),
        no(|s| (s.right, s.bottom_right) = (None, false)),
        no(|s| s.bottom_right = false),
        no(|s| s.padded = false),
        no(|s| s.thd = None),
        no(|s| s.stats = false),
        no(|s| s.stats_log2 = false),
        no(|s| s.stats_gap = 0),
        no(|s| s.scale = 0.125),
        no(|s| s.h_q = s.h_kv),
        no(|s| s.d_v = s.d_qk),
    ]
}

fn rows() -> impl Iterator<Item = (&'static Family, &'static Row)> {
    MANIFEST.iter().copied().flat_map(|f| f.rows.iter().map(move |r| (f, r))).filter(|(_, r)| r.caps.sdpa().is_some())
}

fn accepts(family: &Family, row: &Row, case: &Case, target: &Target) -> bool {
    (family.mismatch)(row, &case.facts(), &Knobs::NONE, target).is_none()
}

#[test]
fn removing_a_feature_never_turns_an_accept_into_a_decline() {
    let mut r = Random::new(1);
    let targets = targets();
    for _ in 0..400 {
        let case = random_case(&mut r);
        for (family, row) in rows() {
            for target in &targets {
                if !accepts(family, row, &case, target) {
                    continue;
                }
                let fits = |c: &Case| row.caps.sdpa().is_some_and(|caps| head_dim_fit(&caps.head_dims, c.d_qk, c.d_v).is_some());
                // Equal head dims are less of a feature, but another flavour, which a row need not have.
                for less in simpler(&case).into_iter().filter(fits) {
                    let d = (family.mismatch)(row, &less.facts(), &Knobs::NONE, target);
                    assert_eq!(d, None, "{} accepts {case:?} and declines {less:?}", row.name);
                }
            }
        }
    }
}

#[test]
fn every_row_accepts_something_and_declines_something() {
    let mut r = Random::new(2);
    let cases: Vec<Case> = (0..2000).map(|_| random_case(&mut r)).collect();
    let targets = targets();
    for (family, row) in rows() {
        let accepted = targets.iter().any(|t| cases.iter().any(|c| accepts(family, row, c, t)));
        let declined = targets.iter().any(|t| cases.iter().any(|c| !accepts(family, row, c, t)));
        assert!(accepted && declined, "{}", row.name);
    }
}

/// What is ranked is exactly what is eligible: every row once or more, never one that declines, no duplicates, at most six sets a row.
#[test]
fn rank_is_a_permutation_of_the_eligible_rows() {
    let mut r = Random::new(3);
    let targets = targets();
    for _ in 0..200 {
        let facts = random_case(&mut r).facts();
        for target in &targets {
            for family in MANIFEST {
                let all: Vec<&'static Row> = family.rows.iter().collect();
                for mode in [Mode::A, Mode::B, Mode::Fallback, Mode::OpenSource] {
                    let ranked = (family.recommend)(&facts, target, &all, mode);
                    let mut eligible: Vec<u32> = all
                        .iter()
                        .filter(|row| (family.mismatch)(row, &facts, &Knobs::NONE, target).is_none())
                        .map(|row| row.id)
                        .collect();
                    let mut ids: Vec<u32> = ranked.iter().map(|c| c.id).collect();
                    // Proposals of one row stand together; which row comes first is a measurement, not the row order.
                    ids.dedup();
                    ids.sort_unstable();
                    eligible.sort_unstable();
                    assert_eq!(ids, eligible, "{} {mode:?}", family.name);
                    for (i, c) in ranked.iter().enumerate() {
                        let row = crate::row_by_id(c.id).expect("a row");
                        assert_eq!((family.mismatch)(row, &facts, &c.knobs, target), None);
                        assert!(!ranked[..i].contains(c), "{} twice", c.id);
                        let complete = row.knobs.iter().all(|d| c.knobs.get(d.knob).is_some());
                        assert!(complete, "{}: knobs of a proposal are complete", row.name);
                    }
                    for id in &ids {
                        assert!(ranked.iter().filter(|c| c.id == *id).count() <= super::ranking::MAX_SETS_PER_ROW);
                    }
                    let fewer = (family.recommend)(&facts, target, &all[1..], mode);
                    assert!(fewer.iter().all(|c| c.id != all[0].id), "a row that is not offered is not ranked");
                }
            }
        }
    }
}

/// Whatever `mismatch` lets through has to lower: a decline after ranking is report #120.
#[test]
fn accepted_graphs_lower_report_120() {
    let mut r = Random::new(120);
    let targets = targets();
    for _ in 0..400 {
        let case = random_case(&mut r);
        for (family, row) in rows() {
            for target in &targets {
                if accepts(family, row, &case, target) {
                    let plan = (row.lower)(&case.facts(), &Knobs::NONE, target);
                    assert!(plan.is_ok_and(|p| !p.steps.is_empty()), "{} {case:?}", row.name);
                }
            }
        }
    }
}

#[test]
fn native_head_dims_obey_their_own_rule() {
    for (_, row) in rows() {
        let Caps::Sdpa(caps) = row.caps else { continue };
        for &(q, v) in caps.head_dims.native {
            assert!(!caps.head_dims.dqk_ge_dv || q >= v, "{} {q}/{v}", row.name);
            assert_eq!(super::matching::head_dim_fit(&caps.head_dims, q, v), Some(super::matching::HeadDimFit::Native));
        }
    }
}

/// Report #35: a broadcast output is a race, whatever else a row accepts.
#[test]
fn zero_stride_outputs_are_refused_report_35() {
    for (family, row) in rows() {
        for target in targets() {
            for (direction, recipe) in [Direction::Forward, Direction::Backward]
                .into_iter()
                .flat_map(|d| [Recipe::Plain, Recipe::Nvfp4Qat].map(|r| (d, r)))
            {
                let mut f = Case { direction, recipe, h_q: 2, h_kv: 2, ..Case::default() }.sdpa();
                let out = if direction == Direction::Forward { &mut f.ports.o } else { &mut f.ports.dk };
                out.as_mut().expect("an output").stride[0] = 0;
                assert!((family.mismatch)(row, &Facts::Sdpa(Box::new(f)), &Knobs::NONE, &target).is_some(), "{}", row.name);
            }
        }
    }
}
