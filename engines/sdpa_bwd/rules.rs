//! Rules of `sdpa_bwd_sm120` beyond its capabilities (facts §6.7), and the choice they end in: configuration and route.

use super::config::{self, Config};
use super::workspace::{self, Route};
use crate::sdpa::arith::{ceil_div, contiguous, product};
use crate::{DType, Decline, DeclineCode as Code, Facts, Feature, Knob, Knobs, LaunchPlan, Row, SdpaFacts, Target};

/// Kernels keep rows in 32-bit integers and add bounds to them.
const MAX_SEQ: i64 = 1 << 29;
/// `cuTensorMapEncodeTiled` refuses larger strides.
const MAX_MAP_STRIDE: i64 = 1 << 40;

/// What the rules settle on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// Main kernel.
    pub config: Config,
    /// dQ summation.
    pub route: Route,
}

/// The row's `extra` hook.
pub fn extra(row: &Row, facts: &Facts, knobs: &Knobs, target: &Target) -> Option<Decline> {
    let f = facts.expect_sdpa();
    choose(row, f, knobs, target).err()
}

/// Configuration and route, or the first rule that refuses: masks, lengths and packing, bias, sink, index limits, resources.
pub fn choose(row: &Row, f: &SdpaFacts, knobs: &Knobs, target: &Target) -> Result<Choice, Decline> {
    let refuse = |(code, fact, reason): config::Refusal| row.decline(code, fact, reason);
    graph_rules(f).map_err(refuse)?;
    let Target::Cuda { smem_optin, total_memory, .. } = target else {
        return Err(row.decline(Code::Arch, "device=cpu", "the device is cpu; this row serves CUDA devices"));
    };
    let explicit = knobs.get(Knob::TileM);
    let resolve = |route| config::resolve(f.d_qk, f.d_v, knobs, *smem_optin, route).map_err(refuse);
    // The route depends on padded head dims only, which every configuration of a graph shares.
    let route = workspace::route(f, &resolve(Route::Atomic)?, explicit, *total_memory);
    let config = resolve(route)?.with_bias(f.features.has(Feature::Bias));
    let mut trial = LaunchPlan::default();
    let bytes = workspace::carve(f, &config, route, &mut trial).map(|_| trial.workspace_bytes);
    match bytes {
        Some(bytes) if bytes <= *total_memory => Ok(Choice { config, route }),
        Some(bytes) => {
            let reason = format!("the chain needs a workspace of {bytes} bytes; the device has {total_memory} bytes in all");
            Err(row.decline(Code::Resources, format!("workspace={bytes}"), reason))
        }
        None => Err(row.decline(
            Code::Geometry,
            "workspace=overflow",
            "the workspace size leaves 64 bits; this row serves sizes that fit",
        )),
    }
}

/// What no CUDA row of this family serves: its kernels share these limits.
pub(super) fn graph_rules(f: &SdpaFacts) -> Result<(), config::Refusal> {
    [mask, lengths, packing, bias, sink, index_limits].into_iter().find_map(|rule| rule(f)).map_or(Ok(()), Err)
}

pub(crate) fn mask(f: &SdpaFacts) -> Option<config::Refusal> {
    (f.mask.bottom_right && f.mask.right.is_none()).then(|| {
        let reason = "bounds are anchored bottom-right without a right bound; this row serves bottom-right with a right bound (causal or widened)";
        (Code::Feature, "bottom_right=true right_bound=none".into(), reason.into())
    })
}

pub(crate) fn lengths(f: &SdpaFacts) -> Option<config::Refusal> {
    let p = &f.ports;
    if p.seq_len_q.is_some() && p.seq_len_kv.is_none() {
        let reason = "query lengths come without key lengths; this row serves key lengths with or without query lengths";
        return Some((Code::Lengths, "seq_len_kv=absent".into(), reason.into()));
    }
    for (label, p) in [("SEQ_LEN_Q", &p.seq_len_q), ("SEQ_LEN_KV", &p.seq_len_kv)] {
        let Some(p) = p else { continue };
        let scattered = (0..4).any(|a| p.dim[a] > 1 && p.stride[a] != 1);
        if product(&p.dim) != Some(f.b) || scattered || p.dtype != DType::I32 {
            let reason =
                format!("{label} has extents {:?} and strides {:?}; this row serves {} contiguous lengths", p.dim, p.stride, f.b);
            return Some((Code::Lengths, format!("{label}.stride={:?}", p.stride), reason));
        }
    }
    None
}

