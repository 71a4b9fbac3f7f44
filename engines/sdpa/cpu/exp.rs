//! The exponential of the softmax: branch-free, so that loops over it vectorise.

use pulp::Simd;

/// Below this the result is below the smallest normal f32 and is returned as 0.
const LOW: f32 = -87.336_54;
/// Above this the result exceeds f32 and is infinite.
const HIGH: f32 = 88.722_84;
/// ln 2 cut so that a multiple of up to 2^7 of the upper part is exact.
const LN2_HI: f32 = 0.693_359_4;
const LN2_LO: f32 = -2.121_944_4e-4;
/// Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, which then sits in the low mantissa bits.
const ROUND: f32 = 12_582_912.0;

/// `a * b + c`, fused where the vector unit fuses it; elsewhere a fused one is a library call.
#[inline(always)]
fn madd<S: Simd>(a: f32, b: f32, c: f32) -> f32 {
    if S::F32_LANES >= 8 {
        a.mul_add(b, c)
    } else {
        a * b + c
    }
}

/// e^x within 2 units in the last place; 0 below -87.34, exactly 1 at 0, NaN for NaN.
#[inline(always)]
pub fn exp<S: Simd>(x: f32) -> f32 {
    // Clamped only for the power; the selects at the end restore what lies outside, and let NaN through.
    let c = x.clamp(LOW, HIGH);
    let shifted = madd::<S>(c, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = madd::<S>(n, -LN2_LO, madd::<S>(n, -LN2_HI, c));
    // Taylor coefficients: on |r| <= ln2/2 the first omitted term is below 2^-27 of the result.
    let mut p = 1.0 / 5040.0;
    for next in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5] {
        p = madd::<S>(p, r, next);
    }
    p = madd::<S>(p * r, r, r);
    // 2^n in two halves: n reaches 128, one more than an exponent field holds.
    let k = shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let half = k >> 1;
    let power = |e: i32| f32::from_bits(((e + 127) << 23) as u32);
    let y = (p + 1.0) * power(half) * power(k - half);
    let y = if x < LOW { 0.0 } else { y };
    if x > HIGH {
        f32::INFINITY
    } else {
        y
    }
}

#[cfg(test)]
mod tests {
    use crate::sdpa::cpu::vectorize;
    use pulp::{Scalar128b, Simd, WithSimd};

    /// Runs a check with the fused and the separate multiply-add.
    fn both<T: WithSimd<Output = ()> + Copy>(check: T) {
        vectorize(check);
        Scalar128b.vectorize(check);
    }

    #[derive(Clone, Copy)]
    struct Accuracy;

    impl WithSimd for Accuracy {
        type Output = ();
        fn with_simd<S: Simd>(self, _: S) {
            let mut worst = 0.0f64;
            for i in 0..1_000_000 {
                let x = -87.33 + 176.0 * (i as f32 / 1e6);
                let want = (x as f64).exp();
                let ulp = f32::from_bits((want as f32).to_bits() + 1) as f64 - (want as f32) as f64;
                if (want as f32).is_finite() && ulp.is_finite() {
                    worst = worst.max((super::exp::<S>(x) as f64 - want).abs() / ulp);
                }
            }
            assert!(worst <= 2.0, "{worst} ulp");
        }
    }

    #[test]
    fn is_within_two_ulp_of_the_f64_exponential() {
        both(Accuracy);
    }

    #[derive(Clone, Copy)]
    struct Special;

    impl WithSimd for Special {
        type Output = ();
        fn with_simd<S: Simd>(self, _: S) {
            let exp = super::exp::<S>;
            assert_eq!(exp(0.0).to_bits(), 1.0f32.to_bits());
            assert_eq!(exp(-0.0), 1.0);
            assert_eq!(exp(f32::NEG_INFINITY).to_bits(), 0);
            assert_eq!(exp(-1e30).to_bits(), 0);
            assert_eq!(exp(f32::INFINITY), f32::INFINITY);
            assert_eq!(exp(89.0), f32::INFINITY);
            assert!(exp(88.72).is_finite());
            assert!(exp(f32::NAN).is_nan());
        }
    }

    #[test]
    fn special_values() {
        both(Special);
    }
}
