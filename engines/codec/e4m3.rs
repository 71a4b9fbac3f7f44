//! E4M3 (`float8_e4m3fn`): finite range ±448, no Inf, NaN at 0x7F and 0xFF.

use super::minifloat;

/// Largest value.
pub const MAX: f32 = 448.0;

/// Smallest normal value.
const SMALLEST: f32 = minifloat::power(-6);

/// Values of the 256 codes.
pub const VALUES: [f32; 256] = values();

/// Code of the value nearest to `x`, ties to even, saturating. NaN of either sign becomes 0x7F, as in hardware.
#[inline(always)]
pub fn encode(x: f32) -> u8 {
    if x.is_nan() {
        return 0x7f;
    }
    minifloat::encode::<3>(x.abs().min(MAX), SMALLEST) | (x.to_bits() >> 24) as u8 & 0x80
}

/// Value of a code.
#[inline(always)]
pub fn decode(code: u8) -> f32 {
    VALUES[usize::from(code)]
}

const fn values() -> [f32; 256] {
    let mut out = [0.0; 256];
    let mut code = 0;
    while code < 128 {
        let value = if code == 0x7f { f32::NAN } else { minifloat::magnitude(code as u32, 3, 7) };
        (out[code], out[code + 128]) = (value, -value);
        code += 1;
    }
    out
}
