//! What `explain` tells of attention.

use frostgraph::engines::sdpa::{Recipe, Scale, StatsPacking};
use frostgraph::engines::{Port, SdpaFacts};

/// Facts as (name, value) in a fixed order.
pub fn facts_list(f: &SdpaFacts) -> Vec<(&'static str, String)> {
    let yes = |b: bool| if b { "yes" } else { "no" };
    let bound = |b: Option<i64>| b.map_or("none".into(), |v: i64| v.to_string());
    let features: Vec<&str> = f.features.iter().map(|x| x.label()).collect();
    let mut out = vec![
        (
            "geometry",
            format!("B {}, H_q {}, H_kv {}, S_q {}, S_kv {}, d_qk {}, d_v {}", f.b, f.h_q, f.h_kv, f.s_q, f.s_kv, f.d_qk, f.d_v),
        ),
        ("types", format!("{} in, {} out, uniform {}", f.dtype, f.dtype_o, yes(f.uniform_dtype))),
        (
            "layout",
            format!(
                "bshd {}, packed {}, dense {}, 16-byte rule {}",
                yes(f.bshd_layout),
                yes(f.packed_layout),
                yes(f.dense_layout),
                yes(f.aligned_16)
            ),
        ),
        (
            "mask",
            format!(
                "left {}, right {}, anchored {}",
                bound(f.mask.left),
                bound(f.mask.right),
                if f.mask.bottom_right { "bottom-right" } else { "top-left" }
            ),
        ),
        (
            "scale",
            match f.scale {
                Scale::Static(x) => x.to_string(),
                Scale::Dynamic(uid) => format!("tensor {uid}"),
            },
        ),
    ];
    if let Some(p) = f.page_size {
        out.push(("pages", format!("{p} rows a page")));
    }
    if f.max_total_seq_len_q.is_some() || f.max_total_seq_len_kv.is_some() {
        out.push(("tokens", format!("at most {} queries, {} keys", bound(f.max_total_seq_len_q), bound(f.max_total_seq_len_kv))));
    }
    if let Some(p) = f.stats_packing {
        let name = match p {
            StatsPacking::TokenMajor => "token-major",
            StatsPacking::HeadMajor => "head-major",
        };
        out.push(("stats", format!("packed {name}")));
    }
    match f.recipe {
        Recipe::Plain => {}
        Recipe::Nvfp4Qat => out.push(("recipe", "NVFP4 fake quantisation of Q, K, V and P".into())),
    }
    out.push(("features", if features.is_empty() { "none".into() } else { features.join(", ") }));
    if let Some(why) = &f.invalid {
        out.push(("invalid", why.clone()));
    }
    out
}

/// Operands that are there, by port.
pub fn operands(f: &SdpaFacts) -> Vec<(&'static str, &Port)> {
    let products = f.ports.operands(f.direction).map(|(label, port, _)| (label, port));
    products.chain(f.ports.row_values()).chain(f.ports.others()).collect()
}
