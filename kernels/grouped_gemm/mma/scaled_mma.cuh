// One block-scaled product of 16 x 8 accumulators: 32 bytes of k of 16 rows of A and 8 columns of B, each with its scales.
//
// A and B stand in registers as `mma.m16n8k32` of 8-bit types (`m16n8k64` of 4-bit ones) wants them: lane 4 g + t holds bytes 4 t .. of row g (a[0]), row g + 8
// (a[1]), the same 16 bytes further on (a[2], a[3]), and of column g (b[0], b[1]). Scales come as words of four consecutive blocks of k: `sa` of row g + 8 (t % 2),
// `sb` of column g, in every lane of the quad, so that no lane selector of the instruction matters.
//
// FG_HARDWARE = 1: the instruction of compute capability 12 applies the scales. 0: the same registers are widened to f16 and multiplied by m16n8k16. Every
// element of the three types is exact in f16 and so is an E2M1 times an E4M3 scale; E8M0 scales multiply the sum of a block in fp32.
#pragma once
#include "common/ptx.cuh"

namespace fg {

constexpr int KIND_E4M3 = 0, KIND_E5M2 = 1, KIND_E2M1 = 2;

// ---- f16 --------------------------------------------------------------------------------------------------------------

template <int KIND> FG_DEV u32 widen_pair(u16 two) {
  u32 r;
  if (KIND == KIND_E4M3)
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(two));
  else
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(r) : "h"(two));
  return r;
}
FG_DEV u32 times_f16x2(u32 a, u32 b) {
  u32 r;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
// Eight E2M1 -> f16. Pair i holds nibbles i and i + 4: A and B permute k alike, so the order inside a word is free. Sign, exponent and mantissa land on f16's: 2^-14 of
// the value, subnormals included.
FG_DEV void widen_nibbles(u32 w, u32 (&h)[4]) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const u32 x = w >> (4 * i);
    h[i] = times_f16x2((x & 0x00080008u) << 12 | (x & 0x00070007u) << 9, 0x74007400u);
  }
}

// d += t * 2^(ea + eb - 254), in two factors: neither leaves fp32 when the product does not. Byte 255 is NaN.
FG_DEV void add_scaled(float& d, float t, u32 ea, u32 eb) {
  const i32 e = (i32)(ea + eb) - 254, half = e >> 1;
  const float f = ea == 255 || eb == 255 ? f32_bits(0x7fc00000u) : f32_bits((u32)(half + 127) << 23);
  d += t * f * f32_bits(half == e - half ? (u32)(half + 127) << 23 : (u32)(half + 128) << 23);
}

FG_DEV u32 byte_of(u32 word, u32 byte) { return (word >> (8 * byte)) & 255u; }
FG_DEV u32 e4m3_twice(u32 byte) { return widen_pair<KIND_E4M3>((u16)(byte | byte << 8)); }

