// The end of a row block: O straight from registers. The four lanes of a row exchange column blocks, so that each stores 16 bytes and a row's piece is
// 64 contiguous bytes: no shared memory, so the next tile's loads need not wait for it, and one form serves dense and packed outputs.
#pragma once
#include "sdpa/fwd/sm90/config.cuh"

namespace fg {

// In: lane t holds words (columns 2t, 2t + 1) of blocks 0 ... 3. Out: lane t holds the four words of block t.
FG_DEV void quad_transpose(u32 (&x)[4], u32 t) {
  const bool hi = t & 2, odd = t & 1;
  const u32 a = __shfl_xor_sync(0xffffffffu, hi ? x[0] : x[2], 2), b = __shfl_xor_sync(0xffffffffu, hi ? x[1] : x[3], 2);
  if (hi)
    x[0] = a, x[1] = b;
  else
    x[2] = a, x[3] = b;
  const u32 c = __shfl_xor_sync(0xffffffffu, odd ? x[0] : x[1], 1), d = __shfl_xor_sync(0xffffffffu, odd ? x[2] : x[3], 1);
  if (odd)
    x[0] = c, x[2] = d;
  else
    x[1] = c, x[3] = d;
}

// Row h (0: g, 1: g + 8) of this lane, columns from col0 on; `live`: the row is the launch's to write. mul: 1 / sum, dead: O is zero whatever the accumulator holds.
template <int N> FG_DEV void store_row(const float (&o)[N], int h, u16* row, bool live, float mul, bool dead, u32 t, i32 col0, i32 d_v) {
#pragma unroll
  for (int q = 0; q < N / 16; q++) {
    u32 x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int j = 4 * (4 * q + i) + 2 * h;
      x[i] = dead ? 0u : pack2<BF16>(o[j] * mul, o[j + 1] * mul);
    }
    quad_transpose(x, t);
    const i32 col = col0 + 32 * q + 8 * (i32)t;
    if (live && col < d_v) stg_v4(row + col, x[0], x[1], x[2], x[3]);
  }
}

// What storing a row of O needs besides O, known when the row's last P is.
struct RowStore {
  u16* row;
  bool live;
  float mul;
  bool dead;
};
template <int N> FG_DEV void store_row(const float (&o)[N], int h, const RowStore& e, u32 t, i32 col0, i32 d_v) {
  store_row(o, h, e.row, e.live, e.mul, e.dead, t, col0, d_v);
}

}  // namespace fg
