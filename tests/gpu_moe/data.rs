//! Seeded inputs of a case. What nothing of the output depends on is NaN: tokens that nobody reads, the gaps of rows, scales behind the last.

use crate::cases::{Case, Cut};
use crate::random::Random;
use frostgraph::engines::codec::{e4m3, e5m2};
use frostgraph::engines::grouped_gemm::scales::ScaleMatrix;
use frostgraph::engines::grouped_gemm::GemmPort;
use frostgraph::engines::moe_grouped_matmul::{MoeFacts, MoeMode, ScalePlace};
use frostgraph::engines::{DType, Uid};
use half::{bf16, f16};
use std::collections::BTreeMap;

/// Bytes from the first to one past the last element of an operand.
pub fn span(f: &MoeFacts, uid: Uid) -> usize {
    let found = f.ports.all().find(|(_, p, _)| p.uid == uid);
    found.map_or(0, |(_, p, _)| {
        let last: i64 = p.dim.iter().zip(&p.stride).map(|(d, s)| (d - 1) * s).sum();
        ((last + 1) as usize * p.dtype.bits() as usize).div_ceil(8)
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

/// One element, about normal where the type allows; of FP4 two, a byte. In the second byte nothing where one holds all.
fn value(d: DType, r: &mut Random) -> [u8; 2] {
    // Three times 21 bits of one number.
    let bits = r.next();
    let x = [0, 21, 42].map(|shift| (bits >> shift & 0x1f_ffff) as f32 / (1u32 << 20) as f32 - 1.0).iter().sum();
    match d {
        DType::BF16 => bf16::from_f32(x).to_ne_bytes(),
        DType::F16 => f16::from_f32(x).to_ne_bytes(),
        DType::F8E5M2 => [e5m2::encode(x), 0],
        DType::F4E2M1 => [bits as u8, 0],
        _ => [e4m3::encode(x), 0],
    }
}

/// Values of an operand; `inner` is the axis along which two FP4 values share a byte. All bits set is a NaN in every type that has one.
fn values(port: &GemmPort, inner: usize, bytes: usize, r: &mut Random) -> Vec<u8> {
    let mut out = vec![0xff; bytes];
    let step = |axis: usize| if axis == inner && port.dtype == DType::F4E2M1 { 2 } else { 1 };
    for i in 0..port.dim[0] {
        for j in (0..port.dim[1]).step_by(step(1)) {
            for l in (0..port.dim[2]).step_by(step(2)) {
                let at = i * port.stride[0] + j * port.stride[1] + l * port.stride[2];
                let at = at as usize * port.dtype.bits() as usize / 8;
                let width = if port.dtype.is_half() { 2 } else { 1 };
                out[at..at + width].copy_from_slice(&value(port.dtype, r)[..width]);
            }
        }
    }
    out
}

/// Scales within a few powers of two of 1, one in ten of E8M0's 2^-87; what is behind rows and blocks is NaN.
fn scales(f: &MoeFacts, token: bool, bytes: usize, r: &mut Random) -> Vec<u8> {
    let (Some(s), Some(port)) = (f.scales, if token { &f.ports.token_scale } else { &f.ports.weight_scale }) else {
        return Vec::new();
    };
    let (place, outers, rows) =
        if token { (s.token, 1, f.tokens as usize) } else { (s.weight, f.experts as usize, f.n as usize) };
    let matrix = ScaleMatrix::of(rows, f.k as usize, s.vec as usize);
    let mut out = vec![if s.dtype == DType::F8E4M3 { 0x7f } else { 0xff }; bytes];
    for outer in 0..outers {
        for row in 0..rows {
            for block in 0..matrix.blocks {
                let at = match (place, token) {
                    (ScalePlace::Atoms, _) => outer * matrix.bytes() + matrix.index(row, block),
                    (ScalePlace::Strided, true) => row * port.stride[1] as usize + block,
                    (ScalePlace::Strided, false) => {
                        outer * port.stride[0] as usize + block * port.stride[1] as usize + row * port.stride[2] as usize
                    }
                };
                out[at] = match s.dtype {
                    DType::F8E4M3 => 0x20 + r.below(0x30) as u8,
                    _ if r.below(10) == 0 => 40,
                    _ => 121 + r.below(9) as u8,
                };
            }
        }
    }
    out
}

/// Inputs by uid.
pub fn inputs(case: &Case, f: &MoeFacts, seed: u64) -> BTreeMap<Uid, Vec<u8>> {
    let r = &mut Random(seed ^ 0x5eed);
    let mut out = routing(case, seed);
    for (uid, inner, port) in [(1, 2, &f.ports.token), (2, 1, &f.ports.weight)] {
        if let Some(port) = port {
            out.insert(uid, values(port, inner, span(f, uid), r));
        }
    }
    for (uid, token) in [(3, true), (4, false)].into_iter().filter(|_| f.scales.is_some()) {
        out.insert(uid, scales(f, token, span(f, uid), r));
    }
    out
}

/// Turns tokens that no row of the output depends on into NaN; `reads` says which do.
pub fn poison_unread(f: &MoeFacts, reads: &[bool], data: &mut BTreeMap<Uid, Vec<u8>>) {
    let (Some(port), Some(bytes)) = (&f.ports.token, data.get_mut(&1)) else { return };
    let bits = port.dtype.bits() as usize;
    for (row, _) in reads.iter().enumerate().filter(|(_, read)| !**read) {
        let at = row * port.stride[1] as usize * bits / 8;
        bytes[at..at + f.k as usize * bits / 8].fill(0xff);
    }
}