// By f16. BYTE: first block of the scale words that belongs to these 32 bytes. The PART-th of PARTS pieces of the 32 bytes.
template <int KIND, int E4M3_SCALES, int BYTE, int PART> struct Dequantised {
  // Without fences the scheduler loads and widens half of B ahead, and spills; slabs and parts are what fits beside the accumulators.
  static constexpr bool FENCED = true;
  static constexpr int SLABS = E4M3_SCALES ? 2 : 1, PARTS = KIND == KIND_E2M1 && !E4M3_SCALES ? 2 : 1;
  static constexpr int PAIRS = KIND == KIND_E2M1 ? 4 : 2;  // pairs of values in a word
  static constexpr int HALVES = 2 / PARTS;  // 16 bytes of k each: two words of A, one of B
  struct A {
    u32 x[HALVES][2][PAIRS], row[2];  // rows g and g + 8 with their scale words
  };
  struct B {
    u32 x[HALVES][PAIRS], col[2];  // scale words of columns 2 t and 2 t + 1
  };

  static FG_DEV void widen(u32 w, u32 (&x)[PAIRS]) {
    if constexpr (KIND == KIND_E2M1) {
      widen_nibbles(w, x);
    } else {
      x[0] = widen_pair<KIND>((u16)w);
      x[1] = widen_pair<KIND>((u16)(w >> 16));
    }
  }
  static FG_DEV void scale(u32 (&x)[PAIRS], u32 word, int half) {
    // Eight values a lane: its block of 16 is the first of 32 in lanes t = 0, 1 and the second in the others.
    const u32 f = e4m3_twice(byte_of(word, 2 * half + ((lane_id() >> 1) & 1)));
#pragma unroll
    for (int i = 0; i < PAIRS; i++) x[i] = times_f16x2(x[i], f);
  }

  static FG_DEV A prepare_a(const u32 (&raw)[4], u32 sa) {
    const u32 quad = lane_id() & ~3u;
    A a;
    a.row[0] = __shfl_sync(~0u, sa, quad);
    a.row[1] = __shfl_sync(~0u, sa, quad + 1);
#pragma unroll
    for (int h = 0; h < HALVES; h++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        widen(raw[2 * (PART + h) + r], a.x[h][r]);
        if (E4M3_SCALES) scale(a.x[h][r], a.row[r], h);
      }
    return a;
  }
  static FG_DEV B prepare_b(const u32 (&raw)[2], u32 sb) {
    const u32 from = (lane_id() & 3) * 8;
    B b;
    if constexpr (!E4M3_SCALES) {
      b.col[0] = __shfl_sync(~0u, sb, from);
      b.col[1] = __shfl_sync(~0u, sb, from + 4);
    }
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
      widen(raw[PART + h], b.x[h]);
      if (E4M3_SCALES) scale(b.x[h], sb, h);
    }
    return b;
  }

  // One m16n8k16 for each two pairs of values.
  static FG_DEV void words(float (&d)[4], const A& a, const B& b, int h) {
#pragma unroll
    for (int i = 0; i < PAIRS; i += 2) {
      const u32 fa[4] = {a.x[h][0][i], a.x[h][1][i], a.x[h][0][i + 1], a.x[h][1][i + 1]};
      const u32 fb[2] = {b.x[h][i], b.x[h][i + 1]};
      mma_16816<0>(d, fa, fb, d[0], d[1], d[2], d[3]);
    }
  }
  static FG_DEV void promote(float (&d)[4], const float (&t)[4], const A& a, const B& b, int byte) {
#pragma unroll
    for (int i = 0; i < 4; i++) add_scaled(d[i], t[i], byte_of(a.row[i / 2], byte), byte_of(b.col[i % 2], byte));
  }

  static FG_DEV void multiply(float (&d)[4], const A& a, const B& b) {
    if constexpr (E4M3_SCALES) {
      words(d, a, b, 0);
      words(d, a, b, 1);
    } else {
      float t[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
      for (int h = 0; h < HALVES; h++) words(t, a, b, h);
      promote(d, t, a, b, BYTE + PART);
    }
  }
};

#define FG_BLOCK_SCALED(SHAPE, TYPE, SCALE)                                                                                                                                                 \
  asm("mma.sync.aligned." SHAPE ".row.col.f32." TYPE "." TYPE ".f32." SCALE " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, {%10}, {%11, %12}, {%13}, {%11, %12};"        \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                                                                                                      \
      : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[0]), "r"(b.x[1]), "r"(a.scale), "n"(BYTE), "n"(0), "r"(b.scale))

// By the instruction of compute capability 12.
template <int KIND, int E4M3_SCALES, int BYTE> struct Hardware {
  static constexpr bool FENCED = false;
  static constexpr int SLABS = 2, PARTS = 1;
  struct A {
    u32 x[4], scale;
  };
  struct B {
    u32 x[2], scale;
  };
  static FG_DEV A prepare_a(const u32 (&raw)[4], u32 sa) { return {{raw[0], raw[1], raw[2], raw[3]}, sa}; }
  static FG_DEV B prepare_b(const u32 (&raw)[2], u32 sb) { return {{raw[0], raw[1]}, sb}; }
#if FG_HARDWARE
  static FG_DEV void multiply(float (&d)[4], const A& a, const B& b) {
    if constexpr (KIND == KIND_E4M3)
      FG_BLOCK_SCALED("kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32", "e4m3", "ue8m0");
    else if constexpr (KIND == KIND_E5M2)
      FG_BLOCK_SCALED("kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32", "e5m2", "ue8m0");
    else if constexpr (E4M3_SCALES)
      FG_BLOCK_SCALED("kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64", "e2m1", "ue4m3");
    else
      FG_BLOCK_SCALED("kind::mxf4nvf4.block_scale.scale_vec::2X.m16n8k64", "e2m1", "ue8m0");
  }
#endif
};

template <bool HARDWARE, int KIND, int E4M3_SCALES, int BYTE, int PART> struct Select {
  using Type = Dequantised<KIND, E4M3_SCALES, BYTE, PART>;
};
template <int KIND, int E4M3_SCALES, int BYTE, int PART> struct Select<true, KIND, E4M3_SCALES, BYTE, PART> {
  using Type = Hardware<KIND, E4M3_SCALES, BYTE>;
};
template <int KIND, int E4M3_SCALES, int BYTE, int PART = 0> using ScaledProduct = typename Select<FG_HARDWARE, KIND, E4M3_SCALES, BYTE, PART>::Type;

}  // namespace fg
