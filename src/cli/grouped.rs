//! The grouped matrix product in `explain` and in the count of useful work.

use frostgraph::engines::grouped_gemm::{Formula, Weights};
use frostgraph::engines::GroupedGemmFacts;

/// Facts as (name, value) in a fixed order.
pub fn facts_list(f: &GroupedGemmFacts) -> Vec<(&'static str, String)> {
    let features: Vec<&str> = f.features.iter().map(|x| x.label()).collect();
    let weights = match f.weights {
        Weights::Dense => "dense",
        Weights::Pool => "at offsets into a pool",
        Weights::Addresses => "at device addresses",
    };
    let (formula, clamped) = match f.formula {
        Formula::PreactivationG => ("D = 2 prob C relu(G)", "D = 2 prob C b (1 - t^2), t = tanh(relu(G)/s), b = s t"),
        Formula::PreactivationC => ("D = 2 prob G relu(C)", "D = 2 prob G b (1 - t^2), t = tanh(relu(C)/s), b = s t"),
    };
    vec![
        ("geometry", format!("M {}, N {}, K {}, experts {}", f.m, f.n, f.k, f.experts)),
        ("types", format!("{} with {} scales per {}, C {}, D {}", f.ab, f.sf, f.sf_vec, f.c, f.d)),
        ("weights", format!("{weights}, {} contiguous", if f.b_n_major { "n" } else { "k" })),
        ("formula", f.tanh_clamp_scale.map_or(formula.into(), |s| format!("{clamped}, s = {s}"))),
        ("features", if features.is_empty() { "none".into() } else { features.join(", ") }),
    ]
}
