//! Products of two tiles whose rows run along the contraction: `C[i][j] (+)= sum over k of A[k][i] * B[k][j]`.
//!
//! Each element is one chain of multiply-adds in ascending `k`, starting from the old `C` or from zero. The order does not depend
//! on the tile's position or size, so padding or cutting a tile differently cannot change a bit.

use pulp::Simd;

/// A row-major tile: its values and the distance of its rows.
pub type Tile<'a> = (&'a [f32], usize);

/// `C[m][n] (+)= A^T B` over `k` rows of both.
///
/// `n` is a multiple of [`super::PAD`]; rows of `A` hold at least `m` rounded up to 8 values.
#[inline(always)]
pub fn gemm<S: Simd>(simd: S, [m, n, k]: [usize; 3], a: Tile<'_>, b: Tile<'_>, c: (&mut [f32], usize), add: bool) {
    // 4x4 vectors fill 16 of 32 registers, 4x2 fill 8 of 16: both keep two multiply-add units busy.
    if S::F32_LANES >= 16 {
        blocked::<S, 4, 4>(simd, [m, n, k], a, b, c, add);
    } else {
        blocked::<S, 4, 2>(simd, [m, n, k], a, b, c, add);
    }
}

#[inline(always)]
fn blocked<S: Simd, const MR: usize, const NV: usize>(
    simd: S,
    [m, n, k]: [usize; 3],
    a: Tile<'_>,
    b: Tile<'_>,
    c: (&mut [f32], usize),
    add: bool,
) {
    let mut j = 0;
    while j < n {
        let vectors = ((n - j) / S::F32_LANES).min(NV);
        for i in (0..m).step_by(MR) {
            let (a, b) = ((&a.0[i..], a.1), (&b.0[j..], b.1));
            let (rows, part) = (MR.min(m - i), (&mut c.0[i * c.1 + j..], c.1));
            match vectors {
                4 => micro::<S, MR, 4>(simd, rows, k, a, b, part, add),
                3 => micro::<S, MR, 3>(simd, rows, k, a, b, part, add),
                2 => micro::<S, MR, 2>(simd, rows, k, a, b, part, add),
                _ => micro::<S, MR, 1>(simd, rows, k, a, b, part, add),
            }
        }
        j += vectors * S::F32_LANES;
    }
}

/// One register tile of `rows <= MR` rows and `NV` vectors.
#[inline(always)]
fn micro<S: Simd, const MR: usize, const NV: usize>(
    simd: S,
    rows: usize,
    k: usize,
    a: Tile<'_>,
    b: Tile<'_>,
    c: (&mut [f32], usize),
    add: bool,
) {
    let width = NV * S::F32_LANES;
    let mut acc = [[simd.splat_f32s(0.0); NV]; MR];
    if add {
        for (row, acc) in c.0.chunks(c.1).zip(&mut acc).take(rows) {
            acc.copy_from_slice(&S::as_simd_f32s(&row[..width]).0[..NV]);
        }
    }
    for (ak, bk) in a.0.chunks(a.1).zip(b.0.chunks(b.1)).take(k) {
        let ak: &[f32; MR] = ak[..MR].try_into().expect("MR values");
        let bk: &[S::f32s; NV] = S::as_simd_f32s(&bk[..width]).0.try_into().expect("NV vectors");
        for (acc, &x) in acc.iter_mut().zip(ak) {
            let x = simd.splat_f32s(x);
            for (acc, &y) in acc.iter_mut().zip(bk) {
                *acc = simd.mul_add_e_f32s(x, y, *acc);
            }
        }
    }
    for (row, acc) in c.0.chunks_mut(c.1).zip(&acc).take(rows) {
        S::as_mut_simd_f32s(&mut row[..width]).0.copy_from_slice(acc);
    }
}

/// One product in the order and rounding of [`gemm`], for values that must match it bit for bit.
#[inline(always)]
pub fn dot<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f32 {
    let mut acc = simd.splat_f32s(0.0);
    for (&x, &y) in a.iter().zip(b) {
        acc = simd.mul_add_e_f32s(simd.splat_f32s(x), simd.splat_f32s(y), acc);
    }
    simd.reduce_max_f32s(acc)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sdpa::cpu::vectorize;

    struct Case {
        dims: [usize; 3],
        add: bool,
    }

    impl pulp::WithSimd for Case {
        type Output = ();
        fn with_simd<S: Simd>(self, simd: S) {
            let [m, n, k] = self.dims;
            let (sa, sb, sc) = (m.next_multiple_of(8) + 8, n + 16, n + 32);
            let value = |i: usize| ((i * 7919) % 31) as f32 - 15.0;
            let a: Vec<f32> = (0..k * sa).map(value).collect();
            let b: Vec<f32> = (0..k * sb).map(|i| value(i + 5)).collect();
            let mut c = vec![3.0; m * sc];
            gemm(simd, self.dims, (&a, sa), (&b, sb), (&mut c, sc), self.add);
            for i in 0..m {
                for j in 0..sc {
                    // Small integers: exact in f32 whatever the order.
                    let sum: f32 = (0..k).map(|x| a[x * sa + i] * b[x * sb + j.min(n - 1)]).sum();
                    let want = if j >= n { 3.0 } else { sum + if self.add { 3.0 } else { 0.0 } };
                    assert_eq!(c[i * sc + j], want, "{:?} at ({i}, {j})", self.dims);
                }
            }
            let (x, y): (Vec<f32>, Vec<f32>) = (0..k).map(|i| (value(i) * 0.1, value(i + 9) * 0.3)).unzip();
            let (ax, by): (Vec<f32>, Vec<f32>) =
                (x.iter().flat_map(|&v| [v; 8]).collect(), y.iter().flat_map(|&v| [v; 16]).collect());
            let mut one = vec![0.0; 16];
            gemm(simd, [1, 16, k], (&ax, 8), (&by, 16), (&mut one, 16), false);
            assert_eq!(one[0].to_bits(), dot(simd, &x, &y).to_bits());
        }
    }

    #[test]
    fn products_are_exact_on_integers_for_every_edge() {
        for m in [1, 3, 8, 9, 64] {
            for n in [16, 32, 48, 64] {
                for k in [1, 2, 40] {
                    vectorize(Case { dims: [m, n, k], add: false });
                    vectorize(Case { dims: [m, n, k], add: true });
                    pulp::Simd::vectorize(pulp::Scalar128b, Case { dims: [m, n, k], add: true });
                }
            }
        }
    }
}
