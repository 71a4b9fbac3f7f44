// The end of a q tile: O through shared memory for 16-byte stores, and the row outputs.
#pragma once
#include "sdpa/fwd/mma/prefill_config.cuh"

namespace fg {

constexpr int O_CH = VCopy::CH;

// Where a row of the tile lives in an output. Full indexing by strides (S5): a token-major and a head-major Stats are the same code.
struct RowAt {
  i32 tok, head;
};
FG_DEV RowAt row_at(const Work& w, i32 row, i32 group) {
  if (!FG_PACK_GQA) return {w.row0 + row, w.h};
  const i32 p = w.row0 + row, t = p / group;
  return {t, w.h * group + (p - t * group)};
}

// Each warp writes its own 16-row slabs and reads back only those, so a warp-wide barrier is enough between the two. Before that all
// warps must be done with the tiles underneath (the caller's barrier).
FG_DEV void stage_o(u32 tile, u32 warp, u32 lane, int i, const float (&o)[O_NT][4], float mul0, float mul1, bool dead0, bool dead1) {
  const u32 t = lane & 3;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const u32 row = (u32)tile_row(warp, lane, i, h);
#pragma unroll
    for (int j = 0; j < O_NT; j++) {
      const float x = o[j][2 * h], y = o[j][2 * h + 1], m = h ? mul1 : mul0;
      const u32 v = (h ? dead1 : dead0) ? 0u : pack2<BF16>(x * m, y * m);
      const u32 unit = (u32)(8 * j % O_CH / 8) ^ row_swizzle<O_CH>(row);
      sts_u32(tile + col_chunk<TQ, O_CH>(8 * j) + row * row_bytes<O_CH>() + unit * 16 + t * 4, v);
    }
  }
}

// Rows of slab i to memory. `end`: first token that this launch does not own.
FG_DEV void store_o(u32 tile, u32 warp, u32 lane, int i, const Work& w, u16* o, i64 o_sh, i64 o_ss, i32 end, i32 group, i32 d_v) {
  constexpr int UNITS = O_CH / 8, PASS = 32 / UNITS;
  const u32 u = lane % UNITS;
#pragma unroll
  for (int p = 0; p < 16 / PASS; p++) {
    const i32 row = 16 * (i32)(warp + WARPS * i) + p * PASS + (i32)(lane / UNITS);
    const RowAt at = row_at(w, row, group);
    if (at.tok >= end) continue;
    u16* dst = o + ((i64)at.tok * o_ss + (i64)at.head * o_sh);
#pragma unroll
    for (int c = 0; c < DV / O_CH; c++) {
      u32 x, y, z, q;
      lds_v4(tile + c * TQ * O_CH * 2 + row * row_bytes<O_CH>() + ((u ^ row_swizzle<O_CH>(row)) << 4), x, y, z, q);
      if (c * O_CH + (i32)u * 8 < d_v) stg_v4(dst + c * O_CH + u * 8, x, y, z, q);
    }
  }
}

}  // namespace fg
