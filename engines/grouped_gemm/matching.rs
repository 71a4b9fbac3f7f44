//! Capabilities against facts: first reason wins, in the order written in [`mismatch`].

use crate::knobs::knob_values;
use crate::{Caps, Decline, DeclineCode as Code, Facts, Knobs, Row, Target};

/// First reason why `row` cannot serve `facts` with these knobs on this device: operation, architecture, knobs, inputs, C, D, features, then the
/// row's own rules.
pub fn mismatch(row: &Row, facts: &Facts, knobs: &Knobs, target: &Target) -> Option<Decline> {
    let (Facts::GroupedGemm(f), Caps::GroupedGemm(caps)) = (facts, &row.caps) else {
        let reason = "the node is no grouped matrix product; this row serves grouped matrix products";
        return Some(row.decline(Code::Operation, "operation=other", reason));
    };
    let inputs = || {
        (!caps.inputs.contains(&(f.ab, f.sf, f.sf_vec))).then(|| {
            let served: Vec<String> = caps.inputs.iter().map(|(ab, sf, vec)| format!("{ab} with {sf}/{vec}")).collect();
            let reason =
                format!("A and B are {} with {} scales per {}; this row serves {}", f.ab, f.sf, f.sf_vec, served.join(", "));
            row.decline(Code::DType, format!("inputs={} {}/{}", f.ab, f.sf, f.sf_vec), reason)
        })
    };
    let dtype = |name: &str, found: crate::DType, served: &[crate::DType]| {
        (!served.contains(&found)).then(|| {
            let names: Vec<&str> = served.iter().map(|d| d.short()).collect();
            let reason = format!("{name} is {found}; this row serves {}", names.join(", "));
            row.decline(Code::DType, format!("{name}={found}"), reason)
        })
    };
    caps.arch
        .mismatch(row, target)
        .or_else(|| knob_values(row, knobs))
        .or_else(inputs)
        .or_else(|| dtype("C", f.c, caps.c))
        .or_else(|| dtype("D", f.d, caps.d))
        .or_else(|| row.lacks(f.features, caps.features))
        .or_else(|| (row.extra)(row, facts, knobs, target))
}
