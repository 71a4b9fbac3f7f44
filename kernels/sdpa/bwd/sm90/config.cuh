// Defines -> constants of the wgmma backward, its shared-memory map, and the work list that every role walks.
#pragma once
#include "sdpa/bwd/mma/chain.cuh"
#include "sdpa/bwd/sm90/rows.cuh"

#if !defined(FG_BF16) || !defined(FG_D_QK) || !defined(FG_D_V) || !defined(FG_Q_TILE) || !defined(FG_ORDER)
#error "main.cu needs FG_BF16, FG_D_QK, FG_D_V, FG_Q_TILE, FG_ORDER"
#endif
#if !defined(FG_CAUSAL) || !defined(FG_WINDOW) || !defined(FG_PADDED) || !defined(FG_THD) || !defined(FG_RAGGED_I64)
#error "main.cu needs FG_CAUSAL, FG_WINDOW, FG_PADDED, FG_THD, FG_RAGGED_I64"
#endif
#if !defined(FG_DKV_WS) || !defined(FG_DET) || !defined(FG_STAGED) || !defined(FG_AHEAD) || !defined(FG_BIAS) || !defined(FG_DBIAS)
#error "main.cu needs FG_DKV_WS, FG_DET, FG_STAGED, FG_AHEAD, FG_BIAS, FG_DBIAS"
#endif

