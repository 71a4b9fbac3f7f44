//! Capabilities against facts: first reason wins, in the order written in [`mismatch`].

use super::MoeFacts;
use crate::knobs::knob_values;
use crate::{Caps, DType, Decline, DeclineCode as Code, Facts, Knobs, Row, Target};

/// `bf16`, or `e4m3 with e8m0 scales per 32`.
pub(crate) fn input_label(input: DType, scales: Option<(DType, i64)>) -> String {
    scales.map_or(input.to_string(), |(sf, vec)| format!("{input} with {sf} scales per {vec}"))
}

fn scales(f: &MoeFacts) -> Option<(DType, i64)> {
    f.scales.map(|s| (s.dtype, s.vec))
}

/// First reason why `row` cannot serve `facts` with these knobs on this device: operation, architecture, knobs, inputs, output, features, then
/// the row's own rules.
pub fn mismatch(row: &Row, facts: &Facts, knobs: &Knobs, target: &Target) -> Option<Decline> {
    let (Facts::Moe(f), Caps::Moe(caps)) = (facts, &row.caps) else {
        let reason = "the node is no plain grouped product; this row serves plain grouped products";
        return Some(row.decline(Code::Operation, "operation=other", reason));
    };
    let inputs = || {
        (!caps.inputs.contains(&(f.input, scales(f)))).then(|| {
            let served: Vec<String> = caps.inputs.iter().map(|(d, s)| input_label(*d, *s)).collect();
            let found = input_label(f.input, scales(f));
            row.decline(
                Code::DType,
                format!("inputs={found}"),
                format!("token and weight are {found}; this row serves {}", served.join(", ")),
            )
        })
    };
    let output = || {
        (!caps.output.contains(&f.output)).then(|| {
            let names: Vec<&str> = caps.output.iter().map(|d| d.short()).collect();
            let reason = format!("the output is {}; this row serves {}", f.output, names.join(", "));
            row.decline(Code::DType, format!("output={}", f.output), reason)
        })
    };
    caps.arch
        .mismatch(row, target)
        .or_else(|| knob_values(row, knobs))
        .or_else(inputs)
        .or_else(output)
        .or_else(|| row.lacks(f.features, caps.features))
        .or_else(|| (row.extra)(row, facts, knobs, target))
}
