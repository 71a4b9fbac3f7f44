// What feeds dV in the NVFP4 backward: P fake-quantised in blocks of 16 consecutive keys. dS keeps P itself (straight-through).
//
// A block is one row of one 16x16 slab of the score tile: four lanes with four values each, so its maximum takes two shuffles. Slabs start
// at keys that are multiples of 16 from the sequence's first key, as the blocks do. Masked scores are exact zeros by now and count as such.
//
// Nearly every block of a softmax row has the floor as its scale (P <= 6 * 2^-9: 97.9 % at 1k keys, 99.99 % at 4k, N(0,1) scores). So
// `put`, which runs between the MMAs of GEMM2, takes that for granted; `finish` looks once per tile whether it was right and otherwise
// redoes the slabs where it was not. No branch stands between the MMAs, and no shuffle on the common path.
#pragma once
#include "common/nvfp4.cuh"
#include "sdpa/bwd/mma/main_ops.cuh"

namespace fg {

struct FakeP {
  static constexpr bool CHAIN_INPUTS = true;  // Q, K, V are the copies that `prep` has just written
  u32 top = 0;                                // largest result so far, packed bf16

  FG_DEV void put(u32 base, int i, int j, const float (&lo)[4], const float (&hi)[4]) {
    static_assert(BF16, "the copies and dO are bf16");
    float a[4], b[4];
#pragma unroll
    for (int e = 0; e < 4; e++) a[e] = fp4_fake_floor(lo[e]), b[e] = fp4_fake_floor(hi[e]);
#pragma unroll
    for (int e = 0; e < 4; e += 2) top = bf16x2_max(top, bf16x2_max(pack2<1>(a[e], a[e + 1]), pack2<1>(b[e], b[e + 1])));
    StashS::put<1>(base, i, j, a, b);
  }

  // Right wherever the results stay within the grid: P below 7 * 2^-9 rounds to at most 6 * 2^-9, what saturation would give, and an amax
  // below 7 * 2^-9 has the floor as its scale. From there on the first step above the grid is 8 * 2^-9.
  FG_DEV void finish(u32 base, const float (&s)[S_MT][S_NT][4]) {
    constexpr u32 LIMIT = 0x3c403c40u;  // 6 * 2^-9, twice
    if (__all_sync(0xffffffffu, bf16x2_max(top, LIMIT) == LIMIT)) return;
#pragma unroll
    for (int i = 0; i < S_MT; i++)
#pragma unroll
      for (int j = 0; j < S_NT; j += 2) {
        const float(&lo)[4] = s[i][j], (&hi)[4] = s[i][j + 1];
        float m0 = fmaxf(fmaxf(lo[0], lo[1]), fmaxf(hi[0], hi[1])), m1 = fmaxf(fmaxf(lo[2], lo[3]), fmaxf(hi[2], hi[3]));
        if (__all_sync(0xffffffffu, fmaxf(m0, m1) <= FP4_FLOOR_AMAX)) continue;
#pragma unroll
        for (int x = 1; x < 4; x *= 2) {
          m0 = fmaxf(m0, __shfl_xor_sync(0xffffffffu, m0, x));
          m1 = fmaxf(m1, __shfl_xor_sync(0xffffffffu, m1, x));
        }
        Fp4Scale k[2];
        fp4_scales(m0, m1, k[0], k[1]);
        float a[4], b[4];
#pragma unroll
        for (int e = 0; e < 4; e++) a[e] = fp4_fake(lo[e], k[e >> 1]), b[e] = fp4_fake(hi[e], k[e >> 1]);
        StashS::put<1>(base, i, j / 2, a, b);
      }
  }
};

}  // namespace fg
#define FG_P_SINK fg::FakeP
