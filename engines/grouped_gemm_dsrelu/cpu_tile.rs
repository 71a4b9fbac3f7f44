//! Decoding of block-scaled operands and one tile of the product.

use crate::codec::{e2m1, e4m3, e5m2, e8m0};
use crate::sdpa::cpu::gemm::gemm;
use crate::sdpa::cpu::vectorize;
use crate::DType;
use half::{bf16, f16};
use pulp::{Simd, WithSimd};

/// Rows and columns of a tile: the extent of a scale atom, so that an atom has one writer.
pub const TILE: usize = 128;

/// Payload of element `i` of an FP8 or packed FP4 array, unscaled.
#[inline(always)]
pub fn payload(dtype: DType, bytes: &[u8], i: usize) -> f32 {
    match dtype {
        DType::F4E2M1 => e2m1::decode(e2m1::get(bytes, i)),
        DType::F8E5M2 => e5m2::decode(bytes[i]),
        _ => e4m3::decode(bytes[i]),
    }
}

/// Value of a scale.
#[inline(always)]
pub fn scale(dtype: DType, code: u8) -> f32 {
    if dtype == DType::F8E4M3 {
        e4m3::decode(code)
    } else {
        e8m0::decode(code)
    }
}

/// Element `i` of C.
#[inline(always)]
pub fn read(dtype: DType, bytes: &[u8], i: usize) -> f32 {
    match dtype {
        DType::F16 => f16::from_ne_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32(),
        DType::BF16 => bf16::from_ne_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32(),
        DType::F8E4M3 => e4m3::decode(bytes[i]),
        DType::F8E5M2 => e5m2::decode(bytes[i]),
        _ => f32::from_ne_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]]),
    }
}

/// Rounds a value into element `i` of a result that is not block-scaled.
#[inline(always)]
pub fn write(dtype: DType, bytes: &mut [u8], i: usize, x: f32) {
    match dtype {
        DType::F16 => bytes[2 * i..2 * i + 2].copy_from_slice(&f16::from_f32(x).to_ne_bytes()),
        DType::BF16 => bytes[2 * i..2 * i + 2].copy_from_slice(&bf16::from_f32(x).to_ne_bytes()),
        _ => bytes[4 * i..4 * i + 4].copy_from_slice(&x.to_ne_bytes()),
    }
}

/// 128 rows of an operand by all of K, payload and scales apart: `[K][128]` and `[blocks][128]`; rows past the operand are zero.
#[derive(Debug, Default)]
pub struct Panel {
    /// `[K][TILE]`.
    pub values: Vec<f32>,
    /// `[blocks][TILE]`.
    pub scales: Vec<f32>,
}

impl Panel {
    /// Fills the panel from `value(row, k)` and `scale(row, block)`.
    pub fn fill(
        &mut self,
        rows: usize,
        [k, blocks]: [usize; 2],
        value: impl Fn(usize, usize) -> f32,
        scale: impl Fn(usize, usize) -> f32,
    ) {
        self.values.clear();
        self.values.resize(k * TILE, 0.0);
        self.scales.clear();
        self.scales.resize(blocks * TILE, 0.0);
        for r in 0..rows {
            for (i, row) in self.values.chunks_exact_mut(TILE).enumerate() {
                row[r] = value(r, i);
            }
            for (i, row) in self.scales.chunks_exact_mut(TILE).enumerate() {
                row[r] = scale(r, i);
            }
        }
    }
}

/// The product of two panels: `out[m][n] = sum over blocks of (sum over the block of a·b) · scale_a · scale_b`.
///
/// Scales are applied to the sum of a block in double precision, so that neither their product nor a scaled operand leaves the range of f32
/// where the result does not. Within a block and over blocks the order is ascending in K; sums are single precision, or with
/// `double` double throughout, and `out` is then the rounded result.
pub struct Product<'a> {
    /// Rows.
    pub a: &'a Panel,
    /// Columns.
    pub b: &'a Panel,
    /// Contraction.
    pub k: usize,
    /// Values a scale.
    pub vec: usize,
    /// Accumulate in f64.
    pub double: bool,
    /// `[TILE][TILE]`.
    pub out: &'a mut [f32],
}