namespace fg {

constexpr int BF16 = FG_BF16;
constexpr int DQK = FG_D_QK, DV = FG_D_V, TQ = FG_Q_TILE;
// Head dims whose dK and dV of 128 keys are more than the registers of two warpgroups: 64 keys, and another division of labour (wide.cuh).
constexpr bool WIDE = DV > 128;
constexpr int TK = WIDE ? 64 : 128;
// Order 6 (late.cuh) leaves dQ of a tile in the place of its dS. Its CTAs stay: they take one item of the grid after the other (items.cuh). Order 7
// (pair.cuh): two CTAs of a cluster share dQ of neighbouring kv tiles.
constexpr bool LATE = FG_ORDER == 6, STAY = LATE, PAIR = FG_ORDER == 7;
constexpr int CLUSTER = PAIR ? 2 : 1;
// -delta comes into dP as one more k step, where there is room.
constexpr bool DELTA_STEP = (LATE && !FG_DET) || PAIR;
// Where there is no room for that, half of a tile's row statistics are loaded before they are wanted (Math::stats_ahead).
constexpr bool STATS_AHEAD = LATE && !DELTA_STEP;
constexpr int ST = 2;  // buffers of Q and of dO: the math loop alternates
// The wide loop leaves its adds to dQ to the bulk engine, from shared memory: whole tiles, or the halves of each warpgroup's columns one after the other.
// Two halves take the place of the second dO.
constexpr bool BULK_DQ = WIDE && !FG_DET;
constexpr int DQ_PIECES = BULK_DQ && DQK == 256 ? 2 : 1, ST_DO = DQ_PIECES == 2 ? 1 : ST;
constexpr int THREADS = 384, MATH_THREADS = 256, MATH_WARPS = 8;
// 2 * 240 + 24 = 2 * 232 + 40 = 2 * 224 + 56 = 504 = 3 * 168, what launch_bounds(384) grants the CTA. With 128 q rows the statistics warp holds four rows
// a lane; where CTAs stay, the feeding roles keep what they are in the middle of from item to item.
constexpr int MATH_REGS = STAY ? 224 : TQ == 128 ? 232 : 240, AUX_REGS = STAY ? 56 : TQ == 128 ? 40 : 24;

static_assert(DQK % 64 == 0 && DV % 64 == 0 && DQK >= DV && DQK <= 256, "head dims");
// How the two warpgroups share dQ. 128 rows: half of the rows each. 64 rows: half of the head dim. 48 rows: no multiple of 64, so dQ^T is computed, in
// 64-column blocks of the head dim; warpgroup c takes block c, and the third block alternates.
constexpr bool DQ_T = TQ == 48;
static_assert((TQ == 128 && DQK == 64 && DV == 64) || (TQ == 64 && DQK == 128 && DV == 128) || (TQ == 48 && DQK == 192 && DV == 128) ||
                  (TQ == 64 && DQK == DV && (DV == 192 || DV == 256)),
              "tile");
static_assert(!FG_BIAS || !FG_THD, "a bias comes with dense operands");
static_assert(!FG_DBIAS || FG_BIAS, "dBias is that of a bias");
static_assert(!FG_STAGED || (FG_DET && !FG_BIAS && !DQ_T && !WIDE), "stages are those of the relay, where they fit");
static_assert(!FG_AHEAD || (!FG_PADDED && !FG_DET && !FG_BIAS && !WIDE), "work is done ahead for dense graphs, by warps without another role");
static_assert(!LATE || (TQ == 128 && !FG_BIAS && FG_DET == FG_STAGED), "order 6");
static_assert(!PAIR || (TQ == 64 && DQK == 128 && !FG_DET && !FG_PADDED && !FG_BIAS && !FG_WINDOW), "order 7");
static_assert(!FG_THD || FG_PADDED, "THD takes its lengths from the length tensors");

// ---- shared memory: every tile is 64-column chunks of 128-byte rows, 128-byte swizzle, 1024-byte aligned ----
constexpr int DS_BUFS = PAIR ? 3 : !LATE ? 2 : FG_DET ? 4 : 3, K_BUFS = STAY && !FG_DET ? 2 : 1;  // the K of the next item, where there is room
constexpr u32 Q_BYTES = TQ * DQK * 2, DO_BYTES = TQ * DV * 2, K_BYTES = TK * DQK * 2, V_BYTES = TK * DV * 2, DS_BYTES = TQ * TK * 2;
constexpr u32 OFF_K = 0, OFF_V = OFF_K + K_BUFS * K_BYTES, OFF_Q = OFF_V + V_BYTES, OFF_DO = OFF_Q + ST * Q_BYTES, OFF_DS = OFF_DO + ST_DO * DO_BYTES;
constexpr u32 OFF_P = OFF_DS + DS_BUFS * DS_BYTES, P_BYTES = WIDE ? DS_BYTES : 0;  // P^T, which only the wide loop keeps in shared memory
constexpr u32 STAGE_BYTES = 64 * 128 * 2;  // of one warpgroup's output, over the dead dS
constexpr u32 DS_ROOM = DS_BUFS * (DS_BYTES + P_BYTES) < 2 * STAGE_BYTES ? 2 * STAGE_BYTES : DS_BUFS * (DS_BYTES + P_BYTES);
constexpr u32 OFF_K2 = OFF_DS + DS_ROOM;  // K of the other kv tile (PAIR)
constexpr u32 OFF_LSE = OFF_K2 + (PAIR ? K_BYTES : 0), OFF_DELTA = OFF_LSE + ST * TQ * 4;
// DELTA_STEP: a row of -delta is eight bf16, three that add up to it and zeros; then 8 x 8 of what they are multiplied with, and zeros.
constexpr u32 OFF_ONES = OFF_DELTA + ST * TQ * (DELTA_STEP ? 16 : 4), OFF_BAR = OFF_ONES + (DELTA_STEP ? 256 : 0);
constexpr int ITEMS = 4;            // items of a CTA under way at once, of 64 bytes each
constexpr u32 ITEM_WORDS = 16;
constexpr int TICKET_WORDS = 32;    // before the counters of dq_sem: the ticket, on a line of its own
constexpr u32 BAR_BYTES = STAY ? 256 + ITEMS * ITEM_WORDS * 4 : 128;
constexpr u32 OFF_DS32 = OFF_BAR + BAR_BYTES;                         // dS in fp32 on its way to dBias
// dQ on its way to dq_accum: two tiles of the relay; BULK_DQ: a tile, or half of one.
constexpr u32 OFF_STAGE = OFF_BAR + BAR_BYTES, DQ_BYTES = TQ * DQK * 4, DQ_ROOM = LATE ? 0 : FG_STAGED ? 2 * DQ_BYTES : BULK_DQ ? DQ_BYTES / DQ_PIECES : 0;
constexpr int DQ_PLACES = LATE && FG_DET ? DS_BUFS : 2;  // for dQ of a tile that waits for its turn
constexpr int AHEAD_ROWS = PAIR || STAY ? 16 : 32;  // of O and dO, that each of two warps takes at a time (ahead.cuh)
constexpr u32 OFF_AHEAD = OFF_BAR + BAR_BYTES, AHEAD_BYTES = FG_AHEAD ? 2 * AHEAD_ROWS * 4 * DV : 0;
constexpr bool DBIAS_RING = FG_DBIAS && !WIDE;  // the wide loop adds to dBias itself
constexpr u32 SMEM_BYTES = OFF_DS32 + (DBIAS_RING ? TQ * TK * 4 : 0) + DQ_ROOM + AHEAD_BYTES;
static_assert(!DQ_ROOM || OFF_STAGE % 16 == 0, "bulk adds");
static_assert(SMEM_BYTES <= 232448, "shared memory of one CTA");

// mbarriers, 8 bytes each. *_EDGE: where TMA lands a tile that has rows past the length; the statistics warp zeroes those rows and then
// completes the tile's own barrier, so the math warps know nothing of it.
constexpr u32 BAR_KV_FULL = OFF_BAR, BAR_KV_EDGE = BAR_KV_FULL + 8 * K_BUFS, BAR_Q_EDGE = BAR_KV_EDGE + 8 * K_BUFS, BAR_DO_EDGE = BAR_Q_EDGE + 8,
              BAR_Q_FULL = BAR_DO_EDGE + 8, BAR_Q_FREE = BAR_Q_FULL + 8 * ST, BAR_DO_FULL = BAR_Q_FREE + 8 * ST, BAR_DO_FREE = BAR_DO_FULL + 8 * ST,
              BAR_DQ_GO = BAR_DO_FREE + 8 * ST, BAR_DQ_DONE = BAR_DQ_GO + 8 * DQ_PLACES;  // FG_STAGED: one each a place, "free" and "full"
constexpr u32 BAR_DS32_FULL = BAR_DQ_GO + 8, BAR_DS32_FREE = BAR_DQ_DONE + 8;            // in the place of the second stage's
// STAY: K has been read for the last time, V has; an item has been posted, has been read by all; then the items.
constexpr u32 BAR_K_FREE = BAR_DQ_DONE + 8 * DQ_PLACES, BAR_V_FREE = BAR_K_FREE + 8 * K_BUFS, BAR_ITEM_FULL = BAR_V_FREE + 8,
              BAR_ITEM_FREE = BAR_ITEM_FULL + 8 * ITEMS, OFF_ITEMS = OFF_BAR + 256;
static_assert((STAY ? BAR_ITEM_FREE + 8 * ITEMS : BAR_K_FREE) <= (STAY ? OFF_ITEMS : OFF_DS32), "barriers");
// named barriers
constexpr int NB_DS = 1;   // both math warpgroups: dS of this tile is complete
constexpr int NB_OUT = 2;  // 2 + warpgroup: staging of one warpgroup's output
constexpr int NB_HALF = 4, NB_TURN = 8;  // order 6: + 2 warpgroup + parity of the tile; + warpgroup
// Wide loop, + buffer: P^T of a tile is complete (the first math warpgroup arrives), dS is (the second arrives); the second alone.
constexpr int NB_P_FULL = 4, NB_DS_FULL = 6, NB_DS_OWN = 8;

// ---- work ----
// The relay under a causal mask (turns.cuh): sections of the grid walk upwards from the diagonal and downwards in turn; the last walks downwards.
constexpr bool UPWARDS = FG_DET && FG_CAUSAL && !FG_WINDOW;
// What a CTA works on: one kv tile for `heads_item` consecutive query heads of one kv head.
struct Tile {
  i32 b, h0, h_kv, kv0;
  i32 len_q, len_kv;
  i32 lo, hi;  // q tiles [lo, hi), walked once per head
  bool up;     // upwards, else downwards (UPWARDS)
  u32 item;    // place in the grid
  Band band;

