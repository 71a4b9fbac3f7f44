// How the CTAs of order 6 stay: each takes one item of the grid after the other by a ticket, in the order in which a grid of that many CTAs would start.
// The lane that loads takes the next one when it has issued the last load of an item, two tiles before the math warps end it, and posts what it is in a
// small ring that all other roles read. So the division of the grid, the fetch of K and V, the first Q and dO, the store of dK and dV and the last
// turns of the relay are all done beside products.
//
// Whoever awaits a turn or a prepared section waits for a lower item. Every lower item has been taken, by a CTA that works on its items in order: the
// lowest one that is not done waits for nothing.
#pragma once
#include "common/hopper.cuh"
#include "sdpa/bwd/sm90/config.cuh"

namespace fg {

constexpr u32 ITEM_READERS = MATH_WARPS + 1 + (FG_STAGED || FG_AHEAD ? 2 : 0);

FG_DEV u32 take_ticket(i32* ticket) {
  u32 item;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;" : "=r"(item) : "l"(ticket) : "memory");
  return item;
}
FG_DEV void init_items(u32 smem) {
  mbar_init(smem + BAR_V_FREE, MATH_WARPS);
  for (int i = 0; i < K_BUFS; i++) mbar_init(smem + BAR_K_FREE + 8 * i, MATH_WARPS);
  for (int i = 0; i < ITEMS; i++) {
    mbar_init(smem + BAR_ITEM_FULL + 8 * i, 1);
    mbar_init(smem + BAR_ITEM_FREE + 8 * i, ITEM_READERS);
  }
}

// Tile as words: b, h0, h_kv, kv0 (-1: no more items) | lengths, lo, hi | item and direction, band.
// One lane. n: items so far.
FG_DEV void post_item(u32 smem, u32 n, const Tile& t) {
  const u32 e = n % ITEMS, at = smem + OFF_ITEMS + e * (ITEM_WORDS * 4);
  mbar_wait(smem + BAR_ITEM_FREE + 8 * e, (n / ITEMS & 1) ^ 1);
  sts_v4(at, (u32)t.b, (u32)t.h0, (u32)t.h_kv, (u32)t.kv0);
  sts_v4(at + 16, (u32)t.len_q, (u32)t.len_kv, (u32)t.lo, (u32)t.hi);
  sts_v4(at + 32, t.item << 1 | (u32)t.up, (u32)t.band.diag, (u32)t.band.left, (u32)t.band.right);
  mbar_arrive(smem + BAR_ITEM_FULL + 8 * e);
}
// All of a warp, or one lane of it. False: there are no more. Whoever has branched on that has all words: they are loaded last to first.
FG_DEV bool read_item(u32 smem, u32 n, Tile& t) {
  const u32 e = n % ITEMS, at = smem + OFF_ITEMS + e * (ITEM_WORDS * 4);
  mbar_wait(smem + BAR_ITEM_FULL + 8 * e, n / ITEMS & 1);
  u32 w[12];
#pragma unroll
  for (int i = 2; i >= 0; i--) lds_v4(at + 16 * i, w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]);
  t.b = (i32)w[0], t.h0 = (i32)w[1], t.h_kv = (i32)w[2], t.kv0 = (i32)w[3];
  t.len_q = (i32)w[4], t.len_kv = (i32)w[5], t.lo = (i32)w[6], t.hi = (i32)w[7];
  t.item = w[8] >> 1, t.up = w[8] & 1;
  t.band = {(i32)w[9], (i32)w[10], (i32)w[11]};
  return t.kv0 >= 0;
}
// One lane of a warp, after every lane that read.
FG_DEV void free_item(u32 smem, u32 n) { mbar_arrive(smem + BAR_ITEM_FREE + 8 * (n % ITEMS)); }

// A role of the feeding warpgroup: `work` for every item of this CTA that has tiles, or at all (EMPTY). ONE: a lane alone is here. own: the CTA's only item
// where it does not stay.
template <bool ONE, bool EMPTY, class F> FG_DEV void each_item(u32 smem, const Tile& own, u32 lane, const F& work) {
  if constexpr (!STAY) {
    work(own);
  } else {
#pragma unroll 1
    for (u32 n = 0;; n++) {
      Tile t;
      const bool more = read_item(smem, n, t);
      if (!more) break;
      if (!ONE) __syncwarp();
      if (ONE || lane == 0) free_item(smem, n);
      if (EMPTY || t.lo < t.hi) work(t);
    }
  }
}

// dK or dV of a warp's 16 keys from the accumulators: the four lanes of a row's quad exchange 4 x 4 words, so that each stores 16 bytes of the row.
template <int D> FG_DEV void store_own(const float (&acc)[D / 2], float mul, u16* out, i64 row_stride, i32 rows, i32 d, u32 lane) {
  static_assert(D % 32 == 0, "four blocks of 8 columns at a time");
  const u32 t = lane & 3, g = lane >> 2;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const i32 row = (i32)g + 8 * h;
    u16* to = out + (i64)row * row_stride;
#pragma unroll
    for (int c = 0; c < D / 32; c++) {
      u32 x[4];  // word t of blocks 4 c .. 4 c + 3
#pragma unroll
      for (int j = 0; j < 4; j++) x[j] = pack2<BF16>(acc[16 * c + 4 * j + 2 * h] * mul, acc[16 * c + 4 * j + 2 * h + 1] * mul);
      // Transposed in two steps: lane t then has words 0 .. 3 of block 4 c + t.
      const u32 a = __shfl_xor_sync(0xffffffffu, t & 2 ? x[0] : x[2], 2), b = __shfl_xor_sync(0xffffffffu, t & 2 ? x[1] : x[3], 2);
      const u32 y[4] = {t & 2 ? a : x[0], t & 2 ? b : x[1], t & 2 ? x[2] : a, t & 2 ? x[3] : b};
      const u32 e = __shfl_xor_sync(0xffffffffu, t & 1 ? y[0] : y[1], 1), f = __shfl_xor_sync(0xffffffffu, t & 1 ? y[2] : y[3], 1);
      x[0] = t & 1 ? e : y[0], x[1] = t & 1 ? y[1] : e, x[2] = t & 1 ? f : y[2], x[3] = t & 1 ? y[3] : f;
      const i32 col = (4 * c + (i32)t) * 8;
      if (row < rows && col < d) stg_v4(to + col, x[0], x[1], x[2], x[3]);
    }
  }
}

}  // namespace fg
