//! The backward lowering against its kernels.

use super::goldens::cases;
use super::lower::SOURCES;
use super::rows;
use crate::sdpa::{abi, goldens};
use crate::{Arg, Launch};

fn launches() -> Vec<Launch> {
    cases().iter().flat_map(|g| goldens::launches(&rows::ROWS[0], g)).collect()
}

#[test]
fn parameters_are_those_of_the_kernels() {
    abi::check_parameters(&launches(), SOURCES);
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
