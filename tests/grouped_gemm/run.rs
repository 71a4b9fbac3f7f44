//! Runs on the CPU: every form against the oracle, what the seed fills, faulty ends.

use crate::cpu_run::{execute, matches_the_oracle};
use crate::support::{build, nvfp4, served, Case};
use frostgraph::sample::{check, expected, inputs, HostTensors};
use frostgraph::ErrorCode;

#[test]
fn every_form_matches_the_oracle() {
    for (seed, (name, case)) in served().into_iter().enumerate() {
        matches_the_oracle(name, &build(&case).unwrap().0, seed as u64);
    }
    let case = Case { dbias: true, d_srelu: true, status: true, ..Case::default() };
    matches_the_oracle("everything", &build(&case).unwrap().0, 5);
}

/// The definition: a NaN among an expert's results makes its amax NaN, and no other's.
#[test]
fn a_nan_among_an_experts_results_is_its_amax() {
    let (g, h) = build(&nvfp4()).unwrap();
    let frozen = g.freeze().unwrap();
    let uid = |id| frozen.tensor(id).uid.unwrap();
    let mut data = inputs(&frozen, 11, HostTensors::default()).unwrap();
    // Experts own rows 0 to 256 and 256 to 512; the last one has none.
    let ends = data.0.get_mut(&uid(h.offsets)).unwrap();
    ends.bytes_mut().copy_from_slice(&[256i32, 512, 512].map(i32::to_ne_bytes).concat());
    data.0.get_mut(&uid(h.prob)).unwrap().bytes_mut()[4 * 300..4 * 301].copy_from_slice(&f32::NAN.to_ne_bytes());
    let (frozen, results) = execute(&g, &data).unwrap();
    let amax: Vec<f32> = results
        .bytes(uid(h.out.amax.unwrap()))
        .unwrap()
        .chunks_exact(4)
        .map(|b| f32::from_ne_bytes(b.try_into().unwrap()))
        .collect();
    assert!(amax[0].is_finite() && amax[1].is_nan() && amax[2] == f32::NEG_INFINITY, "{amax:?}");
    for c in check(&expected(&frozen, &data).unwrap(), &data, &results).unwrap() {
        assert!(c.passed(), "{} is off by {}", c.name, c.error);
    }
}

#[test]
fn inputs_are_a_function_of_the_seed_and_make_sense() {
    let (g, h) = build(&Case { m: 2304, experts: 5, ..Case::default() }).unwrap();
    let frozen = g.freeze().unwrap();
    let make = |seed| inputs(&frozen, seed, HostTensors::default()).unwrap();
    assert_eq!(make(3), make(3));
    let ends = |data: &HostTensors| -> Vec<i32> {
        let bytes = data.bytes(frozen.tensor(h.offsets).uid.unwrap()).unwrap();
        bytes.chunks_exact(4).map(|b| i32::from_ne_bytes(b.try_into().unwrap())).collect()
    };
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..8 {
        let ends = ends(&make(seed));
        assert!(ends.windows(2).all(|w| w[0] <= w[1]) && ends.iter().all(|e| e % 256 == 0) && ends[4] == 2304, "{ends:?}");
        seen.insert(ends);
    }
    assert!(seen.len() > 4);
}

/// Faulty ends without a status word are an error that names the expert; a run never touches what is not an expert's.
#[test]
fn faulty_ends_end_in_a_coded_error() {
    let (g, h) = build(&Case::default()).unwrap();
    let frozen = g.freeze().unwrap();
    let mut data = inputs(&frozen, 1, HostTensors::default()).unwrap();
    let ends = data.0.get_mut(&frozen.tensor(h.offsets).uid.unwrap()).unwrap();
    ends.bytes_mut()[4..8].copy_from_slice(&300i32.to_ne_bytes());
    ends.bytes_mut()[..4].copy_from_slice(&256i32.to_ne_bytes());
    let e = execute(&g, &data).expect_err("faulty ends");
    assert_eq!(e.code, ErrorCode::BadData);
    assert!(e.to_string().contains("the end of expert 1 is no multiple of 256"), "{e}");
}
