//! The plain grouped product in `explain`.

use frostgraph::engines::moe_grouped_matmul::{MoeMode, ScalePlace};
use frostgraph::engines::MoeFacts;

/// Facts as (name, value) in a fixed order.
pub fn facts_list(f: &MoeFacts) -> Vec<(&'static str, String)> {
    let features: Vec<&str> = f.features.iter().map(|x| x.label()).collect();
    let place = |p: ScalePlace| match p {
        ScalePlace::Atoms => "in atoms",
        ScalePlace::Strided => "in rows",
    };
    let scales = f.scales.map_or("no block scales".into(), |s| {
        format!("{} scales per {} (token {}, weights {})", s.dtype, s.vec, place(s.token), place(s.weight))
    });
    let rows = match f.mode {
        MoeMode::None => "read and written in order".to_string(),
        MoeMode::Gather => "read through token_index".into(),
        MoeMode::Scatter => format!("written to token_index * {} + token_ks", f.top_k),
    };
    let end = if f.explicit_end { "with an end of their own" } else { "the last group reaches to the end" };
    vec![
        ("geometry", format!("tokens {}, routed rows {}, N {}, K {}, experts {}", f.tokens, f.routed, f.n, f.k, f.experts)),
        ("types", format!("{} with {scales}, output {}", f.input, f.output)),
        ("groups", format!("{}: {end}", f.groups)),
        ("rows", rows),
        ("features", if features.is_empty() { "none".into() } else { features.join(", ") }),
    ]
}
