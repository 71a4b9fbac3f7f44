//! Faults reported against systems of this kind, as far as a CPU engine can have them. Numbers are those of the field reports.

mod places;
#[path = "../support/mod.rs"]
mod support;
mod values;

use frostgraph_engines::sdpa::Mask;
use support::uid::*;
use support::*;

fn causal(bottom_right: bool) -> Mask {
    Mask { right: Some(0), bottom_right, ..Mask::default() }
}

/// Q = 0 and V[j] = j: every row of O is the mean index of the keys it keeps.
fn uniform(spec: Spec) -> Case {
    let s = spec.clone();
    let mut case = Case::new(spec);
    case.set(Q, vec![0.0; s.b * s.hq * s.sq * s.dqk]);
    case.set(V, (0..s.b * s.hkv * s.skv * s.dv).map(|i| (i / s.dv % s.skv) as f64).collect());
    case
}

/// O of head 0 of batch 0, first column.
fn column(case: &Case) -> Vec<f64> {
    let got = case.forward().unwrap();
    let o = case.spots[&O].read(got[&O].bytes(), case.spec.sq);
    o.chunks(case.spec.dv).take(case.spec.sq).map(|r| r[0]).collect()
}
