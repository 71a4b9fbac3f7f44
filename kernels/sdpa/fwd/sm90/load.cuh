// The loading warpgroup: one lane issues every TMA load. It walks the same tiles in the same order as the math warpgroups and runs ahead of
// them by what the rings hold, into the next tile of queries too.
#pragma once
#include "sdpa/fwd/sm90/config.cuh"

namespace fg {

// A place in a ring of N buffers: index and the parity of its barrier.
template <int N> struct Ring {
  u32 at = 0, parity = 0;
  FG_DEV void next() {
    if (++at == N) at = 0, parity ^= 1;
  }
  FG_DEV void skip(u32 n) {
    const u32 sum = at + n;
    parity ^= sum / N & 1;
    at = sum % N;
  }
};

template <int D, int ROWS> FG_DEV void load_tile(u32 dst, const TensorMap* map, u32 bar, i32 row, i32 head, i32 batch, u64 policy) {
#pragma unroll
  for (int c = 0; c < D / CH; c++) tma_load_4d(dst + c * ROWS * CH * 2, map, bar, c * CH, row, head, batch, policy);
}

// A kv tile, half of its keys by each CTA of a cluster.
template <int D> FG_DEV void load_keys(u32 dst, const TensorMap* map, u32 bar, i32 key, i32 head, i32 batch) {
  if constexpr (CLUSTER == 2) {
    constexpr i32 HALF = TK / 2;
    const i32 row = HALF * (i32)cluster_rank();
#pragma unroll
    for (int c = 0; c < D / CH; c++) tma_load_4d_to_both(dst + (c * TK + row) * (CH * 2), map, bar, c * CH, key + row, head, batch, L2_EVICT_LAST);
  } else {
    load_tile<D, TK>(dst, map, bar, key, head, batch, L2_EVICT_LAST);
  }
}

// First tokens of a packed sequence on Q, K and V; zeros otherwise.
struct Origin {
  i32 q, k, v;
};

// Waiting for a buffer to be free with the inverted parity: fresh barriers let the first pass through.
struct Loader {
  u32 smem;
  bool thd;
  i32 tokens, group;  // packed: tokens that 64 rows hold, heads of a token
  const TensorMap *tm_q, *tm_k, *tm_v;
  Ring<1> q;
  Ring<STAGES> k;
  Ring<V_STAGES> v;

  static constexpr bool HALVES = ROW_GROUPS == 2;
  bool begun = false;

  // Of the blocks of 64 rows of Q those from `from` to `to`.
  FG_DEV void load_q(const Work& w, i32 origin, int from, int to) {
#pragma unroll
    for (int g = from; g < to; g++) {
      const u32 dst = smem + OFF_Q + g * Q_BYTES, full = smem + BAR_Q_FULL + 8 * g;
      mbar_wait(smem + BAR_Q_FREE + 8 * g, q.parity ^ 1);
      if (PACK) {
        mbar_expect(full, (u32)(tokens * group) * (DQK * 2));
#pragma unroll
        for (int c = 0; c < DQK / CH; c++)
          tma_load_4d(dst + c * 64 * CH * 2, tm_q, full, c * CH, w.h, origin + w.row0 + tokens * g, thd ? 0 : w.b, L2_EVICT_FIRST);
      } else {
        mbar_expect(full, Q_BYTES);
        load_tile<DQK, 64>(dst, tm_q, full, origin + w.row0 + 64 * g, w.h, thd ? 0 : w.b, L2_EVICT_FIRST);
      }
    }
    if (to == ROW_GROUPS) q.next();
  }
  FG_DEV void load_k(const Work& w, i32 origin, i32 n) {
    mbar_wait(smem + BAR_K_FREE + 8 * k.at, k.parity ^ 1);
    mbar_expect(smem + BAR_K_FULL + 8 * k.at, K_BYTES);
    load_keys<DQK>(smem + OFF_K + k.at * K_BYTES, tm_k, smem + BAR_K_FULL + 8 * k.at, origin + n * TK, w.h_kv, thd ? 0 : w.b);
    k.next();
  }
  FG_DEV void load_v(const Work& w, i32 origin, i32 n) {
    mbar_wait(smem + BAR_V_FREE + 8 * v.at, v.parity ^ 1);
    mbar_expect(smem + BAR_V_FULL + 8 * v.at, V_BYTES);
    load_keys<DV>(smem + OFF_V + v.at * V_BYTES, tm_v, smem + BAR_V_FULL + 8 * v.at, origin + n * TK, w.h_kv, thd ? 0 : w.b);
    v.next();
  }
  // K runs ahead of V by what the math warpgroups take together: S of a tile and O of the one before it, of each warpgroup where keys are split.
  FG_DEV void run(const Work& w, const Origin& at) {
    const Span& s = w.keys;
    if (s.n_hi <= s.n_lo) return;
    // A CTA begins when half of Q and a tile of K are there. Later Q is free long before they are needed.
    const bool keys_first = HALVES && !begun;
    begun = true;
    load_q(w, at.q, 0, HALVES ? 1 : ROW_GROUPS);
    if (HALVES && !keys_first) load_q(w, at.q, 1, ROW_GROUPS);
#pragma unroll 1
    for (i32 n = s.n_hi - 1 + STEP; n >= s.n_lo; n--) {
      if (n - STEP >= s.n_lo) load_k(w, at.k, n - STEP);
      if (keys_first && n == s.n_hi - 1 + STEP) load_q(w, at.q, 1, ROW_GROUPS);
      if (n < s.n_hi) load_v(w, at.v, n);
    }
  }
};

}  // namespace fg
