//! Rules of the CUDA forward rows beyond their capabilities, and the choice they end in.

use super::config::{self, Decode, Prefill, DECODE_ROWS};
use super::prefill_sm90::{self, Config as Hopper};
use super::workspace;
use crate::sdpa::arith::{ceil_div, contiguous, product};
use crate::{DType, Decline, DeclineCode as Code, Facts, Feature, Knob, Knobs, LaunchPlan, Port, Row, SdpaFacts, Target};

/// Kernels keep rows and keys in 32-bit integers and add bounds to them.
const MAX_SEQ: i64 = 1 << 29;
/// Bytes; tensor maps hold no larger stride.
const MAX_MAP_STRIDE: i64 = 1 << 40;
/// Query tokens that the decode row takes.
pub const DECODE_TOKENS: i64 = 16;
/// Rows, tokens times heads of a group, that the decode row takes: every 16 of them read the keys again.
pub const DECODE_MAX_ROWS: i64 = 128;

/// `extra` hook of the prefill row.
pub fn prefill_extra(row: &Row, facts: &Facts, knobs: &Knobs, target: &Target) -> Option<Decline> {
    let f = facts.expect_sdpa();
    prefill(row, f, knobs, target).err()
}

/// `extra` hook of the Hopper prefill row.
pub fn prefill_sm90_extra(row: &Row, facts: &Facts, knobs: &Knobs, target: &Target) -> Option<Decline> {
    prefill_sm90(row, facts.expect_sdpa(), knobs, target).err()
}

/// `extra` hook of the decode row.
pub fn decode_extra(row: &Row, facts: &Facts, knobs: &Knobs, target: &Target) -> Option<Decline> {
    let f = facts.expect_sdpa();
    decode(row, f, knobs, target).err()
}

/// The prefill configuration, or the first rule that refuses: lengths, packing, bias, sink, packed heads, index limits, resources.
pub fn prefill(row: &Row, f: &SdpaFacts, knobs: &Knobs, target: &Target) -> Result<Prefill, Decline> {
    for rule in [lengths, packing, bias, sink] {
        rule(row, f).map_or(Ok(()), Err)?;
    }
    if knobs.get(Knob::PackGqa) == Some(1) && f.h_q == f.h_kv {
        let reason = "PACK_GQA is 1 and every key head has one query head; this row packs where H_q differs from H_kv";
        return Err(row.decline(Code::Knob, "PACK_GQA=1", reason));
    }
    let c = config::prefill(row, (f.d_qk, f.d_v), f.ports.bias.is_some(), knobs, smem(row, target)?)?;
    let tiles = product(&[ceil_div(f.s_q, c.q_tile()), f.h_q]);
    limits(row, f, &[("query tiles x heads x batch", tiles.and_then(|t| t.checked_mul(f.b)))])?;
    Ok(c)
}

/// The Hopper prefill configuration, or the first rule that refuses: lengths, packing, bias, sink, scale tensor, strides of tensor maps, tiles, packed heads,
/// index limits, resources.
pub fn prefill_sm90(row: &Row, f: &SdpaFacts, knobs: &Knobs, target: &Target) -> Result<Hopper, Decline> {
    for rule in [lengths, packing, bias, sink, scale_tensor, map_strides] {
        rule(row, f).map_or(Ok(()), Err)?;
    }
    let (d_qk, d_v) = prefill_sm90::padded(f.d_qk, f.d_v).ok_or_else(|| config::beyond(row, f.d_qk, f.d_v))?;
    let group = f.h_q / f.h_kv;
    if knobs.get(Knob::PackGqa) == Some(1) && !(2..=prefill_sm90::GROUP_ROWS).contains(&group) {
        let reason = format!("PACK_GQA is 1 and a key head has {group} query heads; this row packs 2 to 64 of them");
        return Err(row.decline(Code::Knob, "PACK_GQA=1", reason));
    }
    let c = prefill_sm90::config(f, knobs).ok_or_else(|| {
        let rows = knobs.get(Knob::TileM).unwrap_or(0);
        let served = prefill_sm90::tile_rows(d_qk, prefill_sm90::bias(f, knobs.get(Knob::PackGqa) == Some(1)));
        let served: Vec<String> = served.iter().map(i64::to_string).collect();
        let reason = format!("tiles have {rows} rows at padded head dims {d_qk}/{d_v}; this row serves {}", served.join(" and "));
        row.decline(Code::Knob, format!("TILE_M={rows}"), reason)
    })?;
    let tiles = product(&[ceil_div(f.s_q, c.tokens()), f.h_q]);
    limits(row, f, &[("query tiles x heads x batch", tiles.and_then(|t| t.checked_mul(f.b)))])?;
    let (need, limit) = (c.smem(), i64::from(smem(row, target)?));
    if need > limit {
        let reason = format!("head dims {}/{} need {need} bytes of shared memory; the device has {limit}", c.d_qk, c.d_v);
        return Err(row.decline(Code::Resources, format!("smem={need}"), reason));
    }
    Ok(c)
}

