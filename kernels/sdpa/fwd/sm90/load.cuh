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
};

template <int D, int ROWS> FG_DEV void load_tile(u32 dst, const TensorMap* map, u32 bar, i32 row, i32 head, i32 batch, u64 policy) {
#pragma unroll
  for (int c = 0; c < D / CH; c++) tma_load_4d(dst + c * ROWS * CH * 2, map, bar, c * CH, row, head, batch, policy);
}

// Waiting for a buffer to be free with the inverted parity: fresh barriers let the first pass through.
struct Loader {
  u32 smem;
  bool thd;
  const TensorMap *tm_q, *tm_k, *tm_v;
  Ring<1> q;
  Ring<STAGES> k, v;

  FG_DEV void load_q(const Work& w, i32 origin) {
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
      mbar_wait(smem + BAR_Q_FREE + 8 * g, q.parity ^ 1);
      mbar_expect(smem + BAR_Q_FULL + 8 * g, Q_BYTES);
      load_tile<DQK, 64>(smem + OFF_Q + g * Q_BYTES, tm_q, smem + BAR_Q_FULL + 8 * g, origin + w.row0 + 64 * g, w.h, thd ? 0 : w.b, L2_EVICT_FIRST);
    }
    q.next();
  }
  FG_DEV void load_k(const Work& w, i32 origin, i32 n) {
    mbar_wait(smem + BAR_K_FREE + 8 * k.at, k.parity ^ 1);
    mbar_expect(smem + BAR_K_FULL + 8 * k.at, K_BYTES);
    load_tile<DQK, TK>(smem + OFF_K + k.at * K_BYTES, tm_k, smem + BAR_K_FULL + 8 * k.at, origin + n * TK, w.h_kv, thd ? 0 : w.b, L2_EVICT_LAST);
    k.next();
  }
  FG_DEV void load_v(const Work& w, i32 origin, i32 n) {
    mbar_wait(smem + BAR_V_FREE + 8 * v.at, v.parity ^ 1);
    mbar_expect(smem + BAR_V_FULL + 8 * v.at, V_BYTES);
    load_tile<DV, TK>(smem + OFF_V + v.at * V_BYTES, tm_v, smem + BAR_V_FULL + 8 * v.at, origin + n * TK, w.h_kv, thd ? 0 : w.b, L2_EVICT_LAST);
    v.next();
  }
  // K one tile ahead of V: the math warpgroups take S of a tile and O of the one before it together.
  FG_DEV void run(const Work& w, i32 row_q, i32 row_k, i32 row_v) {
    const Span& s = w.keys;
    if (s.n_hi <= s.n_lo) return;
    load_q(w, row_q);
    load_k(w, row_k, s.n_hi - 1);
#pragma unroll 1
    for (i32 n = s.n_hi - 1; n >= s.n_lo; n--) {
      if (n > s.n_lo) load_k(w, row_k, n - 1);
      load_v(w, row_v, n);
    }
  }
};

}  // namespace fg
