// One warp's copies: a block of KEYS keys of K and V, plain or through block tables, into its own ring. No other warp is involved, so
// the ring needs no CTA barrier.
#pragma once
#include "sdpa/fwd/mma/decode_config.cuh"

namespace fg {

// Lane l owns 16-byte unit l % UNITS of every PASS-th row. With 64-column chunks PASS is 4, half the period of the swizzle: odd passes
// flip bit 6 of the lane's address.
template <int D, int CH> struct WarpCopy {
  static constexpr int UNITS = CH / 8, PASS = 32 / UNITS, PASSES = KEYS / PASS, CHUNKS = D / CH;
  static FG_DEV i32 row(u32 lane) { return (i32)(lane / UNITS); }
  static FG_DEV u32 at(u32 lane, int p) {
    const u32 r = lane / UNITS, base = r * row_bytes<CH>() + (((lane % UNITS) ^ row_swizzle<CH>(r)) << 4);
    return (CH == 64 && (p & 1) ? base ^ 64u : base) + (u32)(p * PASS) * row_bytes<CH>();
  }
  static FG_DEV void put(u32 tile, u32 lane, int p, const u16* src, bool in, i32 d) {
    const u32 u = lane % UNITS * 8;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
      cp_async16(tile + at(lane, p) + c * KEYS * CH * 2, src + (c * CH + u), in && c * CH + (i32)u < d);
  }
};
using KWarp = WarpCopy<DQK, K_CH>;
using VWarp = WarpCopy<DV, V_CH>;

struct Source {
  const u16 *k, *v;        // origin of the head; dense: of the (batch, head)
  i64 k_sb, k_ss, v_sb, v_ss;
  const i32 *table_k, *table_v;  // of the batch
  i64 table_k_ss, table_v_ss;
  i32 page_size, page_shift;     // shift is negative when the size is no power of two
  i32 k_lo, k_hi, d_qk, d_v;
};
FG_DEV i32 page_of(const Source& s, i32 key) { return s.page_shift >= 0 ? key >> s.page_shift : key / s.page_size; }

// Page numbers of the rows a lane copies, fetched one block ahead of their use. Entries of keys that no row keeps are not read.
struct Pages {
  i32 k[KWarp::PASSES], v[VWarp::PASSES];
};
FG_DEV void fetch_pages(Pages& g, const Source& s, i32 blk, i32 blk_hi, u32 lane) {
  if constexpr (FG_PAGED) {
#pragma unroll
    for (int p = 0; p < KWarp::PASSES; p++) {
      const i32 key = blk * KEYS + p * KWarp::PASS + KWarp::row(lane);
      g.k[p] = blk < blk_hi && key >= s.k_lo && key < s.k_hi ? __ldg(s.table_k + (i64)page_of(s, key) * s.table_k_ss) : 0;
    }
#pragma unroll
    for (int p = 0; p < VWarp::PASSES; p++) {
      const i32 key = blk * KEYS + p * VWarp::PASS + VWarp::row(lane);
      g.v[p] = blk < blk_hi && key >= s.k_lo && key < s.k_hi ? __ldg(s.table_v + (i64)page_of(s, key) * s.table_v_ss) : 0;
    }
  }
}
FG_DEV void load_block(u32 stage, const Source& s, const Pages& g, i32 blk, u32 lane) {
#pragma unroll
  for (int p = 0; p < KWarp::PASSES; p++) {
    const i32 key = blk * KEYS + p * KWarp::PASS + KWarp::row(lane);
    const i64 at = FG_PAGED ? (i64)g.k[p] * s.k_sb + (i64)(key - page_of(s, key) * s.page_size) * s.k_ss : (i64)key * s.k_ss;
    KWarp::put(stage, lane, p, s.k + at, key >= s.k_lo && key < s.k_hi, s.d_qk);
  }
#pragma unroll
  for (int p = 0; p < VWarp::PASSES; p++) {
    const i32 key = blk * KEYS + p * VWarp::PASS + VWarp::row(lane);
    const i64 at = FG_PAGED ? (i64)g.v[p] * s.v_sb + (i64)(key - page_of(s, key) * s.page_size) * s.v_ss : (i64)key * s.v_ss;
    VWarp::put(stage + KB_BYTES, lane, p, s.v + at, key >= s.k_lo && key < s.k_hi, s.d_v);
  }
}

}  // namespace fg