/// The kernel reads one fp32.
fn scale_tensor(row: &Row, f: &SdpaFacts) -> Option<Decline> {
    let p = f.ports.attn_scale.as_ref().filter(|p| p.dtype != DType::F32)?;
    let reason = format!("the attn_scale tensor is {}; this row serves f32", p.dtype);
    Some(row.decline(Code::DType, format!("attn_scale.dtype={}", p.dtype), reason))
}

/// `cuTensorMapEncodeTiled` refuses larger strides.
fn map_strides(row: &Row, f: &SdpaFacts) -> Option<Decline> {
    let operands = [("Q", &f.ports.q), ("K", &f.ports.k), ("V", &f.ports.v)];
    operands.into_iter().find_map(|(label, port)| {
        let p = port.as_ref()?;
        let far = (0..3).find(|&a| p.dim[a] > 1 && p.stride[a] >= MAX_MAP_STRIDE / 2)?;
        let reason = format!("{label} has a stride of {} elements; this row serves strides below 2^40 bytes", p.stride[far]);
        Some(row.decline(Code::Geometry, format!("{label}.stride={:?}", p.stride), reason))
    })
}

/// The decode configuration, or the first rule that refuses: rows, lengths, pages, sink, index limits, resources.
pub fn decode(row: &Row, f: &SdpaFacts, knobs: &Knobs, target: &Target) -> Result<Decode, Decline> {
    let group = f.h_q / f.h_kv.max(1);
    let rows = f.s_q.saturating_mul(group);
    if f.s_q > DECODE_TOKENS || rows > DECODE_MAX_ROWS {
        let reason = format!(
            "S_q is {} with {group} query heads to a key head; this row serves up to {DECODE_TOKENS} tokens and {DECODE_MAX_ROWS} rows",
            f.s_q
        );
        return Err(row.decline(Code::Geometry, format!("s_q={} group={group}", f.s_q), reason));
    }
    for rule in [lengths, pages, sink] {
        rule(row, f).map_or(Ok(()), Err)?;
    }
    let c = config::decode(row, f.d_qk, f.d_v, smem(row, target)?)?;
    let splits = knobs.get(Knob::SplitKv).unwrap_or(1);
    let grids = [
        ("splits x key heads x row tiles x batch", product(&[splits, f.h_kv, ceil_div(rows, DECODE_ROWS), f.b])),
        ("rows", product(&[f.b, f.h_q, f.s_q])),
    ];
    limits(row, f, &grids)?;
    let mut trial = LaunchPlan::default();
    let carved = workspace::carve(f, &c, splits, &mut trial);
    let total = match target {
        Target::Cuda { total_memory, .. } => *total_memory,
        Target::Cpu => 0,
    };
    match carved {
        Some(_) if trial.workspace_bytes <= total => Ok(c),
        Some(_) => {
            let bytes = trial.workspace_bytes;
            let reason = format!("{splits} splits need a workspace of {bytes} bytes; the device has {total} bytes in all");
            Err(row.decline(Code::Resources, format!("workspace={bytes}"), reason))
        }
        None => Err(row.decline(
            Code::Geometry,
            "workspace=overflow",
            "the workspace size leaves 64 bits; this row serves sizes that fit",
        )),
    }
}

