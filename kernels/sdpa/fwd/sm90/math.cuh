// A math warpgroup: 64 query rows against every kv tile that they see. S of tile n and O of tile n + 1 go to the tensor core together, the softmax of
// tile n runs under the latter and under the other warpgroups' products. Warpgroups are bound to each other by the rings only: making them take
// turns at issuing was measured and gains nothing.
#pragma once
#include "sdpa/fwd/sm90/load.cuh"
#include "sdpa/fwd/sm90/softmax.cuh"

namespace fg {

struct Math {
  u32 smem, group, lane, warp;  // warp of the warpgroup
  u32 desc_q, desc_k, desc_v;   // low words of the descriptors: the high word never changes
  float mul;                    // scores to log2 units
  Ring<STAGES> k, v;
  Rows r;
  i32 at[2];                    // row + diag of this lane's rows

  Span keys;                    // of this warpgroup's rows

  FG_DEV bool elected() const { return lane == 0; }

  static FG_DEV u64 whole(u32 low) { return (u64)(64u | 1u << 30) << 32 | low; }

  // S = Q K^T, one committed group.
  FG_DEV void scores(float (&s)[S_REGS]) const {
    u32 qd = desc_q;
    opaque(qd);  // a dozen descriptors hoisted out of the loop cost spilled uniform registers from d 192 on
    const u32 kd = desc_k + k.at * (K_BYTES / 16);
    pin(s);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < DQK / 16; i++)
      Wgmma<BF16, TK>::ss(s, whole(qd + (i / 4) * (64 * 8) + (i % 4) * 2), whole(kd + (i / 4) * (TK * 8) + (i % 4) * 2), i != 0);
    wgmma_commit();
  }
  // O += P V, one committed group.
  FG_DEV void values(float (&o)[O_REGS], u32 (&p)[P_REGS]) const {
    const u32 vd = desc_v + v.at * (V_BYTES / 16);
    pin(o);
    pin(p);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < TK / 16; i++) Wgmma<BF16, DV, 1>::rs(o, p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3], whole(vd + i * 128), 1);
    wgmma_commit();
  }
  FG_DEV void free_k() {
    if (elected()) mbar_arrive(smem + BAR_K_FREE + 8 * k.at);
    k.next();
  }
  FG_DEV void free_v() {
    if (elected()) mbar_arrive(smem + BAR_V_FREE + 8 * v.at);
    v.next();
  }
  // Rows of V that no row of the CTA keeps: P is 0 there, but 0 times a caller's NaN is not. Every warpgroup writes the zeros itself before it reads.
  FG_DEV void clean_v(const Work& w, i32 n, u32 stage, u32 parity) const {
    const i32 below = w.keys.k_lo - n * TK, above = w.keys.k_hi - n * TK;
    if (below <= 0 && above >= TK) return;
    mbar_wait(smem + BAR_V_FULL + 8 * stage, parity);
    const u32 tile = smem + OFF_V + stage * V_BYTES, unit = threadIdx.x % 8 * 16;
#pragma unroll 1
    for (i32 row = (i32)(threadIdx.x % 128 / 8); row < TK; row += 16)
      if (row < below || row >= above)
#pragma unroll
        for (int c = 0; c < DV / CH; c++) sts_v4(tile + c * (TK * 128) + row * 128 + unit, 0, 0, 0, 0);
    fence_async_smem();
    bar_sync_at<128>(NB_OWN + group);
  }

  FG_DEV bool is_edge(i32 n) const { return n >= keys.full_hi || (FG_WINDOW && n < keys.full_lo); }

  // The first tile of a row block: S alone.
  FG_DEV void first(const Work& w, i32 n, u32 (&p)[P_REGS]) {
    float s[S_REGS], alpha[2];
    mbar_wait(smem + BAR_K_FULL + 8 * k.at, k.parity);
    scores(s);
    wgmma_wait<0>();
    pin(s);
    free_k();
    if (is_edge(n)) {
      mask_scores(s, at, w.band, w.len_kv, n * TK + 2 * (i32)(lane & 3));
      clean_v(w, n, v.at, v.parity);
    }
    softmax_exact(s, p, r, mul, alpha);
  }
  // S of tile n and O of tile n + 1.
  FG_DEV void step(const Work& w, i32 n, float (&o)[O_REGS], u32 (&p)[P_REGS], u32 (&p_new)[P_REGS]) {
    float s[S_REGS], alpha[2];
    mbar_wait(smem + BAR_K_FULL + 8 * k.at, k.parity);
    scores(s);
    mbar_wait(smem + BAR_V_FULL + 8 * v.at, v.parity);
    values(o, p);
    wgmma_wait<1>();
    pin(s);
    free_k();
    const bool edge = is_edge(n);
    if (edge) mask_scores(s, at, w.band, w.len_kv, n * TK + 2 * (i32)(lane & 3));
    const bool scale_o = edge || !softmax_lazy(s, p_new, r, mul);
    if (scale_o) softmax_exact(s, p_new, r, mul, alpha);
    wgmma_wait<0>();
    pin(o);
    free_v();
    if (scale_o) {
#pragma unroll
      for (int j = 0; j < O_REGS; j++) o[j] *= alpha[j / 2 % 2];
    }
    if (edge) clean_v(w, n, v.at, v.parity);
  }
  // O of the last tile.
  FG_DEV void last(float (&o)[O_REGS], u32 (&p)[P_REGS]) {
    mbar_wait(smem + BAR_V_FULL + 8 * v.at, v.parity);
    values(o, p);
    wgmma_wait<0>();
    pin(o);
    free_v();
  }
  FG_DEV void free_q() const {
    if (elected()) mbar_arrive(smem + BAR_Q_FREE + 8 * group);
  }

  // A tile that only other warpgroups see. Its arrival is waited for, so that each phase of a barrier has one arrival a warp.
  FG_DEV void skip() {
    mbar_wait(smem + BAR_K_FULL + 8 * k.at, k.parity);
    free_k();
    mbar_wait(smem + BAR_V_FULL + 8 * v.at, v.parity);
    free_v();
  }
  // All tiles of the CTA's rows, in the loader's order.
  FG_DEV void run(const Work& w, float (&o)[O_REGS]) {
    i32 n = w.keys.n_hi;
    const bool some = keys.n_hi > keys.n_lo;
#pragma unroll 1
    while (n > (some ? keys.n_hi : w.keys.n_lo)) skip(), n--;
    if (some) {
      visible(w, o);
#pragma unroll 1
      for (n = keys.n_lo; n > w.keys.n_lo; n--) skip();
    } else {
      free_q();
    }
  }
  // The tiles that this warpgroup's rows see. Two tiles a turn: P of one is read by the tensor core while P of the next is written, and ptxas takes a copy between
  // the two for a write under way.
  FG_DEV void visible(const Work& w, float (&o)[O_REGS]) {
    u32 p[P_REGS], q[P_REGS];
    i32 n = keys.n_hi - 1;
    first(w, n, p);
#pragma unroll 1
    while (true) {
      if (--n < keys.n_lo) {
        free_q();
        last(o, p);
        break;
      }
      step(w, n, o, p, q);
      if (--n < keys.n_lo) {
        free_q();
        last(o, q);
        break;
      }
      step(w, n, o, q, p);
    }
  }
};

}  // namespace fg
