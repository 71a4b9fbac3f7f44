//! The forward lowerings against their kernels.

use super::goldens::cases;
use super::{decode, prefill, prefill_sm90};
use crate::sdpa::{abi, goldens};
use crate::{Arg, Launch};

fn launches() -> Vec<Launch> {
    cases().iter().flat_map(|(row, g)| goldens::launches(row, g)).collect()
}

#[test]
fn parameters_are_those_of_the_kernels() {
    let sources: Vec<&str> = prefill::SOURCES.iter().chain(decode::SOURCES).chain(prefill_sm90::SOURCES).copied().collect();
    abi::check_parameters(&launches(), &sources);
}

#[test]
fn switches_are_those_the_sources_insist_on() {
    abi::check_switches(&launches());
}

/// Somebody writes O in every plan, and a split decode's partial results are never null.
#[test]
fn outputs_are_never_null() {
    for l in launches() {
        let split = l.kernel.defines.contains(&("FG_SPLIT", 1));
        for (name, arg) in l.names.iter().zip(&l.args) {
            let written = match *name {
                "o" => !split,
                "part_o" | "part_lse" => split || l.name == "combine",
                _ => continue,
            };
            assert_eq!(written, *arg != Arg::Null, "{}: {name}", l.name);
        }
    }
}

/// S7: no stride and no multiplier is narrower than 64 bits.
#[test]
fn strides_are_64_bits_s7() {
    let mut seen = 0;
    for l in launches() {
        for (name, arg) in l.names.iter().zip(&l.args) {
            let stride = ["_sb", "_sh", "_ss", "_sq", "_sk"].iter().any(|s| name.ends_with(s)) && !name.starts_with("s_");
            if stride || name.starts_with("mul_") {
                assert!(matches!(arg, Arg::I64(_)), "{}: {name} is {arg:?}", l.name);
                seen += 1;
            }
        }
    }
    assert!(seen > 100, "{seen}");
}