/// Shared memory that a block may ask for.
pub fn smem(row: &Row, target: &Target) -> Result<u32, Decline> {
    match target {
        Target::Cuda { smem_optin, .. } => Ok(*smem_optin),
        Target::Cpu => Err(row.decline(Code::Arch, "device=cpu", "the device is cpu; this row serves CUDA devices")),
    }
}

/// Lengths of either form are contiguous i32, and both sides have the same form: one kernel switch reads both.
fn lengths(row: &Row, f: &SdpaFacts) -> Option<Decline> {
    let p = &f.ports;
    let sides = [
        ("SEQ_LEN_Q", &p.seq_len_q, 0),
        ("SEQ_LEN_KV", &p.seq_len_kv, 0),
        ("CU_SEQ_LEN_Q", &p.cu_seq_len_q, 1),
        ("CU_SEQ_LEN_KV", &p.cu_seq_len_kv, 1),
    ];
    for (label, port, more) in sides {
        let Some(p) = port else { continue };
        let want = f.b + more;
        let scattered = (0..4).any(|a| p.dim[a] > 1 && p.stride[a] != 1);
        if product(&p.dim) != Some(want) || scattered || p.dtype != DType::I32 {
            let reason = format!(
                "{label} is {} with extents {:?} and strides {:?}; this row serves {want} contiguous i32",
                p.dtype, p.dim, p.stride
            );
            return Some(row.decline(Code::Lengths, format!("{label}.stride={:?}", p.stride), reason));
        }
    }
    let given = |wanted: i64| sides.iter().any(|(_, port, more)| port.is_some() && *more == wanted);
    (given(0) && given(1)).then(|| {
        let reason = "one side has lengths and the other cumulative lengths; this row serves one form on both sides";
        row.decline(Code::Lengths, "lengths=mixed", reason)
    })
}

/// Packed operands take lengths on both sides, no bias, and one width of offsets, because one kernel switch says how wide they are.
fn packing(row: &Row, f: &SdpaFacts) -> Option<Decline> {
    if !f.features.has(Feature::Thd) {
        return None;
    }
    let p = &f.ports;
    let bare = |a: &Option<Port>, b: &Option<Port>| a.is_none() && b.is_none();
    if bare(&p.seq_len_q, &p.cu_seq_len_q) || bare(&p.seq_len_kv, &p.cu_seq_len_kv) {
        let reason = "operands are packed without lengths on both sides; this row serves packed operands with both";
        return Some(row.decline(Code::Lengths, "seq_len=absent", reason));
    }
    if f.features.has(Feature::Bias) {
        return Some(row.decline(
            Code::Bias,
            "bias=packed",
            "a bias comes with packed operands; this row serves it with dense ones",
        ));
    }
    let width = p.q.as_ref().and_then(|p| p.ragged).map(|r| r.dtype);
    let rows = [
        ("Stats", p.stats.as_ref().filter(|_| f.wants_stats)),
        ("score max", p.score_max.as_ref()),
        ("score sum-exp", p.score_sum_exp.as_ref()),
    ];
    let rows = rows.into_iter().filter_map(|(label, p)| p.map(|p| (label, p)));
    let mut all = p.operands(f.direction).map(|(l, p, _)| (l, p)).chain(rows);
    all.find(|(_, p)| p.ragged.map(|r| r.dtype) != width).map(|(label, p)| {
        let shown = |d: Option<DType>| d.map_or("none".to_string(), |d| d.to_string());
        let found = shown(p.ragged.map(|r| r.dtype));
        let reason = format!("ragged offsets of {label} are {found} and those of Q {}; this row serves one width", shown(width));
        row.decline(Code::Lengths, format!("{label}.ragged={found}"), reason)
    })
}

