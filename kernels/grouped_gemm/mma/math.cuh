// One stage's products.
#pragma once
#include "grouped_gemm/mma/load.cuh"
#include "grouped_gemm/mma/scaled_mma.cuh"

namespace fg {

// Where a lane reads: byte offsets in a stage. Warp w owns rows 32 w .. + 31, slab b 16 of them.
struct Lane {
  u32 a, b;      // ldmatrix rows: slab 0; products 0 and 1; first 32 bytes of k. The swizzles turn the other half of k and every other pair of products into XORs of bit 5.
  u32 sfa, sfb;  // first scale words
};
FG_DEV Lane lane_of(u32 warp, u32 lane) {
  const u32 g = lane >> 2, t = lane & 3;
  Lane l;
  l.a = STAGE_A + unit_a(32 * warp + (lane & 15), lane >> 4);
  // Column c of product j is column 32 (c / 2) + 2 j + c % 2 of the tile: lane 4 g + t then holds 32 consecutive columns, 32 t .. 32 t + 31.
  l.b = STAGE_B + unit_b(32 * ((lane & 7) >> 1) + (lane & 1) + 2 * (lane >> 4), (lane >> 3) & 1);
  const u32 row = 32 * warp + g + 8 * (t & 1);
  l.sfa = STAGE_SF + (row >> 7) * ATOMS * 512 + (row & 31) * 16 + ((row >> 5) & 3) * 4;
  l.sfb = STAGE_SF + 2 * ATOMS * 512 + (g & 1) * 16 + (g >> 1) * 4;
  return l;
}

// The word of four scales, with what lies behind the last block of k cleared: an atom's padding may hold anything, NaN too.
FG_DEV u32 scale_word(u32 at, i32 atom, i32 blocks) {
  u32 w;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(w) : "r"(at));
  const i32 left = blocks - 4 * atom;
  return left >= 4 ? w : left <= 0 ? 0u : w & ((1u << (8 * left)) - 1u);
}

// 32 bytes of k, the K-th of the stage, slabs FIRST on, the PART-th part. BYTE: first of their blocks in the scale words.
template <int K, int BYTE, int FIRST, int PART> FG_DEV void slab_products(float (&d0)[64], float (&d1)[64], const Lane& l, u32 at, i32 step, i32 blocks) {
  using P = ScaledProduct<IN, SF_E4M3, BYTE, PART>;
  constexpr int SLABS = P::SLABS;
  constexpr u32 OFF = ATOMS == 2 ? K : 0;
  const i32 atom = step * (i32)ROW_BLOCKS / 4 + (i32)OFF;
  typename P::A a[SLABS];
#pragma unroll
  for (int b = 0; b < SLABS; b++) {
    u32 raw[4];
    ldsm4(at + (l.a ^ (32 * K)) + 16 * ROW * (FIRST + b), raw[0], raw[1], raw[2], raw[3]);
    a[b] = P::prepare_a(raw, scale_word(at + l.sfa + 512 * OFF + 256 * (FIRST + b), atom, blocks));
  }
#pragma unroll
  for (int j = 0; j < 16; j += 2) {
    u32 raw[2][2];
    ldsm4(at + (l.b ^ (32 * (K ^ (j >> 1 & 1)))) + ROW * 2 * j, raw[0][0], raw[0][1], raw[1][0], raw[1][1]);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if (P::FENCED) __syncwarp();  // keeps the loads of later products, and with them their widened words, behind this one
      const typename P::B b = P::prepare_b(raw[i], scale_word(at + l.sfb + 512 * OFF + 32 * (j + i), atom, blocks));
#pragma unroll
      for (int s = 0; s < SLABS; s++) P::multiply(reinterpret_cast<float(&)[4]>((FIRST + s ? d1 : d0)[4 * (j + i)]), a[s], b);
    }
  }
}
template <int K, int BYTE, int PART = 0> FG_DEV void half_products(float (&d0)[64], float (&d1)[64], const Lane& l, u32 at, i32 step, i32 blocks) {
  using P = ScaledProduct<IN, SF_E4M3, BYTE>;
  slab_products<K, BYTE, 0, PART>(d0, d1, l, at, step, blocks);
  if constexpr (P::SLABS == 1) slab_products<K, BYTE, 1, PART>(d0, d1, l, at, step, blocks);
  if constexpr (PART + 1 < P::PARTS) half_products<K, BYTE, PART + 1>(d0, d1, l, at, step, blocks);
}

FG_DEV void stage_products(float (&d0)[64], float (&d1)[64], const Lane& l, u32 at, i32 step, i32 blocks) {
  constexpr int EACH = (int)ROW_BLOCKS / 2;  // blocks in 32 bytes of k
  constexpr int SECOND = ATOMS == 2 ? 0 : EACH;
  if (ROW_BLOCKS == 2 && (step & 1)) {  // FP8: two stages share a word
    half_products<0, 2>(d0, d1, l, at, step, blocks);
    half_products<1, 3>(d0, d1, l, at, step, blocks);
  } else {
    half_products<0, 0>(d0, d1, l, at, step, blocks);
    half_products<1, SECOND>(d0, d1, l, at, step, blocks);
  }
}

}  // namespace fg
