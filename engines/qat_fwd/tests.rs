//! The CUDA rows: their launches against their kernels, their workspace, their declines.

use super::goldens::{case, cases, mma_row, sm90_row};
use super::{mma, sm90};
use crate::sdpa::testing::Case;
use crate::sdpa::{abi, goldens, SdpaFacts};
use crate::{Arg, Base, DType, DeclineCode as Code, Facts, Knob, Knobs, Launch, LaunchPlan, Row, Step, Target};

fn target(cc: u32) -> Target {
    Target::describe(cc).expect("a known device")
}

fn bent(case: &Case, bend: impl FnOnce(&mut SdpaFacts)) -> Facts {
    let mut f = case.sdpa();
    bend(&mut f);
    Facts::Sdpa(Box::new(f))
}

fn rows() -> [&'static Row; 2] {
    [sm90_row(), mma_row()]
}

fn plan(row: &Row, facts: &Facts, knobs: &Knobs) -> LaunchPlan {
    assert_eq!(super::mismatch(row, facts, knobs, &target(90)), None, "{}", row.name);
    (row.lower)(facts, knobs, &target(90)).expect("an accepted graph lowers")
}

/// The code with which both rows decline.
fn declined(facts: &Facts) -> Code {
    let [a, b] = rows().map(|row| super::mismatch(row, facts, &Knobs::NONE, &target(90)).expect("a decline").code);
    assert_eq!(a, b);
    a
}

/// The three launches.
fn launches(plan: &LaunchPlan) -> [&Launch; 3] {
    let list = plan.steps.iter().map(|s| match s {
        Step::Kernel(l) => l,
        Step::Host(h) => panic!("a host step {}", h.name),
    });
    list.collect::<Vec<_>>().try_into().expect("three launches")
}

fn arg<'a>(l: &'a Launch, name: &str) -> &'a Arg {
    let at = l.names.iter().position(|n| *n == name).unwrap_or_else(|| panic!("{} has no {name}", l.name));
    &l.args[at]
}

#[test]
fn parameters_and_switches_are_those_of_the_kernels() {
    for (row, sources) in [(sm90_row(), sm90::SOURCES), (mma_row(), mma::SOURCES)] {
        let cases = cases();
        let own = cases.iter().filter(|(r, _)| r.id == row.id);
        let launches: Vec<Launch> = own.flat_map(|(row, g)| goldens::launches(row, g)).collect();
        abi::check_parameters(&launches, sources);
        abi::check_switches(&launches);
    }
}

/// S7: no stride is narrower than 64 bits.
#[test]
fn strides_are_64_bits_s7() {
    let mut seen = 0;
    for l in cases().iter().flat_map(|(row, g)| goldens::launches(row, g)) {
        for (name, arg) in l.names.iter().zip(&l.args) {
            if ["_sb", "_sh", "_ss"].iter().any(|s| name.ends_with(s)) {
                assert!(matches!(arg, Arg::I64(_)), "{}: {name} is {arg:?}", l.name);
                seen += 1;
            }
        }
    }
    assert!(seen > 60, "{seen}");
}

/// Where a walk reads an operand from, by pointer or by tensor map.
fn base(l: &Launch, name: &str) -> Base {
    let map = format!("tm_{name}");
    match arg(l, if l.names.contains(&name) { name } else { &map }) {
        Arg::Ptr(base) => *base,
        Arg::Map(map) => map.base,
        other => panic!("{}: {name} is {other:?}", l.name),
    }
}

/// Both walks read the copies that the first launch writes, with the strides of the copies, and share one LSE.
#[test]
fn walks_read_the_quantised_copies_and_one_lse() {
    for row in rows() {
        let plan = plan(row, &case().facts(), &Knobs::NONE);
        let [quantize, first, second] = launches(&plan);
        for (name, hat) in [("q", "q_hat"), ("k", "k_hat"), ("v", "v_hat")] {
            let copy = base(quantize, hat);
            assert!(matches!(copy, Base::Region(_)) && matches!(base(quantize, name), Base::Tensor(_)));
            assert_eq!((base(first, name), base(second, name)), (copy, copy), "{} {name}", row.name);
        }
        assert_eq!(arg(first, "stats"), &Arg::Ptr(Base::Tensor(9)));
        assert_eq!(arg(second, "lse"), &Arg::Ptr(Base::Tensor(9)));
        assert_eq!((arg(first, "o"), arg(second, "o")), (&Arg::Ptr(Base::Tensor(16)), &Arg::Ptr(Base::Tensor(4))));
    }
}

