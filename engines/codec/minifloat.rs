//! What E2M1, E4M3 and E5M2 share: rounding a magnitude to few mantissa bits, and reading a code back.

/// Exponent field of a single-precision number.
const EXPONENT: u32 = 0x7f80_0000;

/// Code of the magnitude `a` (finite, at least 0, at most the format's largest value) with `MAN` mantissa bits.
///
/// `smallest` is the smallest normal value of the format, a power of two. Adding 2^(23 - MAN) units of `a`'s binade leaves exactly the
/// wanted mantissa bits in the low bits of the sum, rounded to nearest, ties to even, by the one rounding of the addition.
#[inline(always)]
pub(super) fn encode<const MAN: u32>(a: f32, smallest: f32) -> u8 {
    let binade = f32::from_bits(a.max(smallest).to_bits() & EXPONENT);
    let magic = binade * (1u32 << (23 - MAN)) as f32;
    let units = (a + magic).to_bits() - magic.to_bits();
    // Binades above the smallest normal one, each worth 2^MAN codes; a carry out of the mantissa is the next binade by itself.
    let above = (binade.to_bits() - smallest.to_bits()) >> 23;
    ((above << MAN) + units) as u8
}

/// The value nearest to the magnitude `a`, as [`encode`] then decoding would give.
#[inline(always)]
pub(super) fn round<const MAN: u32>(a: f32, smallest: f32) -> f32 {
    let binade = f32::from_bits(a.max(smallest).to_bits() & EXPONENT);
    let magic = binade * (1u32 << (23 - MAN)) as f32;
    (a + magic) - magic
}

/// Value of a code without its sign, special codes not considered.
pub(super) const fn magnitude(code: u32, man: u32, bias: i32) -> f32 {
    let (exponent, mantissa) = ((code >> man) as i32, code & ((1 << man) - 1));
    if exponent == 0 {
        // mantissa * 2^(1 - bias - man), by way of an exact product.
        return mantissa as f32 * power(1 - bias - man as i32);
    }
    (mantissa + (1 << man)) as f32 * power(exponent - bias - man as i32)
}

/// 2^e for a normal single-precision exponent.
pub(super) const fn power(e: i32) -> f32 {
    f32::from_bits(((e + 127) as u32) << 23)
}
