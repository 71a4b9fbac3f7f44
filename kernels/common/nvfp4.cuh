// NVFP4 fake-quantisation of blocks of 16 values: to E2M1 with one E4M3 scale and straight back. Bit for bit what `engines/codec/nvfp4.rs`
// computes, on any sm_89 or later, without the E2M1 conversion that only Blackwell has.
//
//   s = e4m3(max(amax / 6, 2^-9));  y = bf16(e2m1(x / s) * s)        both divisions rounded to nearest, E2M1 ties to even, saturating
//
// The product has at most 6 significant bits, so bf16 holds it exactly and the rounding to bf16 may happen anywhere.
// NaN does not count towards amax and becomes +6 s; +-Inf makes s 448 and becomes +-2688; zeros, and what rounds to zero, keep their sign.
//
// Costs per value: 3 instructions where the scale is known to be the floor, 7 in general (plus, per block, about 12 for the scale).
#pragma once
#include "common/ptx.cuh"

namespace fg {

constexpr float FP4_FLOOR = 0x1p-9f;               // least scale
constexpr float FP4_FLOOR_AMAX = 6.f * FP4_FLOOR;  // a block whose amax is at most this has the floor as its scale, and needs no saturation

// Rounds x in [0, 7 UNIT) to the nearest of UNIT * {0, 0.5, 1, 1.5, 2, 3, 4, 6}, ties to even; UNIT a power of two.
// Taking x from c = 2^22 m leaves one mantissa bit of x's binade (not below UNIT's), and the one rounding of that subtraction is E2M1's.
// c needs no clearing of its mantissa: where x is a tie it has few bits, so c is even in its last place, as ties-to-even wants it; and
// where c - x falls into the binade below, x is within two ulp above a power of two and the finer rounding finds that power as well.
// 1.25 UNIT rather than UNIT keeps the clamped c away from there. Checked over every fp32 of the domain.
FG_DEV float fp4_grid(float x, float unit) {
  const float m = fmaxf(x, 1.25f * unit);
  return fmaf(m, 0x1p22f, -fmaf(m, 0x1p22f, -x));
}

// A block with amax <= FP4_FLOOR_AMAX: quotient, rounding and product in one, because the scale is a power of two. x >= 0.
FG_DEV float fp4_fake_floor(float x) { return fp4_grid(x, FP4_FLOOR); }

// Scale and its reciprocal in two parts: r + lo = 1/s to 2^-46. With it a quotient costs two instructions instead of div.rn's ten:
// RN(x r + RN(x lo)) may differ from RN(x / s) in the last bit, but never on or across a midpoint of E2M1. On one it is exact; beside one,
// the next x moves the quotient by at least 0.53 ulp, because s has four significant bits. (x * RN(1/s) alone does miss midpoints.)
struct Fp4Scale {
  float s, r, lo;
};
FG_DEV Fp4Scale fp4_reciprocal(float s) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(s));
  return {s, r, fmaf(-s, r, 1.f) * r};
}

// div.rn(amax, 6) clamped to [2^-9, 682.67]: the clamp from above keeps Inf out of the correction and is far beyond E4M3's 448.
FG_DEV float fp4_sixth(float amax) {
  const float v = fminf(fmaxf(amax, FP4_FLOOR_AMAX), 4096.f), q = v * (1.f / 6.f);
  return fmaf(fmaf(-6.f, q, v), 1.f / 6.f, q);
}
// Scales of two blocks: the conversions work on pairs. A negative or NaN amax gives the floor.
FG_DEV void fp4_scales(float amax0, float amax1, Fp4Scale& s0, Fp4Scale& s1) {
  float f0, f1;
  asm("{\n\t.reg .b16 p, h0, h1;\n\t.reg .b32 h;\n\t"
      "cvt.rn.satfinite.e4m3x2.f32 p, %3, %2;\n\t"
      "cvt.rn.f16x2.e4m3x2 h, p;\n\t"
      "mov.b32 {h0, h1}, h;\n\t"
      "cvt.f32.f16 %0, h0;\n\t"
      "cvt.f32.f16 %1, h1;\n\t}"
      : "=f"(f0), "=f"(f1)
      : "f"(fp4_sixth(amax0)), "f"(fp4_sixth(amax1)));
  s0 = fp4_reciprocal(f0);
  s1 = fp4_reciprocal(f1);
}
FG_DEV Fp4Scale fp4_scale(float amax) {
  Fp4Scale a, b;
  fp4_scales(amax, amax, a, b);
  return a;
}

// Any block, x >= 0 (Inf and NaN saturate). Verified against division: every bf16 with all 126 scales, every midpoint +- 64 ulp, with the
// hardware's reciprocal off by up to 2 ulp; fp4_fake_floor below 7 * 2^-9 and fp4_sixth over every fp32 of their domains.
FG_DEV float fp4_fake(float x, const Fp4Scale& k) {
  // For x = Inf the sum is NaN, whatever the sign of lo; the minimum turns that into 6 as well.
  return fp4_grid(fminf(fmaf(x, k.r, x * k.lo), 6.f), 1.f) * k.s;
}

// ---- packed bf16, either sign ------------------------------------------------------------------------------------------
FG_DEV u32 bf16x2_max(u32 a, u32 b) {  // a NaN gives way to the other operand
  u32 r;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
FG_DEV u32 bf16x2_min(u32 a, u32 b) {
  u32 r;
  asm("min.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
FG_DEV u32 bf16x2_abs(u32 x) { return x & 0x7fff7fffu; }
// Largest magnitude of N pairs, as fp32; 0 if all are NaN.
template <int N> FG_DEV float bf16x2_amax(const u32 (&x)[N]) {
  u32 m = 0;
#pragma unroll
  for (int i = 0; i < N; i++) m = bf16x2_max(m, bf16x2_abs(x[i]));
  return fmaxf(f32_bits(m << 16), f32_bits(m & 0xffff0000u));
}
// Fake-quantises a pair that shares a block.
FG_DEV u32 fp4_fake_bf16x2(u32 x, const Fp4Scale& k) {
  x = bf16x2_min(x, 0x7f807f80u);  // NaN -> +Inf, which saturates to +6 s
  const u32 a = bf16x2_abs(x);
  return pack2<1>(fp4_fake(f32_bits(a << 16), k), fp4_fake(f32_bits(a & 0xffff0000u), k)) | (x & 0x80008000u);
}

}  // namespace fg
