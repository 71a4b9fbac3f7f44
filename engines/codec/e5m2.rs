//! E5M2 (`float8_e5m2`): finite range ±57344, Inf at 0x7C and 0xFC, NaN above.

use super::minifloat;

/// Largest finite value.
pub const MAX: f32 = 57344.0;

/// Smallest normal value.
const SMALLEST: f32 = minifloat::power(-14);

/// Values of the 256 codes.
pub const VALUES: [f32; 256] = values();

/// Code of the value nearest to `x`, ties to even, saturating: Inf becomes ±57344. NaN of either sign becomes 0x7F, as in hardware.
#[inline(always)]
pub fn encode(x: f32) -> u8 {
    if x.is_nan() {
        return 0x7f;
    }
    minifloat::encode::<2>(x.abs().min(MAX), SMALLEST) | (x.to_bits() >> 24) as u8 & 0x80
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
        let value = match code {
            0x7c => f32::INFINITY,
            0x7d..=0x7f => f32::NAN,
            _ => minifloat::magnitude(code as u32, 2, 15),
        };
        (out[code], out[code + 128]) = (value, -value);
        code += 1;
    }
    out
}
