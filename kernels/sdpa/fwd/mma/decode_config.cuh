// Defines -> constants of the decode kernel, its shared-memory map and the work of one CTA.
#pragma once
#include "common/cp_async.cuh"
#include "sdpa/fwd/mma/geometry.cuh"

#if !defined(FG_BF16) || !defined(FG_D_QK) || !defined(FG_D_V) || !defined(FG_WARPS) || !defined(FG_KEYS) || !defined(FG_STAGES) || !defined(FG_MIN_CTAS)
#error "decode.cu needs FG_BF16, FG_D_QK, FG_D_V, FG_WARPS, FG_KEYS, FG_STAGES, FG_MIN_CTAS"
#endif
#if !defined(FG_CAUSAL) || !defined(FG_WINDOW) || !defined(FG_PADDED) || !defined(FG_CU_SEQ) || !defined(FG_PAGED) || !defined(FG_SPLIT)
#error "decode.cu needs FG_CAUSAL, FG_WINDOW, FG_PADDED, FG_CU_SEQ, FG_PAGED, FG_SPLIT"
#endif
#if !defined(FG_SINK) || !defined(FG_STATS)
#error "decode.cu needs FG_SINK, FG_STATS"
#endif

namespace fg {

constexpr int BF16 = FG_BF16, DQK = FG_D_QK, DV = FG_D_V, WARPS = FG_WARPS, KEYS = FG_KEYS, STAGES = FG_STAGES;
constexpr int THREADS = 32 * WARPS, ROWS = 16;  // one m16 slab of (token, query head) rows per CTA, all of it in every warp
constexpr int S_NT = KEYS / 8, O_NT = DV / 8, QK_STEPS = DQK / 16, PV_STEPS = KEYS / 16;
constexpr int K_CH = DQK % 64 == 0 ? 64 : 32, V_CH = DV % 64 == 0 ? 64 : 32;

static_assert(DQK % 32 == 0 && DQK <= 256 && DV % 32 == 0 && DV <= 256, "padded head dims");
static_assert(WARPS == 2 || WARPS == 4 || WARPS == 8, "warps");
static_assert(KEYS == 16 || KEYS == 32 || KEYS == 64, "keys of a warp's block");
static_assert(STAGES >= 2 && STAGES <= 8, "stages");
static_assert(!FG_CU_SEQ || FG_PADDED, "running totals are lengths");
static_assert(!FG_PAGED || FG_PADDED, "paged keys take their number from the length tensor");
static_assert(!FG_SPLIT || !FG_SINK, "the sink enters once, in the combine");

// ---- shared memory: every warp has a ring of its own; afterwards the same bytes carry the warps' partial rows to the final sum.
// Partial rows are padded by 8 floats, which makes the fragment-shaped writes conflict-free.
constexpr u32 KB_BYTES = KEYS * DQK * 2, VB_BYTES = KEYS * DV * 2, STAGE_BYTES = KB_BYTES + VB_BYTES, RING_BYTES = STAGES * STAGE_BYTES;
constexpr u32 PART_ROW = (DV + 8) * 4, PART_BYTES = ROWS * PART_ROW, OFF_ML = WARPS * PART_BYTES;
constexpr u32 SUM_BYTES = OFF_ML + WARPS * ROWS * 8;
constexpr u32 SMEM_BYTES = WARPS * RING_BYTES > SUM_BYTES ? WARPS * RING_BYTES : SUM_BYTES;

// Everything here is uniform over the CTA. Row p of a (batch, kv head): token p / group, query head h * group + p % group.
struct Work {
  i32 b, h, split;
  i32 row0;              // first row of this CTA
  i32 len_q, len_kv;
  i32 k_lo, k_hi;        // keys that any row of this CTA keeps, all splits
  i32 blk_lo, blk_hi;    // blocks of KEYS keys of this split
  Band band;
};
// grid (splits fastest, then kv heads, row tiles, batch). The split is cut from the keys that are there, not from the capacity of the
// cache: results do not depend on how large the cache was allocated.
FG_DEV Work make_work(i32 s_q, i32 s_kv, i32 heads_kv, i32 group, i32 splits, const i32* seq_q, const i32* seq_kv, i32 bottom_right, i32 left,
                      i32 right) {
  Work w;
  u32 x = blockIdx.x;
  w.split = FG_SPLIT ? (i32)(x % (u32)splits) : 0;
  if (FG_SPLIT) x /= (u32)splits;
  w.h = (i32)(x % (u32)heads_kv);
  x /= (u32)heads_kv;
  const u32 tiles = (u32)ceil_div(s_q * group, ROWS);
  w.row0 = (i32)(x % tiles) * ROWS;
  w.b = (i32)(x / tiles);
  w.len_q = FG_PADDED ? seq_len<FG_CU_SEQ>(seq_q, w.b, s_q) : s_q;
  w.len_kv = FG_PADDED ? seq_len<FG_CU_SEQ>(seq_kv, w.b, s_kv) : s_kv;
  w.band = make_band(bottom_right, w.len_q, w.len_kv, left, right);
  const i32 tok0 = w.row0 / group, last = min2((w.row0 + ROWS - 1) / group, w.len_q - 1);
  w.k_lo = FG_WINDOW ? max2(0, tok0 + w.band.diag - w.band.left) : 0;
  w.k_hi = FG_CAUSAL ? min2(w.len_kv, last + w.band.diag + w.band.right + 1) : w.len_kv;
  if (tok0 >= w.len_q || w.k_hi < w.k_lo) w.k_hi = w.k_lo;
  const i32 lo = w.k_lo / KEYS, hi = w.k_hi > w.k_lo ? (w.k_hi + KEYS - 1) / KEYS : lo;
  const i32 each = FG_SPLIT ? ceil_div(hi - lo, splits) : hi - lo;
  w.blk_lo = min2(lo + w.split * each, hi);
  w.blk_hi = min2(w.blk_lo + each, hi);
  return w;
}

}  // namespace fg
