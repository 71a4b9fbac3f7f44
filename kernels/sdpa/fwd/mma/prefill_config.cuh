// Defines -> constants of the prefill kernel, its shared-memory map, the work of one CTA, and the checks that refuse impossible combinations.
#pragma once
#include "common/cp_async.cuh"
#include "sdpa/fwd/mma/geometry.cuh"

#if !defined(FG_BF16) || !defined(FG_D_QK) || !defined(FG_D_V) || !defined(FG_WARPS) || !defined(FG_M_TILES) || !defined(FG_KV_TILE)
#error "prefill.cu needs FG_BF16, FG_D_QK, FG_D_V, FG_WARPS, FG_M_TILES, FG_KV_TILE"
#endif
#if !defined(FG_STAGES) || !defined(FG_Q_REGS) || !defined(FG_MIN_CTAS) || !defined(FG_SCHED)
#error "prefill.cu needs FG_STAGES, FG_Q_REGS, FG_MIN_CTAS, FG_SCHED"
#endif
#if !defined(FG_CAUSAL) || !defined(FG_WINDOW) || !defined(FG_PADDED) || !defined(FG_CU_SEQ) || !defined(FG_THD) || !defined(FG_RAGGED_I64)
#error "prefill.cu needs FG_CAUSAL, FG_WINDOW, FG_PADDED, FG_CU_SEQ, FG_THD, FG_RAGGED_I64"
#endif
#if !defined(FG_PACK_GQA) || !defined(FG_SINK) || !defined(FG_BIAS) || !defined(FG_STATS) || !defined(FG_MAX_SUM)
#error "prefill.cu needs FG_PACK_GQA, FG_SINK, FG_BIAS, FG_STATS, FG_MAX_SUM"
#endif

namespace fg {

constexpr int BF16 = FG_BF16;
constexpr int DQK = FG_D_QK, DV = FG_D_V, WARPS = FG_WARPS, MT = FG_M_TILES, TK = FG_KV_TILE, STAGES = FG_STAGES;
constexpr int THREADS = 32 * WARPS, TQ = 16 * MT * WARPS;
constexpr int S_NT = TK / 8, O_NT = DV / 8, QK_STEPS = DQK / 16, PV_STEPS = TK / 16;
constexpr bool Q_REGS = FG_Q_REGS;  // Q fragments live in registers instead of being read from shared memory for every kv tile

static_assert(DQK % 32 == 0 && DQK <= 256 && DV % 32 == 0 && DV <= 256, "padded head dims");
static_assert((WARPS == 4 || WARPS == 8) && (MT == 1 || MT == 2), "warp grid");
static_assert(TK == 32 || TK == 64 || TK == 128, "kv tile");
static_assert(STAGES == 1 || STAGES == 2, "stages");
static_assert(!FG_THD || FG_PADDED, "THD takes its lengths from the length tensors");
static_assert(!FG_THD || !FG_BIAS, "no bias with THD");
static_assert(!FG_CU_SEQ || FG_PADDED, "running totals are lengths");

// ---- shared memory: Q | K stages | V stages. The Q tile is reused for O; where O rows are longer it runs into the K stages.
using QCopy = TileCopy<TQ, DQK, THREADS>;
using KCopy = TileCopy<TK, DQK, THREADS>;
using VCopy = TileCopy<TK, DV, THREADS>;
constexpr u32 Q_BYTES = TQ * DQK * 2, K_BYTES = TK * DQK * 2, V_BYTES = TK * DV * 2, O_BYTES = TQ * DV * 2;
constexpr u32 OFF_K = Q_BYTES, OFF_V = OFF_K + STAGES * K_BYTES, OFF_END = OFF_V + STAGES * V_BYTES;
constexpr u32 SMEM_BYTES = OFF_END > O_BYTES ? OFF_END : O_BYTES;

// What one CTA works on. Everything here is uniform over the CTA. A row is a (token, query head of the group) pair with FG_PACK_GQA,
// heads fastest, else a token.
struct Work {
  i32 b, h, h_kv;      // h: query head, or kv head when packed
  i32 row0, rows;      // first row of the tile, live rows of this (batch, head)
  i32 tok0, tok1;      // first token of the tile, one past its last (not clipped to the length)
  i32 len_q, len_kv;   // actual lengths
  i32 k_lo, k_hi;      // keys that any live row of the tile keeps lie in [k_lo, k_hi)
  Band band;
};

// Order of the tiles over the grid. 0: q tiles of a head ascending, head after head. 1: sections of `section` heads (over batches);
// inside a section the last q tiles of all its heads come first: with a causal mask those are the longest, and the short ones fill
// the tail. A section whose K and V fit the L2 cache keeps its re-reads there.
FG_DEV Work make_work(i32 s_q, i32 s_kv, i32 batch, i32 heads_q, i32 group, i32 section, const i32* seq_q, const i32* seq_kv, i32 bottom_right,
                      i32 left, i32 right) {
  Work w;
  const u32 per_row = FG_PACK_GQA ? group : 1, heads = (u32)heads_q / per_row;
  const u32 tiles = ((u32)s_q * per_row + TQ - 1) / TQ;
  u32 tile, bh;
  if (FG_SCHED == 0) {
    bh = blockIdx.x / tiles;
    tile = blockIdx.x - bh * tiles;
  } else {
    const u32 first = blockIdx.x / ((u32)section * tiles) * (u32)section, in = blockIdx.x - first * tiles;
    const u32 n = min2((u32)section, (u32)batch * heads - first), rank = in / n;
    bh = first + (in - rank * n);
    tile = tiles - 1 - rank;
  }
  w.b = (i32)(bh / heads);
  w.h = (i32)(bh - (u32)w.b * heads);
  w.h_kv = FG_PACK_GQA ? w.h : w.h / group;
  w.len_q = FG_PADDED ? seq_len<FG_CU_SEQ>(seq_q, w.b, s_q) : s_q;
  w.len_kv = FG_PADDED ? seq_len<FG_CU_SEQ>(seq_kv, w.b, s_kv) : s_kv;
  // Without a right bound the edge tiles test an endless one: with the test left out, ptxas moved every accumulator once a tile.
  w.band = make_band(bottom_right, w.len_q, w.len_kv, left, FG_CAUSAL ? right : BAND_MAX);
  w.row0 = (i32)(tile * TQ);
  w.rows = w.len_q * (i32)per_row;
  w.tok0 = w.row0 / (i32)per_row;
  w.tok1 = (w.row0 + TQ - 1) / (i32)per_row + 1;
  const i32 last = min2(w.tok1, w.len_q) - 1;
  w.k_lo = FG_WINDOW ? max2(0, w.tok0 + w.band.diag - w.band.left) : 0;
  w.k_hi = FG_CAUSAL ? min2(w.len_kv, last + w.band.diag + w.band.right + 1) : w.len_kv;
  if (w.row0 >= w.rows) w.k_hi = w.k_lo;
  return w;
}

// Row of the tile that this lane owns in half h (0: accumulators 0 and 1, 1: 2 and 3) of m-slab i. Slabs are interleaved over the warps.
FG_DEV i32 tile_row(u32 warp, u32 lane, int i, int h) { return 16 * (i32)(warp + WARPS * i) + 8 * h + (i32)(lane >> 2); }

}  // namespace fg
