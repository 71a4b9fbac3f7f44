//! NVFP4 fake-quantisation: blocks of 16 values to E2M1 with one E4M3 scale and straight back, as attention training simulates it.
//!
//! For a block with largest valid magnitude `amax`:
//! - scale `s = e4m3(max(amax / 6, 2^-9))`: never zero, so that no division by zero exists; saturates at 448, so magnitudes above
//!   2688 saturate;
//! - each valid `x` becomes `bf16(e2m1(x / s) * s)`; the product has at most 6 significant bits and is exact in bf16, f16 range allowing;
//! - both divisions round to nearest. `x` times a rounded `1 / s` is not the same: 0.5859375 / 0.46875 is exactly 1.25, a tie of E2M1
//!   that goes to 1 (even), and the product with the reciprocal may land beside it;
//! - masked lanes do not count towards `amax` and become +0. A block without valid lanes has the floor as its scale.
//!
//! NaN and Inf: a NaN lane does not count towards `amax` (the largest of the others, as `fmaxf` has it) and becomes +6 times the scale,
//! since E2M1 has no NaN and hardware saturates it. ±Inf makes the scale 448 and becomes ±2688. So the result is always finite: a caller
//! who must see NaN has to look at the input. Signed zeros keep their sign, and so does what rounds to zero.

use super::{e2m1, e4m3};
use half::bf16;

/// Values of a block.
pub const BLOCK: usize = 16;

/// Least scale, 2^-9: the smallest positive E4M3 value.
pub const FLOOR: f32 = 0.001_953_125;

/// Code of the E4M3 scale of a block whose largest valid magnitude is `amax`; a negative `amax` stands for "no valid lane".
#[inline]
pub fn scale_code(amax: f32) -> u8 {
    e4m3::encode((amax / e2m1::MAX).max(FLOOR))
}

/// The scale itself, from 2^-9 to 448.
#[inline]
pub fn scale(amax: f32) -> f32 {
    e4m3::decode(scale_code(amax))
}

/// E2M1 code of `x` in a block with scale `s`.
#[inline]
pub fn code(x: f32, s: f32) -> u8 {
    e2m1::encode(x / s)
}

/// Fake-quantised `x` in a block with scale `s`.
#[inline]
pub fn quantise(x: f32, s: f32) -> bf16 {
    bf16::from_f32(e2m1::round(x / s) * s)
}

/// Largest magnitude of the lanes of a block that `valid` keeps, NaN ignored; -1 when there is none.
#[inline]
pub fn amax(block: &[f32], valid: impl Fn(usize) -> bool) -> f32 {
    block.iter().enumerate().filter(|&(i, _)| valid(i)).fold(-1.0, |a: f32, (_, x)| a.max(x.abs()))
}

/// Fake-quantises one block of at most [`BLOCK`] values in place, to values that bf16 holds; returns its scale.
///
/// `valid(i)` tells whether lane `i` counts; the others become +0 whatever they hold.
#[inline]
pub fn fake_quant_block(block: &mut [f32], valid: impl Fn(usize) -> bool) -> f32 {
    debug_assert!(block.len() <= BLOCK);
    let s = scale(amax(block, &valid));
    for (i, x) in block.iter_mut().enumerate() {
        *x = if valid(i) { quantise(*x, s).to_f32() } else { 0.0 };
    }
    s
}

/// Fake-quantises a row in place, block after block from its start. A last block of fewer values is a block whose missing lanes are
/// masked.
pub fn fake_quant_row(row: &mut [f32]) {
    for block in row.chunks_mut(BLOCK) {
        fake_quant_block(block, |_| true);
    }
}
