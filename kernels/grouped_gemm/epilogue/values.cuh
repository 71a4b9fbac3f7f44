// Arithmetic of one value: C's types, the activation, block scales, packing.
#pragma once
#include "grouped_gemm/epilogue/config.cuh"

namespace fg {

FG_DEV float max_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
// max(a, |b|) in one piece: as two expressions the compiler keeps |b| beside b, a second set of accumulators.
FG_DEV float max_abs_nan(float a, float b) {
  float r;
  asm("{\n\t.reg .f32 t;\n\tabs.f32 t, %2;\n\tmax.NaN.f32 %0, %1, t;\n\t}" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
FG_DEV float max_abs(float a, float b) {
  if (!D_FP8) return max_abs_nan(a, b);  // the largest of an expert keeps NaN
  float r;                               // a block's scale ignores it
  asm("{\n\t.reg .f32 t;\n\tabs.f32 t, %2;\n\tmax.f32 %0, %1, t;\n\t}" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

// One value of C from a 16-byte unit.
FG_DEV float c_value(const u32 (&w)[4], int i) {  // i: a constant once unrolled
  if (C_TYPE == T_F32) return f32_bits(w[i % 4]);
  if (C_TYPE == T_BF16) return i & 1 ? f32_bits(w[i / 2 % 4] & 0xffff0000u) : f32_bits(w[i / 2 % 4] << 16);
  if (C_TYPE == T_F16) return unpack1<0>((u16)(w[i / 2 % 4] >> (16 * (i & 1))));
  u32 pair;
  const u16 two = (u16)(w[i / 4 % 4] >> (16 * (i / 2 % 2)));
  if (C_TYPE == T_E4M3)
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(two));
  else
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(pair) : "h"(two));
  return unpack1<0>((u16)(pair >> (16 * (i & 1))));
}

// Four values -> four fp8 bytes, saturating, NaN kept.
FG_DEV u32 pack4(float a, float b, float c, float d) {
  u32 r;
  if (D_TYPE == T_E5M2)
    asm("{\n\t.reg .b16 l, h;\n\tcvt.rn.satfinite.e5m2x2.f32 l, %2, %1;\n\tcvt.rn.satfinite.e5m2x2.f32 h, %4, %3;\n\tmov.b32 %0, {l, h};\n\t}" : "=r"(r) : "f"(a), "f"(b), "f"(c), "f"(d));
  else
    asm("{\n\t.reg .b16 l, h;\n\tcvt.rn.satfinite.e4m3x2.f32 l, %2, %1;\n\tcvt.rn.satfinite.e4m3x2.f32 h, %4, %3;\n\tmov.b32 %0, {l, h};\n\t}" : "=r"(r) : "f"(a), "f"(b), "f"(c), "f"(d));
  return r;
}

// E8M0 of a block's largest magnitude: amax / largest element * norm, rounded up; NaN only from the norm. And the factor that goes with it.
FG_DEV u32 scale_byte(float amax, float norm) {
  const float s = amax * (D_TYPE == T_E5M2 ? 1.f / 128.f : 1.f / 448.f) * norm;
  const u32 bits = __float_as_uint(s) & 0x7fffffffu;
  if (bits > 0x7f800000u) return 255u;
  if (bits <= 0x00400000u) return 0u;  // 2^-127 is the smallest scale
  return min2((bits + 0x7fffffu) >> 23, 254u);
}
FG_DEV float scale_inverse(u32 byte, float norm) {
  if (byte == 255u) return 3.402823466e38f;
  const float r = byte == 254u ? f32_bits(0x00400000u) : f32_bits((254u - byte) << 23);  // 2^(127 - byte)
  const float f = norm * r;
  return f < 3.402823466e38f ? f : 3.402823466e38f;
}

// relu, or its soft clamp b = s tanh(relu / s) with the chain factor 1 - tanh^2.
FG_DEV float activate(float x, float clamp, float inv_clamp, float& chain) {
  const float r = max_nan(x, 0.f);
  chain = 1.f;
  if (!FG_CLAMP) return r;
  const float z = r * inv_clamp, z2 = z * z;
  const float e = ex2(-2.885390082f * z);
  float quotient;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(quotient) : "f"(1.f + e));
  const float large = (1.f - e) * quotient;
  const float small = z * (1.f - z2 * (0.33333333f - z2 * (0.13333333f - z2 * 0.05396825f)));
  const float t = z < 0.25f ? small : large;
  chain = 1.f - t * t;
  return clamp * t;
}

}  // namespace fg
