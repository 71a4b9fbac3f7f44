// A chunk of a row of B into its place in the 16-bit ring; scale words into multipliers.
#pragma once
#include "grouped_gemm/sm90/main_config.cuh"

namespace fg {

// Byte by byte: 4 (s - most + FIELD_MAX), 0 for s = 0: what `multiplier` takes for E8M0. `prep` saw to it that no other byte leaves 1 .. FIELD_MAX.
FG_DEV u32 exponent_fields(u32 scales, i32 most) {
  const u32 bias = (u32)(FIELD_MAX - most) * ONES, zero = (u32)(most - FIELD_MAX) * ONES;
  const u32 set = (((scales & 0x7f7f7f7fu) + 0x7f7f7f7fu) | scales) & 0x80808080u, mask = (set >> 7) * 255u;
  return (((scales & mask) | (zero & ~mask)) + bias) * 4u;
}

// One chunk of a row of B (16 bytes: 16 fp8 or 32 E2M1) into its place in the 16-bit row; `at` counts 16-byte units, two for each 16 k.
template <bool WIDE_LOOP> FG_DEV void expand(const u32 (&v)[4], const u32 (&sf)[SF_WORDS], i32 most, int chunk, u32 to, u32 dst_x, u32 at) {
  u32 lo[4], hi[4], lo2[4], hi2[4];
#pragma unroll
  for (int x = 0; x < 4; x++) {
    // The block of word x within 128 k.
    const int block = IN != IN_E2M1 ? chunk / 2 : SF_VEC == 16 ? 2 * chunk + x / 2 : chunk;
    u32 first = v[x], second = 0;
    if (IN == IN_E2M1) nibbles(v[x], first, second);
    if (WIDE_LOOP) {
      const float m = wide_multiplier(sf[block / 4], block % 4, most);
      dequant_wide(first, m, lo[x], hi[x]);
      if (IN == IN_E2M1) dequant_wide(second, m, lo2[x], hi2[x]);
    } else {
      const u32 m = multiplier(sf[block / 4], block % 4);
      dequant(first, m, lo[x], hi[x]);
      if (IN == IN_E2M1) dequant(second, m, lo2[x], hi2[x]);
    }
  }
  sts_v4(to + ((at ^ dst_x) << 4), lo[0], lo[1], lo[2], lo[3]);
  sts_v4(to + (((at + 1) ^ dst_x) << 4), hi[0], hi[1], hi[2], hi[3]);
  if (IN == IN_E2M1) {
    sts_v4(to + (((at + 2) ^ dst_x) << 4), lo2[0], lo2[1], lo2[2], lo2[3]);
    sts_v4(to + (((at + 3) ^ dst_x) << 4), hi2[0], hi2[1], hi2[2], hi2[3]);
  }
}

}  // namespace fg