impl Product<'_> {
    /// Computes the tile.
    pub fn run(self) {
        if self.double {
            self.run_double();
        } else {
            vectorize(self);
        }
    }

    fn run_double(self) {
        let mut acc = vec![0.0f64; TILE * TILE];
        for block in 0..self.k.div_ceil(self.vec) {
            let (sa, sb) = (&self.a.scales[block * TILE..][..TILE], &self.b.scales[block * TILE..][..TILE]);
            let steps = block * self.vec..self.k.min((block + 1) * self.vec);
            for (m, row) in acc.chunks_exact_mut(TILE).enumerate() {
                let mut sums = [0.0f64; TILE];
                for k in steps.clone() {
                    let x = f64::from(self.a.values[k * TILE + m]);
                    for (s, &y) in sums.iter_mut().zip(&self.b.values[k * TILE..][..TILE]) {
                        *s += x * f64::from(y);
                    }
                }
                for ((acc, s), &y) in row.iter_mut().zip(sums).zip(sb) {
                    *acc += s * (f64::from(sa[m]) * f64::from(y));
                }
            }
        }
        self.out.iter_mut().zip(acc).for_each(|(o, x)| *o = x as f32);
    }
}

impl WithSimd for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let mut sums = vec![0.0f32; TILE * TILE];
        self.out.fill(0.0);
        for block in 0..self.k.div_ceil(self.vec) {
            let (sa, sb) = (&self.a.scales[block * TILE..][..TILE], &self.b.scales[block * TILE..][..TILE]);
            let from = block * self.vec;
            let len = self.vec.min(self.k - from);
            let (a, b) = (&self.a.values[from * TILE..], &self.b.values[from * TILE..]);
            gemm(simd, [TILE, TILE, len], (a, TILE), (b, TILE), (&mut sums, TILE), false);
            for ((out, sums), &x) in self.out.chunks_exact_mut(TILE).zip(sums.chunks_exact(TILE)).zip(sa) {
                for ((o, s), &y) in out.iter_mut().zip(sums).zip(sb) {
                    *o += (f64::from(*s) * (f64::from(x) * f64::from(y))) as f32;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a large term hides in single precision and double precision keeps.
    #[test]
    fn double_accumulation_keeps_what_single_loses() {
        let (mut a, mut b, mut out) = (Panel::default(), Panel::default(), vec![0.0; TILE * TILE]);
        let big = 57_344.0;
        a.fill(1, [4, 1], |_, k| [big, 2f32.powi(-10), -big, 0.0][k], |_, _| 4.0);
        b.fill(1, [4, 1], |_, k| [big, 2f32.powi(-10), big, 0.0][k], |_, _| 0.5);
        let mut of = |double: bool| {
            Product { a: &a, b: &b, k: 4, vec: 32, double, out: &mut out }.run();
            out[0]
        };
        assert_eq!([of(true), of(false)], [2f32.powi(-19), 0.0]);
    }

    #[test]
    fn a_product_by_hand_over_two_blocks() {
        let (mut a, mut b, mut out) = (Panel::default(), Panel::default(), vec![0.0; TILE * TILE]);
        a.fill(2, [20, 2], |r, k| (r + k) as f32, |r, s| [1.0, 2.0][s] * (r + 1) as f32);
        b.fill(3, [20, 2], |c, _| c as f32, |_, s| [0.5, 0.25][s]);
        for double in [false, true] {
            Product { a: &a, b: &b, k: 20, vec: 16, double, out: &mut out }.run();
            for r in 0..2 {
                for c in 0..3 {
                    let sum = |k: std::ops::Range<usize>| k.map(|k| (r + k) * c).sum::<usize>() as f32;
                    let want = (r + 1) as f32 * (0.5 * sum(0..16) + 0.5 * sum(16..20));
                    assert_eq!(out[r * TILE + c], want, "({r}, {c})");
                }
            }
            assert_eq!(out[3], 0.0, "columns past the operand");
        }
    }
}
