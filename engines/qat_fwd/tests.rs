//! The CUDA row: its launches against their kernels, its workspace, its declines.

use super::goldens::{case, cases, mma_row};
use super::mma;
use crate::sdpa::testing::Case;
use crate::sdpa::{abi, goldens, SdpaFacts};
use crate::{Arg, Base, DType, DeclineCode as Code, Facts, Knob, Knobs, Launch, LaunchPlan, Step, Target};

fn target(cc: u32) -> Target {
    Target::describe(cc).expect("a known device")
}

fn bent(case: &Case, bend: impl FnOnce(&mut SdpaFacts)) -> Facts {
    let mut f = case.sdpa();
    bend(&mut f);
    Facts::Sdpa(Box::new(f))
}

fn plan(facts: &Facts, knobs: &Knobs, cc: u32) -> LaunchPlan {
    assert_eq!(super::mismatch(mma_row(), facts, knobs, &target(cc)), None);
    (mma_row().lower)(facts, knobs, &target(cc)).expect("an accepted graph lowers")
}

fn declined(facts: &Facts) -> Code {
    super::mismatch(mma_row(), facts, &Knobs::NONE, &target(90)).expect("a decline").code
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
    let launches: Vec<Launch> = cases().iter().flat_map(|g| goldens::launches(mma_row(), g)).collect();
    abi::check_parameters(&launches, mma::SOURCES);
    abi::check_switches(&launches);
}

/// S7: no stride is narrower than 64 bits.
#[test]
fn strides_are_64_bits_s7() {
    let mut seen = 0;
    for l in cases().iter().flat_map(|g| goldens::launches(mma_row(), g)) {
        for (name, arg) in l.names.iter().zip(&l.args) {
            if ["_sb", "_sh", "_ss"].iter().any(|s| name.ends_with(s)) {
                assert!(matches!(arg, Arg::I64(_)), "{}: {name} is {arg:?}", l.name);
                seen += 1;
            }
        }
    }
    assert!(seen > 60, "{seen}");
}

/// Both walks read the copies that the first launch writes, with the strides of the copies, and share one LSE.
#[test]
fn walks_read_the_quantised_copies_and_one_lse() {
    let plan = plan(&case().facts(), &Knobs::NONE, 90);
    let [quantize, first, second] = launches(&plan);
    for (name, hat) in [("q", "q_hat"), ("k", "k_hat"), ("v", "v_hat")] {
        let copy = arg(quantize, hat);
        assert!(matches!(copy, Arg::Ptr(Base::Region(_))) && matches!(arg(quantize, name), Arg::Ptr(Base::Tensor(_))));
        assert_eq!((arg(first, name), arg(second, name)), (copy, copy), "{name}");
    }
    // B 2, H 8, S_q 200, S_kv 300, d 128; the operands themselves are (B, S, H, D).
    for walk in [first, second] {
        let strides = ["q_sb", "q_sh", "q_ss", "k_sb", "k_sh", "k_ss"].map(|n| arg(walk, n));
        let want = [8 * 200 * 128, 200 * 128, 128, 8 * 300 * 128, 300 * 128, 128].map(Arg::I64);
        assert_eq!(strides, want.each_ref(), "{}", walk.name);
    }
    assert_eq!(arg(first, "stats"), &Arg::Ptr(Base::Tensor(9)));
    assert_eq!(arg(second, "lse"), &Arg::Ptr(Base::Tensor(9)));
    assert_eq!((arg(first, "o"), arg(second, "o")), (&Arg::Ptr(Base::Tensor(16)), &Arg::Ptr(Base::Tensor(4))));
}

/// Three copies and nothing else; LSE where the graph has no Stats; O takes the high-precision one where the graph has none.
#[test]
fn workspace_is_the_copies_and_an_unasked_lse() {
    let copies = 2 * 2 * 8 * 128 * (200 + 300 + 300);
    assert_eq!(plan(&case().facts(), &Knobs::NONE, 90).workspace_bytes, copies);
    let bare = plan(&bent(&Case { stats: false, ..case() }, |f| f.ports.high_precision_o = None), &Knobs::NONE, 90);
    assert_eq!(bare.workspace_bytes, copies + 4 * 2 * 8 * 200);
    let [_, first, second] = launches(&bare);
    assert_eq!((arg(first, "stats"), arg(second, "lse")), (&Arg::Ptr(Base::Region(3)), &Arg::Ptr(Base::Region(3))));
    assert_eq!(["lse_sb", "lse_sh", "lse_ss"].map(|n| arg(second, n)), [Arg::I64(1600), Arg::I64(200), Arg::I64(1)].each_ref());
    assert_eq!((arg(first, "o"), arg(second, "o")), (&Arg::Ptr(Base::Tensor(4)), &Arg::Ptr(Base::Tensor(4))));
}

/// Blocks hold 8192 values: 64 rows of d 128, 102 whole rows of d 80.
#[test]
fn quantize_covers_every_row() {
    let grid = |c: Case| launches(&plan(&c.facts(), &Knobs::NONE, 90))[0].grid[0];
    assert_eq!(grid(case()), 2 * 8 * (4 + 5 + 5));
    assert_eq!(grid(Case { d_qk: 80, d_v: 48, h_kv: 2, ..case() }), 2 * (8 * 2 + 2 * (3 + 2)));
}

/// The order of the tiles is one for both walks, and `LptL2` counts sections in each walk's own tiles.
#[test]
fn orders_reach_both_walks() {
    let causal = Case { right: Some(0), d_qk: 64, d_v: 64, ..case() };
    for sched in [0, 1, 2] {
        let plan = plan(&causal.facts(), &Knobs::new(&[(Knob::SchedPolicy, sched)]), 90);
        let [_, first, second] = launches(&plan);
        for walk in [first, second] {
            assert!(walk.kernel.defines.contains(&("FG_SCHED", i64::from(sched > 0))), "{}", walk.name);
            assert_eq!(arg(walk, "section"), &Arg::I32(16), "{}", walk.name);
        }
    }
}

#[test]
fn what_the_row_does_not_serve_is_declined() {
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
    for cc in [80, 89] {
        let d = super::mismatch(mma_row(), &case().facts(), &Knobs::NONE, &target(cc)).expect("a decline");
        assert_eq!(d.code, Code::Arch);
    }
}
