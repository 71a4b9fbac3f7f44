//! E2M1 (FP4): one sign bit, two exponent bits, one mantissa bit; two values a byte.

use super::minifloat;

/// Largest value.
pub const MAX: f32 = 6.0;

/// Values of the 16 codes.
pub const VALUES: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Code of the value nearest to `x`, ties to even, saturating. NaN of either sign becomes +6, as in hardware.
#[inline(always)]
pub fn encode(x: f32) -> u8 {
    // `min` returns the other operand for a NaN.
    minifloat::encode::<1>(x.abs().min(MAX), 1.0) | sign(x)
}

/// Value nearest to `x`: [`decode`] of [`encode`].
#[inline(always)]
pub fn round(x: f32) -> f32 {
    let a = minifloat::round::<1>(x.abs().min(MAX), 1.0);
    f32::from_bits(a.to_bits() | u32::from(sign(x)) << 28)
}

/// Value of the low four bits of `code`.
#[inline(always)]
pub fn decode(code: u8) -> f32 {
    VALUES[usize::from(code & 15)]
}

/// The sign as bit 3; a NaN counts as positive.
#[inline(always)]
fn sign(x: f32) -> u8 {
    if x.is_nan() {
        0
    } else {
        (x.to_bits() >> 28) as u8 & 8
    }
}

/// Code of element `i` of a packed array: element 0 is in the low four bits of byte 0, element 1 in the high four.
#[inline(always)]
pub fn get(packed: &[u8], i: usize) -> u8 {
    packed[i / 2] >> (4 * (i % 2)) & 15
}

/// Stores the low four bits of `code` as element `i` of a packed array.
#[inline(always)]
pub fn set(packed: &mut [u8], i: usize, code: u8) {
    let shift = 4 * (i % 2);
    packed[i / 2] = packed[i / 2] & !(15 << shift) | (code & 15) << shift;
}
