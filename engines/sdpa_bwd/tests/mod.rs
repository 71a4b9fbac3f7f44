//! The SM120 chain as data: routes, workspace, declines, launches.

mod declines;
mod launches;
mod routes;

use super::goldens::sm120;
use super::workspace::{scratch_workspace_bytes, Route};
use super::{config, rules, workspace};
use crate::sdpa::testing::{Case, Order};
use crate::sdpa::{Direction, SdpaFacts};
use crate::{Arg, Base, DType, DeclineCode as Code, Facts, Feature, Knob, Knobs, LaunchPlan, Step, Target};

fn target(cc: u32) -> Target {
    Target::describe(cc).expect("a known device")
}

fn mismatch(facts: &Facts, knobs: &Knobs) -> Option<(Code, String)> {
    super::mismatch(sm120(), facts, knobs, &target(120)).map(|d| (d.code, d.to_string()))
}

fn declined(facts: &Facts) -> Code {
    mismatch(facts, &Knobs::NONE).expect("a decline").0
}

fn bent(case: &Case, bend: impl FnOnce(&mut SdpaFacts)) -> Facts {
    let mut f = case.sdpa();
    bend(&mut f);
    Facts::Sdpa(Box::new(f))
}

fn plan(case: &Case, knobs: &Knobs, target: &Target) -> LaunchPlan {
    let facts = case.facts();
    assert_eq!(super::mismatch(sm120(), &facts, knobs, target), None, "{case:?}");
    (sm120().lower)(&facts, knobs, target).expect("an accepted graph lowers")
}

fn names(plan: &LaunchPlan) -> Vec<&'static str> {
    let name = |s: &Step| match s {
        Step::Kernel(l) => l.name,
        Step::Host(h) => h.name,
    };
    plan.steps.iter().map(name).collect()
}

fn route_of(case: &Case) -> Route {
    let f = case.sdpa();
    rules::choose(sm120(), &f, &Knobs::NONE, &target(120)).expect("an accepted graph").route
}

fn small() -> Case {
    Case { b: 1, h_q: 4, h_kv: 4, s_q: 128, s_kv: 128, d_qk: 64, d_v: 64, ..Case::default() }
}

fn gqa() -> Case {
    Case { h_kv: 2, ..Case::default() }
}