  // The i-th q tile of the walk. PAIR: of each two, the CTA of the even kv tile takes the second first, the other one the first.
  FG_DEV i32 q_tile(i32 i) const {
    if (PAIR) return hi - 2 - (i & ~1) + ((i ^ (kv0 / TK) ^ 1) & 1);
    return UPWARDS && up ? lo + i : hi - 1 - i;
  }
};
struct Shape {
  i32 heads_q, heads_item, group, s_q, s_kv, interleave;
  const i32 *seq_q, *seq_kv;
  i32 bottom_right, left, right;
};
// CTA order: `interleave` head groups take turns, then the kv tile ascends; that is a section of the grid. Under a causal mask the longest work then comes
// first, and the heads in flight stay few enough for their Q, dO and dQ to live in L2.
FG_DEV Tile make_tile(const Shape& s, u32 item, u32 items) {
  Tile t;
  // A cluster counts as one CTA with a tile as long as those of its CTAs together.
  const u32 block = item / CLUSTER, rank = item % CLUSTER;
  const u32 tiles = (u32)ceil_div(s.s_kv, CLUSTER * TK), hs = (u32)(s.heads_q / s.heads_item), all = items / CLUSTER / tiles, fit = (u32)s.interleave;
  const u32 g = block / (tiles * fit), r = block - g * tiles * fit, n = min2(fit, all - g * fit);
  const u32 nth = r / n, bh = g * fit + (r - nth * n);
  // The first section as well where they are odd in number: all its CTAs start together.
  const u32 behind = (all - 1) / fit - g;
  t.up = UPWARDS && (behind % 2 == 1 || (g == 0 && behind != 0));
  const u32 tile = UPWARDS && t.up ? tiles - 1 - nth : nth;
  t.item = item;
  t.b = (i32)(bh / hs);
  t.h0 = (i32)(bh - (u32)t.b * hs) * s.heads_item;
  t.h_kv = t.h0 / s.group;
  t.kv0 = (i32)(tile * CLUSTER + rank) * TK;
  t.len_q = FG_PADDED ? seq_len(s.seq_q, t.b, s.s_q) : s.s_q;
  t.len_kv = FG_PADDED ? seq_len(s.seq_kv, t.b, s.s_kv) : s.s_kv;
  t.band = make_band(s.bottom_right, t.len_q, t.len_kv, s.left, s.right);
  t.lo = q_first<FG_CAUSAL>(t.band, t.kv0) / TQ;
  t.hi = t.kv0 < t.len_kv ? ceil_div(q_end<FG_WINDOW>(t.band, min2(t.kv0 + TK, t.len_kv) - 1, t.len_q), TQ) : 0;
  // Both CTAs walk the q tiles that either meets, two at a time; rows that a causal mask hides from one are dead there.
  if (PAIR) {
    const i32 kv0 = t.kv0 & ~TK;
    t.lo = q_first<FG_CAUSAL>(t.band, kv0) / TQ & ~1;
    t.hi = kv0 < t.len_kv ? (ceil_div(t.len_q, TQ) + 1) & ~1 : 0;
  }
  return t;
}

// Position in the Q and dO rings.
struct Ring {
  u32 s, ph;
  FG_DEV u32 slot_do() const { return ST_DO == 1 ? 0 : s; }
  FG_DEV u32 parity_do() const { return ST_DO == 1 ? s ^ 1 : ph; }
  FG_DEV void next() {
    if (++s == ST) {
      s = 0;
      ph ^= 1;
    }
  }
};

}  // namespace fg
