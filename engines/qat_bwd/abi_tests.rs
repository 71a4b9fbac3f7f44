//! The lowering of the NVFP4 backward against its kernels.

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
