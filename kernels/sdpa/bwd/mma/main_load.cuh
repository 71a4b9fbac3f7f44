// The helper warps. `producer` issues every TMA load; `stats` turns LSE and delta rows into the numbers the math warps use; `dq_warp`
// brings dQ to global memory and passes the turn in deterministic mode. All walk the q tiles in the math warps' order; the first two wait for the "free"
// barriers, so they run ahead by the ring depth.
#pragma once
#include "sdpa/bwd/mma/main_config.cuh"

namespace fg {

template <int D> FG_DEV void load_tile(u32 dst, u32 tile_rows, const TensorMap* map, u32 bar, i32 row, i32 head, i32 batch) {
#pragma unroll
  for (int c = 0; c < D / CH; c++) tma_load_4d(dst + c * tile_rows * CH * 2, map, bar, c * CH, row, head, batch);
}

// One elected lane. Runs before griddepcontrol.wait on purpose: it reads only the call's inputs (see the chain rule in ptx.cuh).
FG_DEV void producer(u32 smem, const Work& w, const TensorMap* tm_q, const TensorMap* tm_k, const TensorMap* tm_v, const TensorMap* tm_do,
                     i32 row_q, i32 row_k, i32 row_v, i32 row_do) {
  const i32 batch = FG_THD ? 0 : w.b;
  mbar_expect(smem + BAR_KV, K_BYTES + V_BYTES);
  load_tile<DQK>(smem + OFF_K, TK, tm_k, smem + BAR_KV, row_k + w.kv0, w.h_kv, batch);
  load_tile<DV>(smem + OFF_V, TK, tm_v, smem + BAR_KV, row_v + w.kv0, w.h_kv, batch);
  u32 qs = 0, qp = 1, os = 0, op = 1;  // parity 1 on a fresh barrier passes: the buffers start free
#pragma unroll 1
  for (i32 qb = w.qb_hi - 1; qb >= w.qb_lo; qb--) {
    mbar_wait(smem + BAR_Q_FREE + 8 * qs, qp);
    mbar_expect(smem + BAR_Q_FULL + 8 * qs, Q_BYTES);
    load_tile<DQK>(smem + OFF_Q + qs * Q_BYTES, TQ, tm_q, smem + BAR_Q_FULL + 8 * qs, row_q + qb * TQ, w.h, batch);
    mbar_wait(smem + BAR_DO_FREE + 8 * os, op);
    mbar_expect(smem + BAR_DO_FULL + 8 * os, DO_BYTES);
    load_tile<DV>(smem + OFF_DO + os * DO_BYTES, TQ, tm_do, smem + BAR_DO_FULL + 8 * os, row_do + qb * TQ, w.h, batch);
    if (++qs == QS) qs = 0, qp ^= 1;
    if (++os == OS) os = 0, op ^= 1;
  }
}

// One warp. Row r of stage s holds (lse * log2e, -delta). Dead rows (past len_q, or LSE = -inf because no key was kept) get
// (+inf, 0): exp2(s - inf) = 0 makes P exactly 0 there whatever the caller left in LSE, so no mask is needed on the q axis.
FG_DEV void stats(u32 smem, const Work& w, const float* lse, i64 lse_ss, const float* delta, u32 lane) {
  u32 qs = 0, qp = 1;
  constexpr int R = TQ / 32;
#pragma unroll 1
  for (i32 qb = w.qb_hi - 1; qb >= w.qb_lo; qb--) {
    float l[R], d[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
      const i32 row = qb * TQ + 32 * r + (i32)lane;
      l[r] = __int_as_float(0x7f800000);
      d[r] = 0.f;
      if (row < w.len_q) {
        // Tested after the product: a sink of -3e38 leaves a finite LSE on a row without keys, and times log2e it is -inf.
        const float x = ldg_f32(lse + (i64)row * lse_ss) * LOG2E;
        if (x != __int_as_float(0xff800000)) l[r] = x;
        d[r] = -ldg_f32(delta + row);
      }
    }
    mbar_wait(smem + BAR_Q_FREE + 8 * qs, qp);
    const u32 dst = smem + OFF_STATS + qs * (TQ * 8) + lane * 8;
#pragma unroll
    for (int r = 0; r < R; r++) sts_f32x2(dst + r * 256, l[r], d[r]);
    fence_cta();  // not left to in-order execution, for the reason given at `release`; this warp runs ahead, it costs nothing
    __syncwarp();
    if (lane == 0) mbar_arrive(smem + BAR_Q_FULL + 8 * qs);
    if (++qs == QS) qs = 0, qp ^= 1;
  }
}

// One lane: everything about dQ that waits, so that no math warp has to.
// FG_DQ_BULK: adds each staged dQ tile to dq_accum with the bulk engine. red instructions share the load/store path with the math
// warps' ldmatrix and cost 5-16 % of the kernel there (H200: d128 64x128 3527 -> 3142 us without them).
// FG_DET=1: passes the turn. The CTAs of one (batch, head) add to a q tile one after the other in ascending kv order; the awaited CTA
// has a lower blockIdx.x, so it is resident or done. The release has to drain the adds (1400-2700 clk): in a math warp that stalled all
// eight at their next barrier (1.3-1.7x).
constexpr bool DQ_WARP = DQ_BULK || FG_DET == 1;
FG_DEV void dq_warp(u32 smem, const Work& w, float* dq, i32* turns) {
  u32 ph = 0;
#pragma unroll 1
  for (i32 qb = w.qb_hi - 1; qb >= w.qb_lo; qb--) {
    const i32 mine = FG_DET == 1 ? w.kv_tile - kv_tile_first<FG_WINDOW, TK>(w.band, qb * TQ) : 0;
    if (FG_DET == 1)
      while (ld_acquire(turns + qb) != mine) {
      }
    if (!DQ_BULK) mbar_arrive(smem + BAR_DQ_GO);
    mbar_wait(smem + BAR_DQ_FULL, ph);
    if (DQ_BULK) {
      bulk_add(dq + (i64)(qb * TQ) * DQK, smem + OFF_DQ, DQ_BYTES);
      tma_commit();
      tma_wait_read<0>();
      mbar_arrive(smem + BAR_DQ_FREE);
    }
    if (FG_DET == 1) {
      if (DQ_BULK) {
        tma_wait_all<0>();
        fence_async_global();
      }
      st_release(turns + qb, mine + 1);
    }
    ph ^= 1;
  }
  if (DQ_BULK) tma_wait_all<0>();
}

}  // namespace fg
