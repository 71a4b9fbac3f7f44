//! Seeded inputs of a case.

use crate::cases::{Case, Data};
use frostgraph::engines::codec::{e4m3, e5m2};
use frostgraph::engines::{DType, Uid};
use half::{bf16, f16};
use std::collections::BTreeMap;

/// splitmix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// In [-1, 1).
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// About normal.
    fn normal(&mut self) -> f32 {
        (self.unit() + self.unit() + self.unit()) * 1.0
    }
}

fn encode(d: DType, x: f32) -> Vec<u8> {
    match d {
        DType::F16 => f16::from_f32(x).to_ne_bytes().to_vec(),
        DType::BF16 => bf16::from_f32(x).to_ne_bytes().to_vec(),
        DType::F8E4M3 => vec![e4m3::encode(x)],
        DType::F8E5M2 => vec![e5m2::encode(x)],
        _ => x.to_ne_bytes().to_vec(),
    }
}

/// Scale bytes of `slices` matrices of `rows` by `blocks`, in atoms whose padding is filled with 0xff: nothing may look at it.
fn scales(
    case: &Case,
    slices: usize,
    rows: usize,
    r: &mut Random,
    zero: &dyn Fn(usize, usize, usize) -> bool,
    nan: Option<[usize; 3]>,
) -> Vec<u8> {
    let blocks = (case.k as usize).div_ceil(case.sf_vec as usize);
    let atoms = [rows.div_ceil(128), blocks.div_ceil(4)];
    let mut out = vec![0xff; slices * atoms[0] * atoms[1] * 512];
    for slice in 0..slices {
        for row in 0..rows {
            for block in 0..blocks {
                let at = ((slice * atoms[0] + row / 128) * atoms[1] + block / 4) * 512
                    + row % 32 * 16
                    + row % 128 / 32 * 4
                    + block % 4;
                out[at] = if nan == Some([slice, row, block]) {
                    if case.sf == DType::F8E4M3 {
                        0x7f
                    } else {
                        0xff
                    }
                } else if case.sf == DType::F8E4M3 {
                    r.below(0x70) as u8
                } else if zero(slice, row, block) {
                    0
                } else if case.data == Data::Wide {
                    57 + r.below(90) as u8
                } else {
                    121 + r.below(9) as u8
                };
            }
        }
    }
    out
}

/// Payload bytes of `rows` rows by K, zeros in the blocks that `zero` names.
fn payload(case: &Case, slices: usize, rows: usize, r: &mut Random, zero: &dyn Fn(usize, usize, usize) -> bool) -> Vec<u8> {
    let (k, vec) = (case.k as usize, case.sf_vec as usize);
    let fp4 = case.ab == DType::F4E2M1;
    let mut out = Vec::with_capacity(slices * rows * k);
    for slice in 0..slices {
        for row in 0..rows {
            for i in (0..k).step_by(1 + usize::from(fp4)) {
                let value = if zero(slice, row, i / vec) {
                    0
                } else if fp4 {
                    r.below(256) as u8
                } else {
                    encode(case.ab, r.normal())[0]
                };
                out.push(value);
            }
        }
    }
    out
}

/// Inputs by uid.
pub fn inputs(case: &Case, seed: u64) -> BTreeMap<Uid, Vec<u8>> {
    let r = &mut Random(seed);
    let (m, n, l) = (case.m as usize, case.n as usize, case.ends.len());
    let salt = r.next();
    let zero = move |slice: usize, row: usize, block: usize| {
        case.data == Data::ZeroBlocks && Random(salt ^ ((slice * 7919 + row) * 1013 + block) as u64).below(10) == 0
    };
    let nan = (case.data == Data::NanScales).then_some(());
    let floats = |list: Vec<f32>| list.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>();
    let mut out = BTreeMap::new();
    out.insert(1, payload(case, 1, m, r, &zero));
    out.insert(2, payload(case, l, n, r, &zero));
    out.insert(3, (0..m * n).flat_map(|_| encode(case.c, r.normal())).collect());
    // A row and a column of the last expert with rows.
    out.insert(4, scales(case, 1, m, r, &zero, nan.map(|()| [0, 37, 1])));
    out.insert(5, scales(case, l, n, r, &zero, nan.map(|()| [l - 1, 70, 0])));
    out.insert(8, case.ends.iter().flat_map(|e| e.to_ne_bytes()).collect());
    let alpha = |e: usize, x: f32| if case.data == Data::NegativeAlpha && e % 2 == 1 { -x } else { x };
    out.insert(9, floats((0..l).map(|e| alpha(e, 1.0 + 0.5 * r.unit())).collect()));
    out.insert(10, floats((0..m).map(|_| 0.5 + 0.5 * r.unit()).collect()));
    if case.quantised() {
        let norm = if case.data == Data::HugeNorm { 1e37 } else { 0.375 };
        out.insert(11, floats(vec![norm]));
    }
    out
}
