//! E8M0: a power of two, 2^(code - 127), without sign or zero; 0xFF is NaN.

/// Code of 1.
pub const ONE: u8 = 127;

/// Code of NaN.
pub const NAN: u8 = 0xff;

/// Code of the smallest power of two that is not below `|x|`: `cvt.rp.satfinite.ue8m0`.
///
/// Zero becomes 2^-127, anything above 2^127 (Inf too) becomes 2^127, NaN stays NaN.
#[inline(always)]
pub fn encode_up(x: f32) -> u8 {
    let bits = x.to_bits() & 0x7fff_ffff;
    if bits > 0x7f80_0000 {
        return NAN;
    }
    // Any mantissa bit lifts the exponent by one. Single-precision subnormals lie on the finer grid 2^-149 and everything up to 2^-127
    // (mantissa 0x400000 of exponent field 0) rounds up to code 0.
    if bits <= 0x40_0000 {
        return 0;
    }
    ((bits + 0x7f_ffff) >> 23).min(254) as u8
}

/// Code of the power of two nearest to `|x|` on the linear scale, ties (1.5 times a power of two) to the larger one.
///
/// Zero becomes 2^-127, anything above 2^127 becomes 2^127, NaN stays NaN.
#[inline(always)]
pub fn encode_nearest(x: f32) -> u8 {
    let bits = x.to_bits() & 0x7fff_ffff;
    if bits > 0x7f80_0000 {
        return NAN;
    }
    // Between 2^-127 (0x40_0000) and 2^-126 (0x80_0000) the middle is 0x60_0000.
    if bits < 0x60_0000 {
        return 0;
    }
    ((bits + 0x40_0000) >> 23).clamp(1, 254) as u8
}

/// Value of a code.
#[inline(always)]
pub fn decode(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(0x40_0000),
        NAN => f32::NAN,
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

/// 1 / [`decode`], which is exact: the reciprocal of 2^127 is a single-precision subnormal and is not flushed. NaN for NaN.
#[inline(always)]
pub fn reciprocal(code: u8) -> f32 {
    match code {
        NAN => f32::NAN,
        _ => decode(254 - code),
    }
}
