//! The dsReLU backward of one value of G, and the quantisation of a block of results. In single precision, operation by operation.

use super::Formula;
use crate::codec::{e4m3, e5m2, e8m0};
use crate::DType;

/// What one element contributes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Element {
    /// D before it is rounded to its type.
    pub d: f32,
    /// Its share of dprob.
    pub dprob: f32,
    /// The forward activation, times prob.
    pub srelu: f32,
}

/// Half the derivative's pieces of the squared activation of `x`: the activation's root `b`, and `b` times its derivative.
///
/// Unclamped both are relu(x). With a clamp `s`: t = tanh(relu(x) / s), b = s·t, and the second is b·(1 - t²), where 1 - t² is computed as
/// 4e / (1 + e)² with e = exp(-2 relu(x) / s): the difference loses every digit where t is near 1.
/// A NaN stays a NaN: relu keeps everything that is not at most 0.
#[inline(always)]
pub fn activation(x: f32, clamp: Option<f32>) -> (f32, f32) {
    let r = if x <= 0.0 { 0.0 } else { x };
    match clamp {
        None => (r, r),
        Some(s) => {
            let t = (r / s).tanh();
            let (b, e) = (s * t, (-2.0 * (r / s)).exp());
            (b, b * (4.0 * e / ((1.0 + e) * (1.0 + e))))
        }
    }
}

/// One element from G, C and the row's probability.
#[inline(always)]
pub fn element(formula: Formula, clamp: Option<f32>, g: f32, c: f32, prob: f32) -> Element {
    let (x, u) = match formula {
        Formula::PreactivationG => (g, c),
        Formula::PreactivationC => (c, g),
    };
    let (b, slope) = activation(x, clamp);
    Element { d: prob * 2.0 * u * slope, dprob: u * (b * b), srelu: prob * (b * b) }
}

/// Reciprocal of the largest result that a block's scale aims at: 1/448 for E4M3, 1/128 for E5M2 (as the reference has it: the format
/// reaches 57,344).
pub fn rcp_max(d: DType) -> f32 {
    if d == DType::F8E5M2 {
        1.0 / 128.0
    } else {
        1.0 / 448.0
    }
}

/// Code and multiplier of a block whose largest magnitude is `amax`: the E8M0 code of `amax * rcp_max * norm` rounded up, and
/// `min(norm / scale, largest f32)`, by which values are multiplied before they are rounded.
///
/// A block of zeros gets code 0 and stays zero. An infinite amax gets the largest scale, so that infinities saturate and finite values
/// vanish.
#[inline(always)]
pub fn block_scale(amax: f32, rcp_max: f32, norm: f32) -> (u8, f32) {
    let code = e8m0::encode_up(amax * rcp_max * norm);
    (code, (norm * e8m0::reciprocal(code)).min(f32::MAX))
}

/// Rounds a value to the FP8 type of D.
#[inline(always)]
pub fn encode_fp8(d: DType, x: f32) -> u8 {
    if d == DType::F8E5M2 {
        e5m2::encode(x)
    } else {
        e4m3::encode(x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_readings_by_hand() {
        // G = 3, C = 0.5, prob = 0.25.
        let spec = element(Formula::PreactivationG, None, 3.0, 0.5, 0.25);
        assert_eq!(spec, Element { d: 0.25 * 2.0 * 0.5 * 3.0, dprob: 0.5 * 9.0, srelu: 0.25 * 9.0 });
        let other = element(Formula::PreactivationC, None, 3.0, 0.5, 0.25);
        assert_eq!(other, Element { d: 0.25 * 2.0 * 3.0 * 0.5, dprob: 3.0 * 0.25, srelu: 0.25 * 0.25 });
        let dead = element(Formula::PreactivationG, None, -3.0, 0.5, 0.25);
        assert_eq!(dead, Element { d: 0.0, dprob: 0.0, srelu: 0.0 });
        assert!(element(Formula::PreactivationG, None, f32::NAN, 0.5, 0.25).d.is_nan());
    }

    #[test]
    fn the_clamp_bounds_the_activation_and_flattens_its_slope() {
        let s = 2.0f32;
        for x in [-1.0f32, 0.0, 0.1, 1.0, 3.0, 50.0] {
            let (b, slope) = activation(x, Some(s));
            let t = (f64::from(x.max(0.0)) / 2.0).tanh();
            assert!((f64::from(b) - 2.0 * t).abs() < 1e-6 && (f64::from(slope) - 2.0 * t * (1.0 - t * t)).abs() < 1e-6, "{x}");
            assert!(b <= s);
        }
        let e = element(Formula::PreactivationG, Some(s), 1.0, 0.5, 0.25);
        let t = 0.5f64.tanh();
        assert!((f64::from(e.d) - 0.25 * 2.0 * 0.5 * 2.0 * t * (1.0 - t * t)).abs() < 1e-7);
        assert!((f64::from(e.dprob) - 0.5 * 4.0 * t * t).abs() < 1e-6);
    }

    /// As documented: an infinite C times a slope that single precision rounds to 0.
    #[test]
    fn an_infinite_c_far_above_a_clamp_is_a_nan() {
        assert!(element(Formula::PreactivationG, Some(1.0), 200.0, f32::INFINITY, 1.0).d.is_nan());
        assert_eq!(element(Formula::PreactivationG, Some(1.0), 2.0, f32::INFINITY, 1.0).d, f32::INFINITY);
    }

    #[test]
    fn block_scales() {
        let r = rcp_max(DType::F8E4M3);
        assert_eq!(block_scale(448.0, r, 1.0), (127, 1.0));
        assert_eq!(block_scale(449.0, r, 1.0), (128, 0.5));
        assert_eq!(block_scale(0.0, r, 1.0), (0, 2f32.powi(127)));
        // The multiplier carries norm as well: results are x * norm / scale.
        assert_eq!(block_scale(448.0, r, 0.25), (125, 1.0));
        assert_eq!(block_scale(f32::INFINITY, r, 1.0), (254, 2f32.powi(-127)));
        // A tiny block with a large norm: the multiplier stays finite.
        assert_eq!(block_scale(0.0, r, 4.0), (0, f32::MAX));
        assert_eq!(block_scale(128.0, rcp_max(DType::F8E5M2), 1.0), (127, 1.0));
    }
}
