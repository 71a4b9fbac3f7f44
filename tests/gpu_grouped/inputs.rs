//! Seeded inputs of a case.

use crate::cases::{Case, Data};
use crate::random::Random;
use frostgraph::engines::codec::{e4m3, e5m2};
use frostgraph::engines::grouped_gemm::Weights;
use frostgraph::engines::{DType, Uid};
use half::{bf16, f16};
use std::collections::BTreeMap;

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

/// Non-finite codes of the payload's type, scattered over one row and one column: NaN, and for E5M2 both infinities.
fn spoil(case: &Case, a: &mut [u8], b: &mut [u8]) {
    let codes: &[u8] = if case.ab == DType::F8E5M2 { &[0x7c, 0xfc, 0x7e] } else { &[0x7f, 0xff] };
    let (k, last) = (case.k as usize, case.last_expert());
    for (i, &code) in codes.iter().enumerate() {
        a[(17 + i) * k + 5 * i + 3] = code;
        b[(last * case.n as usize + 3 + i) * k + 7 * i + 1] = code;
    }
}

/// Experts of N by K become K by N.
fn transpose(case: &Case, b: &[u8]) -> Vec<u8> {
    let (n, k) = (case.n as usize, case.k as usize);
    b.chunks_exact(n * k).flat_map(|e| (0..n * k).map(move |i| e[i % n * k + i / n])).collect()
}

/// One expert after the other, backwards, with gaps: the pool and the offset of each expert.
fn pool(case: &Case, dense: &[u8], which: usize) -> (Vec<u8>, Vec<i64>) {
    let (size, experts) = (case.expert_bytes()[which] as usize, case.ends.len());
    let step = size + Case::GAP as usize;
    // What nothing may look at: NaN of every type.
    let mut out = vec![0xff; step * experts];
    let offset = |e: usize| (experts - 1 - e) * step;
    for (e, bytes) in dense.chunks_exact(size).enumerate() {
        out[offset(e)..offset(e) + size].copy_from_slice(bytes);
    }
    let mut list: Vec<i64> = (0..experts).map(|e| offset(e) as i64).collect();
    let last = case.last_expert();
    match case.data {
        Data::BadEntry if which == 0 => list[last] = out.len() as i64 - size as i64 + 16,
        Data::MisalignedEntry if which == 1 => list[last] += 8,
        _ => {}
    }
    (out, list)
}

/// Inputs by uid. Weights behind lists are a pool with byte offsets here, also where the device will be given addresses.
pub fn inputs(case: &Case, seed: u64) -> BTreeMap<Uid, Vec<u8>> {
    let r = &mut Random(seed);
    let (m, n, l) = (case.m as usize, case.n as usize, case.ends.len());
    let salt = r.next();
    let zero = move |slice: usize, row: usize, block: usize| {
        case.data == Data::ZeroBlocks && Random(salt ^ ((slice * 7919 + row) * 1013 + block) as u64).below(10) == 0
    };
    let nan = case.data == Data::NanScales;
    let floats = |list: Vec<f32>| list.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>();
    let mut out = BTreeMap::new();
    let (mut a, mut b) = (payload(case, 1, m, r, &zero), payload(case, l, n, r, &zero));
    if case.data == Data::NonFinitePayload {
        spoil(case, &mut a, &mut b);
    }
    let mut c: Vec<u8> = (0..m * n).flat_map(|_| encode(case.c, r.normal())).collect();
    if case.data == Data::NonFiniteC {
        let width = encode(case.c, 0.0).len();
        for (row, x) in [(7, f32::INFINITY), (9, f32::NEG_INFINITY), (40, f32::NAN)] {
            let values = c[row * n * width..(row + 1) * n * width].chunks_exact_mut(width);
            values.step_by(3).for_each(|v| v.copy_from_slice(&encode(case.c, x)));
        }
    }
    // A row and a column of the last expert with rows.
    let sfa = scales(case, 1, m, r, &zero, nan.then_some([0, 37, 1]));
    let sfb = scales(case, l, n, r, &zero, nan.then_some([case.last_expert(), 70 % n, 0]));
    let b = if case.b_n_major { transpose(case, &b) } else { b };
    if case.weights == Weights::Dense {
        out.insert(2, b);
        out.insert(5, sfb);
    } else {
        for (which, dense) in [b, sfb].into_iter().enumerate() {
            let (bytes, list) = pool(case, &dense, which);
            out.insert([2, 5][which], bytes);
            out.insert([6, 7][which], list.iter().flat_map(|x| x.to_ne_bytes()).collect());
        }
    }
    out.insert(1, a);
    out.insert(3, c);
    out.insert(4, sfa);
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
