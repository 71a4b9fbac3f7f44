// A chunk of a row of B into its place in the 16-bit ring; scale words into multipliers.
#pragma once
#include "grouped_gemm/sm90/params.cuh"

namespace fg {

// Byte by byte: 4 (s - most + FIELD_MAX), 0 for s = 0: what `multiplier` takes for E8M0. `prep` saw to it that no other byte leaves 1 .. FIELD_MAX.
FG_DEV u32 exponent_fields(u32 scales, i32 most) {
  const u32 bias = (u32)(FIELD_MAX - most) * ONES, zero = (u32)(most - FIELD_MAX) * ONES;
  const u32 set = (((scales & 0x7f7f7f7fu) + 0x7f7f7f7fu) | scales) & 0x80808080u, mask = (set >> 7) * 255u;
  return (((scales & mask) | (zero & ~mask)) + bias) * 4u;
}

// One chunk of a row of B, 16 bytes: two words a unit of 16 bytes of the 16-bit row; 16 fp8 make units 0 and 1, 32 E2M1 all four.
template <bool WIDE_LOOP> FG_DEV void expand_words(const u32 (&v)[4], const u32 (&sf)[SF_WORDS], i32 most, int chunk, u32 (&unit)[4][4]) {
#pragma unroll
  for (int x = 0; x < 4; x++) {
    // The block of word x within 128 k.
    const int block = IN != IN_E2M1 ? chunk / 2 : SF_VEC == 16 ? 2 * chunk + x / 2 : chunk;
    u32 first = v[x], second = 0;
    if (IN == IN_E2M1) nibbles(v[x], first, second);
    if (WIDE_LOOP) {
      const float m = wide_multiplier(sf[block / 4], block % 4, most);
      dequant_wide(first, m, unit[0][x], unit[1][x]);
      if (IN == IN_E2M1) dequant_wide(second, m, unit[2][x], unit[3][x]);
    } else {
      const u32 m = multiplier(sf[block / 4], block % 4);
      dequant(first, m, unit[0][x], unit[1][x]);
      if (IN == IN_E2M1) dequant(second, m, unit[2][x], unit[3][x]);
    }
  }
}
// The same into its place; `at` counts units of the row.
template <bool WIDE_LOOP> FG_DEV void expand(const u32 (&v)[4], const u32 (&sf)[SF_WORDS], i32 most, int chunk, u32 to, u32 dst_x, u32 at) {
  u32 unit[4][4];
  expand_words<WIDE_LOOP>(v, sf, most, chunk, unit);
#pragma unroll
  for (int i = 0; i < (IN == IN_E2M1 ? 4 : 2); i++) sts_v4(to + (((at + i) ^ dst_x) << 4), unit[i][0], unit[i][1], unit[i][2], unit[i][3]);
}

}  // namespace fg