/// One kernel switch says how wide ragged offsets are, so every packed operand has to agree.
fn packing(f: &SdpaFacts) -> Option<config::Refusal> {
    if !f.features.has(Feature::Thd) {
        return None;
    }
    if f.ports.seq_len_q.is_none() || f.ports.seq_len_kv.is_none() {
        let reason = "operands are packed without lengths on both sides; this row serves packed operands with both";
        return Some((Code::Lengths, "seq_len=absent".into(), reason.into()));
    }
    if f.features.has(Feature::Bias) {
        return Some((
            Code::Bias,
            "bias=packed".into(),
            "a bias comes with packed operands; this row serves it with dense ones".into(),
        ));
    }
    let width = f.ports.q.as_ref().and_then(|p| p.ragged).map(|r| r.dtype);
    let stats = f.ports.stats.as_ref().map(|p| ("Stats", p));
    let mut all = f.ports.operands(f.direction).map(|(l, p, _)| (l, p)).chain(stats);
    all.find(|(_, p)| p.ragged.map(|r| r.dtype) != width).map(|(label, p)| {
        let shown = |d: Option<DType>| d.map_or("none".to_string(), |d| d.to_string());
        let found = shown(p.ragged.map(|r| r.dtype));
        let reason = format!("ragged offsets of {label} are {found} and those of Q {}; this row serves one width", shown(width));
        (Code::Lengths, format!("{label}.ragged={found}"), reason)
    })
}

fn bias(f: &SdpaFacts) -> Option<config::Refusal> {
    for (label, p) in [("bias", &f.ports.bias), ("dBias", &f.ports.dbias)] {
        let Some(p) = p else { continue };
        if p.dim[1] != f.h_q {
            let reason =
                format!("{label} has extents {:?}; this row serves (1|{}, {}, {}, {})", p.dim, f.b, f.h_q, f.s_q, f.s_kv);
            return Some((Code::Bias, format!("{label}.dim={:?}", p.dim), reason));
        }
        if !contiguous(p) {
            let reason = format!("{label} has strides {:?} over {:?}; this row serves contiguous ones", p.stride, p.dim);
            return Some((Code::Bias, format!("{label}.stride={:?}", p.stride), reason));
        }
    }
    None
}

fn sink(f: &SdpaFacts) -> Option<config::Refusal> {
    [("sink", &f.ports.sink), ("dSink", &f.ports.dsink)].into_iter().find_map(|(label, p)| {
        let p = p.as_ref().filter(|p| !contiguous(p))?;
        let reason = format!("{label} has strides {:?} over {:?}; this row serves contiguous ones", p.stride, p.dim);
        Some((Code::Sink, format!("{label}.stride={:?}", p.stride), reason))
    })
}

pub(crate) fn index_limits(f: &SdpaFacts) -> Option<config::Refusal> {
    for (name, value) in [("s_q", f.s_q), ("s_kv", f.s_kv)] {
        if value >= MAX_SEQ {
            return Some((Code::Geometry, format!("{name}={value}"), format!("{name} is {value}; this row serves below 2^29")));
        }
    }
    let rows = workspace::ws_rows(f);
    if rows.is_none_or(|r| i32::try_from(r).is_err()) {
        let reason = "the packed tokens do not fit 32 bits with their padding; this row serves fewer than 2^31 - 128·B";
        return Some((Code::Geometry, format!("max_total_seq_len_q={:?}", f.max_total_seq_len_q), reason.into()));
    }
    // The widest one-dimensional grids of the chain: main, the row kernels, reduce.
    let vectors = f.d_qk / 8 + f.d_v / 8;
    let grids = [
        ("heads x key tiles", product(&[f.b, f.h_q, ceil_div(f.s_kv, 64)])),
        ("heads x query tiles", product(&[f.b, f.h_q, ceil_div(f.s_q, 64)])),
        ("key vectors / 256", product(&[f.b, f.s_kv, f.h_kv, vectors]).map(|n| ceil_div(n, 256))),
    ];
    for (name, grid) in grids {
        if grid.is_none_or(|g| i32::try_from(g).is_err()) {
            let shown = grid.map_or("more than 2^63".to_string(), |g| g.to_string());
            let reason = format!("a grid of {name} is {shown} blocks; this row serves below 2^31");
            return Some((Code::Geometry, format!("grid={shown}"), reason));
        }
    }
    f.ports.operands(f.direction).find_map(|(label, p, _)| {
        let bytes = p.dtype.bytes().unwrap_or(2) as i64;
        let first = usize::from(p.ragged.is_some());
        let wide = (first..3).find(|&a| p.dim[a] > 1 && p.stride[a].saturating_mul(bytes) >= MAX_MAP_STRIDE)?;
        let reason = format!("{label} has a stride of {} elements; this row serves strides below 2^40 bytes", p.stride[wide]);
        Some((Code::Geometry, format!("{label}.stride={:?}", p.stride), reason))
    })
}
