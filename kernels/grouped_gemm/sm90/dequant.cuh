// fp8 words -> 16-bit pairs with the block scale applied.
//
// fp8: a word holds k = 4t .. 4t+3 of a 16-element chunk. Its low pair goes to k positions 2t, 2t+1 of the chunk's k16 step, its high pair to 2t+8, 2t+9: exactly the
// fragment that one 32-bit ldmatrix word can feed. E2M1: a word holds k = 8t .. 8t+7 of a
// 32-element chunk; even nibbles go to the first k16 step of the chunk, odd ones to the second. Both operands use the same order of k, so the sum is the same.
#pragma once
#include "grouped_gemm/sm90/config.cuh"

namespace fg {

FG_DEV u32 prmt(u32 a, u32 b, u32 sel) {
  u32 r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(sel));
  return r;
}
FG_DEV u32 mul_f16x2(u32 a, u32 b) {
  u32 r;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
// Eight E2M1 (nibble i: k = 8t + i) -> E4M3 bytes of 2^-6 of their values: nibbles 0, 2, 4, 6 and 1, 3, 5, 7.
FG_DEV void nibbles(u32 w, u32& even, u32& odd) {
  // x = 8 s + m in each byte: 4 x + 0x60 carries into bit 7 exactly where s is set. In asm: as an expression it becomes a shift more.
  u32 x;
  asm("{\n\t.reg .u32 t;\n\tand.b32 t, %1, 0x0f0f0f0f;\n\tmad.lo.u32 %0, t, 4, 0x60606060;\n\t}" : "=r"(x) : "r"(w));
  even = x & 0x9c9c9c9cu;
  odd = (w & 0x80808080u) | ((w >> 2) & 0x1c1c1c1cu);
}
// Four fp8 -> two f16 pairs, exact.
FG_DEV void widen(u32 w, u32& lo, u32& hi) {
  if (IN == IN_E5M2)
    asm("{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, %2;\n\tcvt.rn.f16x2.e5m2x2 %0, l;\n\tcvt.rn.f16x2.e5m2x2 %1, h;\n\t}" : "=r"(lo), "=r"(hi) : "r"(w));
  else
    asm("{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, %2;\n\tcvt.rn.f16x2.e4m3x2 %0, l;\n\tcvt.rn.f16x2.e4m3x2 %1, h;\n\t}" : "=r"(lo), "=r"(hi) : "r"(w));
}

// Fast loop: the f16 multiplier in both halves. E8M0: `scales` holds four exponent fields, each times 4. E4M3: the scales themselves.
FG_DEV u32 multiplier(u32 scales, u32 byte) {
  if (!SF_E4M3) return prmt(scales, 0, 0x0404 + byte * 0x1010);
  u32 r;
  asm("{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, %1;\n\tcvt.rn.f16x2.e4m3x2 %0, l;\n\t}" : "=r"(r) : "r"(prmt(scales, 0, byte * 0x11)));
  return r;
}
FG_DEV void dequant(u32 w, u32 mult, u32& lo, u32& hi) {
  widen(w, lo, hi);
  lo = mul_f16x2(lo, mult);
  hi = mul_f16x2(hi, mult);
}
// Two E4M3 scales (the low bytes of `two`) -> two f16.
FG_DEV u32 scale_pair(u32 two) {
  u32 r;
  asm("{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, %1;\n\tcvt.rn.f16x2.e4m3x2 %0, l;\n\t}" : "=r"(r) : "r"(two));
  return r;
}
// One of them in both halves: an operand modifier of the multiplication, no instruction.
FG_DEV u32 both(u32 pair, int which) {
  u32 r;
  if (which)
    asm("{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, %1;\n\tmov.b32 %0, {h, h};\n\t}" : "=r"(r) : "r"(pair));
  else
    asm("{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, %1;\n\tmov.b32 %0, {l, l};\n\t}" : "=r"(r) : "r"(pair));
  return r;
}

// Wide loop: multiplier 2^(s - max + WIDE) as fp32 from the raw scale byte; zero where even fp32 has no such power.
FG_DEV float wide_multiplier(u32 scales, i32 q, i32 most) {
  const i32 e = (i32)((scales >> (8 * q)) & 255) - most + WIDE + 127 - PAYLOAD;
  return f32_bits((u32)max2(e, 0) << 23);
}
FG_DEV u32 wide_pair(u32 h, float mult) {
  float x, y;
  asm("{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, %2;\n\tcvt.f32.f16 %0, l;\n\tcvt.f32.f16 %1, h;\n\t}" : "=f"(x), "=f"(y) : "r"(h));
  return pack2<1>(x * mult, y * mult);
}
FG_DEV void dequant_wide(u32 w, float mult, u32& lo, u32& hi) {
  u32 a, b;
  widen(w, a, b);
  lo = wide_pair(a, mult);
  hi = wide_pair(b, mult);
}

// Back again. Fast loop: 2^(row + column - 254 - 2 SHIFT). The exponents of a fast tile keep it normal unless one is 0: then nothing was added up.
FG_DEV float power_back(i32 row, i32 top) {
  if (SF_E4M3) return (float)(1 << (-2 * PAYLOAD));
  return row == 255 ? f32_bits(0x7fc00000u) : f32_bits((u32)max2(row + top - 127 - 2 * SHIFT, 1) << 23);
}
// Wide loop: times 2^(row + column - 254 - 2 WIDE) in two halves: neither leaves fp32 when the product does not.
FG_DEV void wide_power_back(float& d, i32 row, i32 col) {
  const i32 e = max2(row + col - 254 - 2 * WIDE, -250), half = e >> 1;
  const bool bad = row == 255 || col == 255;
  const float f1 = bad ? f32_bits(0x7fc00000u) : f32_bits((u32)(half + 127) << 23), f2 = f32_bits((u32)(e - half + 127) << 23);
  d = d * f1 * f2;
}

// Scale byte of a lane's part of chunk q (32 k) in a row of A, and which of a thread's scale words holds it.
FG_DEV u32 scale_byte_of(u32 lane, int q) { return SF_VEC == 16 ? 2 * (q & 1) + ((lane >> 1) & 1) : q; }
FG_DEV constexpr int scale_word_of(int row, int q) { return SF_VEC == 16 ? 2 * row + q / 2 : row; }

}  // namespace fg
