//! Seeded inputs of a case. What nothing of the output depends on is NaN: tokens that nobody reads, the gaps of rows.

use crate::cases::{Case, Cut};
use crate::random::Random;
use frostgraph::engines::moe_grouped_matmul::{MoeFacts, MoeMode};
use frostgraph::engines::{DType, Uid};
use half::{bf16, f16};
use std::collections::BTreeMap;

/// Bytes from the first to one past the last element of an operand.
pub fn span(f: &MoeFacts, uid: Uid) -> usize {
    let found = f.ports.all().find(|(_, p, _)| p.uid == uid);
    found.map_or(0, |(_, p, _)| {
        let last: i64 = p.dim.iter().zip(&p.stride).map(|(d, s)| (d - 1) * s).sum();
        (last + 1) as usize * p.dtype.bytes().unwrap_or(1) as usize
    })
}

fn offsets(case: &Case, r: &mut Random) -> Vec<i64> {
    let (rows, groups) = (case.routed, case.groups);
    let mut cuts: Vec<i64> = match case.cut {
        Cut::Random | Cut::Decreasing | Cut::Beyond | Cut::Negative => {
            let mut cuts: Vec<i64> = (1..groups).map(|_| r.below(rows as u64 + 1) as i64).collect();
            cuts.sort_unstable();
            cuts.insert(0, 0);
            cuts.push(rows);
            cuts
        }
        Cut::First => (0..=groups).map(|i| if i == 0 { 0 } else { rows }).collect(),
        Cut::Last => (0..=groups).map(|i| if i < groups { 0 } else { rows }).collect(),
        Cut::Inside => (0..=groups).map(|i| rows / 5 + i * (rows / 2) / groups).collect(),
        Cut::Single => (0..=groups).map(|i| i.min(rows)).collect(),
        Cut::Empty => vec![if case.explicit_end { rows / 3 } else { rows }; groups as usize + 1],
        Cut::Aligned => (0..=groups).map(|i| (i * rows / groups / 128 * 128).min(rows)).collect(),
    };
    let middle = groups as usize / 2;
    match case.cut {
        Cut::Decreasing => cuts[middle + 1] = cuts[middle] - 1,
        Cut::Beyond => cuts[middle] = rows + 1,
        Cut::Negative => cuts[0] = -1,
        Cut::Random | Cut::First | Cut::Last | Cut::Inside | Cut::Single | Cut::Empty | Cut::Aligned => {}
    }
    cuts.truncate(groups as usize + usize::from(case.explicit_end));
    cuts
}

fn integers(values: &[i64], wide: bool) -> Vec<u8> {
    if wide {
        values.iter().flat_map(|v| v.to_ne_bytes()).collect()
    } else {
        values.iter().flat_map(|v| (*v as i32).to_ne_bytes()).collect()
    }
}

/// Offsets and indices by uid.
pub fn routing(case: &Case, seed: u64) -> BTreeMap<Uid, Vec<u8>> {
    let r = &mut Random(seed);
    let mut out = BTreeMap::new();
    out.insert(5, integers(&offsets(case, r), case.wide_offsets));
    let rows = case.routed as usize;
    let mut order: Vec<i64> = (0..case.routed).collect();
    (1..rows).rev().for_each(|i| order.swap(i, r.below(i as u64 + 1) as usize));
    let (mut index, mut ks): (Vec<i64>, Vec<i64>) = match case.mode {
        MoeMode::None => return out,
        MoeMode::Gather => (order.iter().map(|_| r.below(case.tokens as u64) as i64).collect(), Vec::new()),
        MoeMode::Scatter => order.iter().map(|d| (d / case.top_k, d % case.top_k)).unzip(),
    };
    if case.bad_indices {
        let bad = [i64::from(i32::MIN), -1, case.routed, i64::from(i32::MAX)];
        for (i, bad) in bad.into_iter().enumerate() {
            let at = rows * (2 * i + 1) / 9;
            if case.mode == MoeMode::Scatter && i % 2 == 1 {
                ks[at] = if i == 1 { -1 } else { case.top_k };
            } else {
                index[at] = bad;
            }
        }
    }
    out.insert(6, integers(&index, false));
    if case.mode == MoeMode::Scatter {
        out.insert(7, integers(&ks, false));
    }
    out
}

/// Inputs by uid.
pub fn inputs(case: &Case, f: &MoeFacts, seed: u64) -> BTreeMap<Uid, Vec<u8>> {
    let r = &mut Random(seed ^ 0x5eed);
    let mut out = routing(case, seed);
    let mut value = |d: DType| {
        let x = r.normal();
        if d == DType::BF16 {
            bf16::from_f32(x).to_ne_bytes()
        } else {
            f16::from_f32(x).to_ne_bytes()
        }
    };
    for (uid, port) in [(1, &f.ports.token), (2, &f.ports.weight)] {
        let Some(port) = port else { continue };
        // All bits set is a NaN in either type.
        let mut bytes = vec![0xff; span(f, uid)];
        let [a, b, c] = [port.dim[0], port.dim[1], port.dim[2]];
        for i in 0..a {
            for j in 0..b {
                for l in 0..c {
                    let at = 2 * (i * port.stride[0] + j * port.stride[1] + l * port.stride[2]) as usize;
                    bytes[at..at + 2].copy_from_slice(&value(case.input));
                }
            }
        }
        out.insert(uid, bytes);
    }
    out
}

/// Turns tokens that no row of the output depends on into NaN; `reads` says which do.
pub fn poison_unread(f: &MoeFacts, reads: &[bool], data: &mut BTreeMap<Uid, Vec<u8>>) {
    let (Some(port), Some(bytes)) = (&f.ports.token, data.get_mut(&1)) else { return };
    for (row, _) in reads.iter().enumerate().filter(|(_, read)| !**read) {
        let at = 2 * row * port.stride[1] as usize;
        bytes[at..at + 2 * f.k as usize].fill(0xff);
    }
}
