// What every math loop of this kernel is made of: what it keeps of the work description, descriptor steps, the masks on the transposed scores.
#pragma once
#include "sdpa/bwd/sm90/config.cuh"
#include "sdpa/bwd/sm90/stats.cuh"

namespace fg {

constexpr int NS = TQ / 2;                     // accumulator registers of S^T
// Order 4 takes a q tile in two halves of its rows.
constexpr int PARTS = FG_ORDER == 4 ? 2 : 1, PQ = TQ / PARTS, NP = PQ / 2;
constexpr u32 QCH = TQ * 128, KCH = TK * 128;  // bytes from one 64-column chunk to the next

// Descriptor units from a K-major tile to its k step of 16 columns.
FG_DEV constexpr u32 kstep(int k, u32 chunk) { return (k >> 2) * (chunk >> 4) + (k & 3) * 2; }
// A base that the compiler cannot fold with the k steps: folded, each step costs two more instructions.
FG_DEV u64 at_buffer(u64 base, u32 offset) {
  base += offset >> 4;
  asm volatile("" : "+l"(base));
  return base;
}

// What feeds dV: P itself. A chain that feeds something else (qat/bwd/sm90) defines FG_P_SINK, a type of the same shape, before it includes main.cu.
// `put` gets 8 columns of P after their exponentials, `finish` the whole tile once dS is written. BLOCKWISE: nothing is left to `finish`, which may then
// not be called.
struct PlainP {
  static constexpr bool BLOCKWISE = true;
  static constexpr bool CHAIN_INPUTS = false;  // true: the maps of Q, K, V show what main's direct predecessor writes
  FG_DEV void put(const float (&s)[NS], u32 (&p)[NS / 2], int j) {
    p[2 * j] = pack2<BF16>(s[4 * j], s[4 * j + 1]);
    p[2 * j + 1] = pack2<BF16>(s[4 * j + 2], s[4 * j + 3]);
  }
  FG_DEV void finish(const float (&)[NS], u32 (&)[NS / 2], u32) {}
};
#ifndef FG_P_SINK
#define FG_P_SINK fg::PlainP
#endif
using PSink = FG_P_SINK;

// All that the loop over a kv tile's q tiles keeps of the work description: everything else would have to live beside 240 registers.
struct Walk {
  float* dq;             // this thread's first four floats of the current tile's dQ
  i64 head_jump;         // floats from a head's last tile to the next head's first
  i32 qb, first_qb, last_qb;  // current q tile; those with which a head begins and ends
  i32 n;                 // tiles in all
  i32 edge_lo, edge_hi;  // tiles whose first row is below / above these straddle a mask edge
  i32 first, last;       // row q0 keeps keys kv0 + x with x <= q0 - first and x >= q0 - last
  i32 keys;              // valid keys of the kv tile
#if FG_BIAS
  i32 h;                 // current query head
#endif
};
FG_DEV Walk make_walk(const Tile& t, i32 heads, i32 ws_rows, float* dq) {
  Walk w;
  w.qb = w.first_qb = t.q_tile(0), w.last_qb = t.q_tile(t.hi - 1 - t.lo);
  // PAIR: dQ of the second of each two.
  const i32 first_dq = PAIR ? t.q_tile(1) : w.first_qb, last_dq = PAIR ? t.q_tile(t.hi - 1 - t.lo) : w.last_qb;
  w.dq = dq + (i64)first_dq * TQ * DQK;
  w.head_jump = ((i64)ws_rows + (first_dq - last_dq) * TQ) * DQK;
  w.n = heads * (t.hi - t.lo);
  w.keys = t.len_kv - t.kv0;
  w.first = t.kv0 - t.band.diag - t.band.right;
  w.last = t.kv0 - t.band.diag + t.band.left;
  w.edge_lo = w.keys < TK ? 0x7fffffff : FG_CAUSAL ? w.first + TK - 1 : -1;
  w.edge_hi = FG_WINDOW ? w.last - (PQ - 1) : 0x7fffffff;
#if FG_BIAS
  w.h = t.h0;
#endif
  return w;
}

FG_DEV void next_tile(Walk& w) {
  if (w.qb == w.last_qb) {
    w.qb = w.first_qb;
    w.dq += w.head_jump;
#if FG_BIAS
    w.h++;
#endif
  } else {
    const i32 step = UPWARDS && w.first_qb < w.last_qb ? 1 : -1;
    w.qb += step;
    w.dq += step * (TQ * DQK);
  }
}

// From the second of two q tiles to the first of the next two (PAIR).
FG_DEV void next_two(Walk& w, i32 rank) {
  if (w.qb == w.last_qb) {
    w.qb = w.first_qb;
    w.dq += w.head_jump;
  } else {
    w.qb -= 1 + 2 * rank;
    w.dq -= 2 * TQ * DQK;
  }
}

// Dead scores of one warpgroup's fragment of S^T (wgmma.cuh; 2 N columns) become what exp2 turns into 0. q0: first row; row: this lane's first key in the
// kv tile.
template <int N> FG_DEV void mask_scores(float (&s)[N], const Walk& w, i32 q0, u32 row, u32 lane, float sl2) {
  bool edge = q0 < w.edge_lo;
  if (FG_WINDOW) edge |= q0 > w.edge_hi;
  if (!edge) return;
  const float dead = __int_as_float(sl2 > 0.f ? 0xff800000 : 0x7f800000);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const i32 key = (i32)row + 8 * h, q = q0 + 2 * (i32)(lane & 3);
    // columns first .. last of this row are kept
    i32 first = FG_CAUSAL ? key + w.first - q : -2 * N;
    const i32 last = FG_WINDOW ? key + w.last - q : 4 * N;
    if (key >= w.keys) first = 2 * N;
    asm volatile("" : "+r"(first));  // else ptxas turns the branch into selects that every tile pays for
#pragma unroll
    for (int j = 0; j < N / 4; j++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        bool out = 8 * j + e < first;
        if (FG_WINDOW) out |= 8 * j + e > last;
        s[4 * j + 2 * h + e] = out ? dead : s[4 * j + 2 * h + e];
      }
  }
}
template <int N> FG_DEV void mask_scores(float (&s)[N], const Walk& w, u32 row, u32 lane, float sl2) {
  mask_scores(s, w, w.qb * TQ, row, lane, sl2);
}

}  // namespace fg
