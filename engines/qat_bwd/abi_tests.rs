//! The lowerings of the NVFP4 backward against their kernels.

use super::goldens::{cases, sm120, sm90, sm90_cases};
use super::{lower, sm90 as hopper};
use crate::sdpa::{abi, goldens};
use crate::{Arg, Launch};

fn portable_launches() -> Vec<Launch> {
    cases().iter().flat_map(|g| goldens::launches(sm120(), g)).collect()
}

fn sm90_launches() -> Vec<Launch> {
    sm90_cases().iter().flat_map(|g| goldens::launches(sm90(), g)).collect()
}

fn launches() -> Vec<Launch> {
    portable_launches().into_iter().chain(sm90_launches()).collect()
}

#[test]
fn parameters_are_those_of_the_kernels() {
    abi::check_parameters(&portable_launches(), lower::SOURCES);
    abi::check_parameters(&sm90_launches(), hopper::SOURCES);
}

#[test]
fn switches_are_those_the_sources_insist_on() {
    abi::check_switches(&launches());
}

/// Pointers that no variant may leave out: a null here would be a fault on the device.
#[test]
fn inputs_copies_and_outputs_are_never_null() {
    let vital = [
        "q", "k", "v", "o", "d_o", "q_fake", "k_fake", "v_fake", "delta", "dq_accum", "dk", "dv", "dq", "dk_out", "dv_out", "lse",
    ];
    for l in launches() {
        for (name, arg) in l.names.iter().zip(&l.args) {
            assert!(!vital.contains(name) || *arg != Arg::Null, "{}: {name}", l.name);
        }
    }
}
