//! The backward lowering against its kernels.

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
fn outputs_are_never_null() {
    for l in launches() {
        for (name, arg) in l.names.iter().zip(&l.args) {
            let written = matches!(*name, "dk" | "dv" | "dq" | "dk_out" | "dv_out" | "delta" | "dst" | "dsink");
            assert!(!written || *arg != Arg::Null, "{}: {name}", l.name);
        }
    }
}