/// Bias strides are free; they are read by element, so only negative ones are foreign.
fn bias(row: &Row, f: &SdpaFacts) -> Option<Decline> {
    let b = f.ports.bias.as_ref()?;
    (0..4).any(|a| b.dim[a] > 1 && b.stride[a] < 0).then(|| {
        let reason = format!("bias has strides {:?}; this row serves strides from 0", b.stride);
        row.decline(Code::Bias, format!("bias.stride={:?}", b.stride), reason)
    })
}

fn sink(row: &Row, f: &SdpaFacts) -> Option<Decline> {
    let p = f.ports.sink.as_ref().filter(|p| !contiguous(p))?;
    let reason = format!("sink has strides {:?} over {:?}; this row serves contiguous ones", p.stride, p.dim);
    Some(row.decline(Code::Sink, format!("sink.stride={:?}", p.stride), reason))
}

/// K and V are both paged through i32 tables that cover S_kv, and the keys in use come from a length.
fn pages(row: &Row, f: &SdpaFacts) -> Option<Decline> {
    if !f.features.has(Feature::PagedKv) {
        return None;
    }
    let p = &f.ports;
    let refuse = |fact: String, reason: String| Some(row.decline(Code::Lengths, fact, reason));
    let (Some(k), Some(v), Some(page)) = (&p.page_table_k, &p.page_table_v, f.page_size) else {
        return refuse("page_table=one".into(), "one of K and V is paged; this row serves both paged or neither".into());
    };
    let rows = |port: &Option<Port>| port.as_ref().map(|p| p.dim[2]);
    if rows(&p.k) != rows(&p.v) {
        return refuse(format!("page_size={page}"), "pages of K and V differ in size; this row serves one size".into());
    }
    if p.seq_len_kv.is_none() && p.cu_seq_len_kv.is_none() {
        return refuse(
            "seq_len_kv=absent".into(),
            "keys are paged without key lengths; this row serves paged keys with them".into(),
        );
    }
    [("K", k), ("V", v)].into_iter().find_map(|(side, t)| {
        let covers = t.dim[2].checked_mul(page).is_some_and(|n| n >= f.s_kv);
        if t.dtype == DType::I32 && t.dim[0] == f.b && t.dim[1] == 1 && t.dim[3] == 1 && covers {
            return None;
        }
        let reason = format!(
            "the page table of {side} is {} with extents {:?}; this row serves i32 tables (B, 1, pages, 1) that cover S_kv {}",
            t.dtype, t.dim, f.s_kv
        );
        refuse(format!("page_table_{side}.dim={:?}", t.dim), reason)
    })
}

fn limits(row: &Row, f: &SdpaFacts, grids: &[(&str, Option<i64>)]) -> Result<(), Decline> {
    for (name, value) in [("s_q", f.s_q), ("s_kv", f.s_kv)] {
        if value >= MAX_SEQ {
            return Err(row.decline(
                Code::Geometry,
                format!("{name}={value}"),
                format!("{name} is {value}; this row serves below 2^29"),
            ));
        }
    }
    let packed = f.s_q.saturating_mul(f.h_q / f.h_kv.max(1));
    if packed >= 2 * MAX_SEQ {
        let reason = format!("S_q times the group is {packed}; this row serves below 2^30");
        return Err(row.decline(Code::Geometry, format!("s_q*group={packed}"), reason));
    }
    for (name, grid) in grids {
        if grid.is_none_or(|g| i32::try_from(g).is_err()) {
            let shown = grid.map_or("more than 2^63".to_string(), |g| g.to_string());
            let reason = format!("a grid of {name} is {shown} blocks; this row serves below 2^31");
            return Err(row.decline(Code::Geometry, format!("grid={shown}"), reason));
        }
    }
    Ok(())
}
