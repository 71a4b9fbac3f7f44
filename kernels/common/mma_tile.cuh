// Warp-level GEMM on swizzled shared-memory tiles with mma.m16n8k16.
//
// A tile is [ROWS][D] stored as chunks of CH columns (64 -> 128-byte rows, SWIZZLE_128B; 32 -> 64-byte rows, SWIZZLE_64B),
// exactly what TMA writes. Chunk c holds columns c*CH.., chunk stride = ROWS * CH * 2 bytes, tile base 1024-byte aligned.
//
// Warps split an output dimension by *interleaving* 16-wide slabs: warp w of NW owns slabs w, w + NW, w + 2 NW, ...
// Because NW is a power of two, slab t of a warp then differs from its slab 0 by a compile-time constant in every swizzled
// address (an XOR inside the chunk plus a chunk offset), whatever the width: 48 or 96 columns per warp cost nothing extra.
#pragma once
#include "common/ptx.cuh"

namespace fg {

template <int CH> FG_DEV constexpr u32 row_bytes() { return CH * 2; }
// 16-byte unit index XOR pattern of the hardware swizzle, as a function of the row.
template <int CH> FG_DEV constexpr u32 row_swizzle(u32 row) { return CH == 64 ? (row & 7) : ((row >> 1) & 3); }
template <int ROWS, int CH> FG_DEV constexpr u32 col_chunk(u32 col) { return (col / CH) * (ROWS * CH * 2); }
template <int CH> FG_DEV constexpr u32 col_xor(u32 col) { return ((col % CH) / 8) << 4; }

// ldmatrix.x4 lane addresses inside a 16x16 slab. ROW16: lane -> row l%16, column half l/16. ROW8: row l%8 + 8*(l/16), half (l/8)%2.
template <int CH> FG_DEV u32 lane_row16(u32 l) {
  u32 r = l & 15;
  return r * row_bytes<CH>() + (((l >> 4) ^ row_swizzle<CH>(r)) << 4);
}
template <int CH> FG_DEV u32 lane_row8(u32 l) {
  u32 r = (l & 7) + ((l >> 4) << 3);
  return r * row_bytes<CH>() + ((((l >> 3) & 1) ^ row_swizzle<CH>(r)) << 4);
}

// One MMA operand read from a tile. TRANS = false: the tile's rows are the operand's M (or N) index and k runs along the columns.
// TRANS = true: rows are k, columns are M (or N), read through ldmatrix.trans. IS_A picks the lane pattern the fragment needs.
template <int ROWS, int CH, int NW, bool TRANS, bool IS_A> struct Operand {
  static FG_DEV u32 lane_base(u32 warp, u32 lane) {
    u32 l = (IS_A != TRANS) ? lane_row16<CH>(lane) : lane_row8<CH>(lane);
    return TRANS ? (l ^ col_xor<CH>(16 * warp)) + col_chunk<ROWS, CH>(16 * warp) : l + 16 * warp * row_bytes<CH>();
  }
  // base = tile address + lane_base
  static FG_DEV u32 addr(u32 base, int slab, int ks) {
    const int col = TRANS ? 16 * NW * slab : 16 * ks, row = TRANS ? 16 * ks : 16 * NW * slab;
    return (base ^ col_xor<CH>(col)) + (col_chunk<ROWS, CH>(col) + row * row_bytes<CH>());
  }
  template <int MT> static FG_DEV void load_a(u32 base, int ks, u32 (&a)[MT][4]) {
#pragma unroll
    for (int i = 0; i < MT; i++) {
      if (TRANS)
        ldsm4t(addr(base, i, ks), a[i][0], a[i][1], a[i][2], a[i][3]);
      else
        ldsm4(addr(base, i, ks), a[i][0], a[i][1], a[i][2], a[i][3]);
    }
  }
  template <int NT> static FG_DEV void load_b(u32 base, int ks, u32 (&b)[NT][2], int slab0 = 0) {
#pragma unroll
    for (int j = 0; j < NT / 2; j++) {
      if (TRANS)
        ldsm4t(addr(base, slab0 + j, ks), b[2 * j][0], b[2 * j][1], b[2 * j + 1][0], b[2 * j + 1][1]);
      else
        ldsm4(addr(base, slab0 + j, ks), b[2 * j][0], b[2 * j][1], b[2 * j + 1][0], b[2 * j + 1][1]);
    }
  }
};

enum class Init { ACCUMULATE, ZERO, ROWS };

// C(MT*16 x NT*8 per warp) over KS k-steps. Fragments are double buffered: step k+1's loads are in flight under step k's MMAs.
// hook(ks) runs after the MMAs of step ks are issued; work placed there fills issue slots the tensor pipe leaves idle.
// Init::ROWS starts every accumulator at its row's value row0[i][h] (row g + 8h of slab i): the MMA's C operand does that for free.
template <int BF16, int MT, int NT, int KS, Init INIT, class LoadA, class LoadB, class Hook>
FG_DEV void gemm(float (&c)[MT][NT][4], const float (&row0)[MT][2], LoadA&& load_a, LoadB&& load_b, Hook&& hook) {
  u32 a[2][MT][4], b[2][NT][2];
  load_a(0, a[0]);
  load_b(0, b[0]);
#pragma unroll
  for (int ks = 0; ks < KS; ks++) {
    const int cur = ks & 1;
    if (ks + 1 < KS) {
      load_a(ks + 1, a[cur ^ 1]);
      load_b(ks + 1, b[cur ^ 1]);
    }
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
      for (int j = 0; j < NT; j++) {
        if (INIT == Init::ACCUMULATE || ks > 0)
          mma_16816<BF16>(c[i][j], a[cur][i], b[cur][j], c[i][j][0], c[i][j][1], c[i][j][2], c[i][j][3]);
        else if (INIT == Init::ZERO)
          mma_16816<BF16>(c[i][j], a[cur][i], b[cur][j], 0.f, 0.f, 0.f, 0.f);
        else
          mma_16816<BF16>(c[i][j], a[cur][i], b[cur][j], row0[i][0], row0[i][0], row0[i][1], row0[i][1]);
      }
    hook(ks);
  }
}
template <int MT> struct NoRows {
  float v[MT][2];
};

// Writes an accumulator pair of slabs (two adjacent n8 tiles) as one 16x16 block of 16-bit values. base from Stash::lane_base + tile.
template <int ROWS, int CH, int NWM, int NWN> struct Stash {
  static FG_DEV u32 lane_base(u32 wm, u32 wn, u32 lane) {
    return (lane_row16<CH>(lane) ^ col_xor<CH>(16 * wn)) + col_chunk<ROWS, CH>(16 * wn) + 16 * wm * row_bytes<CH>();
  }
  template <int BF16> static FG_DEV void put(u32 base, int i, int j, const float (&lo)[4], const float (&hi)[4], float mul = 1.f) {
    const int col = 16 * NWN * j, row = 16 * NWM * i;
    u32 at = (base ^ col_xor<CH>(col)) + (col_chunk<ROWS, CH>(col) + row * row_bytes<CH>());
    stsm4(at, pack2<BF16>(lo[0] * mul, lo[1] * mul), pack2<BF16>(lo[2] * mul, lo[3] * mul), pack2<BF16>(hi[0] * mul, hi[1] * mul),
          pack2<BF16>(hi[2] * mul, hi[3] * mul));
  }
};

}  // namespace fg