/// B 2, H 8, S_q 200, S_kv 300, d 128; the operands themselves are (B, S, H, D).
#[test]
fn copies_are_addressed_by_their_own_strides() {
    let plan = |row| plan(row, &case().facts(), &Knobs::NONE);
    for walk in &launches(&plan(mma_row()))[1..] {
        let strides = ["q_sb", "q_sh", "q_ss", "k_sb", "k_sh", "k_ss"].map(|n| arg(walk, n));
        let want = [8 * 200 * 128, 200 * 128, 128, 8 * 300 * 128, 300 * 128, 128].map(Arg::I64);
        assert_eq!(strides, want.each_ref(), "{}", walk.name);
    }
    for walk in &launches(&plan(sm90_row()))[1..] {
        for (name, rows) in [("tm_q", 200), ("tm_k", 300), ("tm_v", 300)] {
            let Arg::Map(map) = arg(walk, name) else { panic!("{name} is a map") };
            assert_eq!(map.stride_bytes, [256, rows * 256, 8 * rows * 256], "{} {name}", walk.name);
            assert_eq!(map.dim, [128, rows, 8, 2].map(Some), "{} {name}", walk.name);
        }
    }
}

/// Three copies and nothing else; LSE where the graph has no Stats; O takes the high-precision one where the graph has none.
#[test]
fn workspace_is_the_copies_and_an_unasked_lse() {
    let copies = 2 * 2 * 8 * 128 * (200 + 300 + 300);
    for row in rows() {
        assert_eq!(plan(row, &case().facts(), &Knobs::NONE).workspace_bytes, copies);
        let bare = plan(row, &bent(&Case { stats: false, ..case() }, |f| f.ports.high_precision_o = None), &Knobs::NONE);
        assert_eq!(bare.workspace_bytes, copies + 4 * 2 * 8 * 200);
        let [_, first, second] = launches(&bare);
        assert_eq!((base(first, "stats"), base(second, "lse")), (Base::Region(3), Base::Region(3)));
        let strides = ["lse_sb", "lse_sh", "lse_ss"].map(|n| arg(second, n));
        assert_eq!(strides, [1600, 200, 1].map(Arg::I64).each_ref());
        assert_eq!((base(first, "o"), base(second, "o")), (Base::Tensor(4), Base::Tensor(4)));
    }
}

/// Blocks hold 8192 values: 64 rows of d 128, 102 whole rows of d 80.
#[test]
fn quantize_covers_every_row() {
    for row in rows() {
        let grid = |c: Case| launches(&plan(row, &c.facts(), &Knobs::NONE))[0].grid[0];
        assert_eq!(grid(case()), 2 * 8 * (4 + 5 + 5));
        assert_eq!(grid(Case { d_qk: 80, d_v: 48, h_kv: 2, ..case() }), 2 * (8 * 2 + 2 * (3 + 2)));
    }
}

/// The order of the tiles is one for both walks, and `LptL2` counts sections in each walk's own tiles.
#[test]
fn orders_reach_both_walks() {
    let causal = Case { right: Some(0), d_qk: 64, d_v: 64, ..case() };
    for sched in [0, 1, 2] {
        let knobs = Knobs::new(&[(Knob::SchedPolicy, sched)]);
        for walk in &launches(&plan(mma_row(), &causal.facts(), &knobs))[1..] {
            assert!(walk.kernel.defines.contains(&("FG_SCHED", i64::from(sched > 0))), "{}", walk.name);
            assert_eq!(arg(walk, "section"), &Arg::I32(16), "{}", walk.name);
        }
        let hopper = plan(sm90_row(), &causal.facts(), &knobs);
        let [_, first, second] = launches(&hopper);
        let longest_first = i32::from(sched > 0);
        assert_eq!(
            (arg(first, "form_bits"), arg(second, "longest_first")),
            (&Arg::I32(16 * longest_first), &Arg::I32(longest_first))
        );
        assert_eq!((arg(first, "section"), arg(second, "section")), (&Arg::I32(16), &Arg::I32(16)));
    }
}

#[test]
fn what_the_rows_do_not_serve_is_declined() {
    assert_eq!(declined(&Case { d_qk: 72, ..case() }.facts()), Code::HeadDim);
    assert_eq!(declined(&Case { d_qk: 144, d_v: 144, ..case() }.facts()), Code::HeadDim);
    assert_eq!(declined(&Case { dtype: DType::F16, ..case() }.facts()), Code::DType);
    assert_eq!(declined(&Case { thd: Some(DType::I32), ..case() }.facts()), Code::Feature);
    assert_eq!(declined(&Case { scale: 1e-31, ..case() }.facts()), Code::Geometry);
    assert_eq!(declined(&Case { scale: -1.0, ..case() }.facts()), Code::Geometry);
    assert_eq!(declined(&Case { scale: f32::NAN, ..case() }.facts()), Code::Geometry);
    // 2^28 keys of 2 * 8 heads are 1 TiB each of K and V.
    assert_eq!(declined(&Case { s_kv: 1 << 28, ..case() }.facts()), Code::Resources);
    assert_eq!(declined(&Case { s_kv: 1 << 40, ..case() }.facts()), Code::Geometry);
    for (row, foreign) in [(mma_row(), [80, 89]), (sm90_row(), [89, 100])] {
        for cc in foreign {
            let d = super::mismatch(row, &case().facts(), &Knobs::NONE, &target(cc)).expect("a decline");
            assert_eq!(d.code, Code::Arch, "{} on {cc}", row.name);
        }
    }
}
