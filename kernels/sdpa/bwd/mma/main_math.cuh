// The 8 math warps: five GEMMs per q tile, softmax replay folded into GEMM2, dQ output folded into the GEMM after GEMM4.
#pragma once
#include "sdpa/bwd/mma/main_config.cuh"
#include "sdpa/bwd/mma/main_mask.cuh"
#include "sdpa/bwd/mma/main_ops.cuh"

#ifndef FG_P_SINK
#define FG_P_SINK PlainP
#endif

namespace fg {

using PSink = FG_P_SINK;

FG_DEV void math_loop(u32 smem, const Work& w, const Ptrs& g, float scale, u32 warp, u32 lane, float (&dk)[K_MT][DK_NT][4],
                      float (&dv)[V_MT][V_NT][4]) {
  const u32 tid = warp * 32 + lane;
  const u32 sm = warp % SM, sn = warp / SM, km = warp % KW % KM, kn = warp % KW / KM, qm = warp % QM, qn = warp / QM;
  const i32 row_in = 16 * (i32)sm + (i32)(lane >> 2), col0 = w.kv0 + 16 * (i32)sn + 2 * (i32)(lane & 3);

  // exponent factor; a zero scale keeps an exact result (dQ, dK are multiplied by the true scale) without 0 * inf in the mask
  float sl2 = scale * LOG2E;
  if (sl2 == 0.f) sl2 = 1e-37f;
  const float dead = __int_as_float((FG_BIAS || sl2 > 0.f) ? 0xff800000 : 0x7f800000);

  // Lane parts of the operand addresses. K and V share one (same rows, same swizzle), so do Q and dO.
  const u32 b_q = OpQ::lane_base(sm, lane), b_kv = OpK::lane_base(sn, lane) + smem;
  const u32 b_pt = OpPt::lane_base(km, lane), b_dot = OpDOt::lane_base(kn, lane);
  const u32 b_ds = OpDS::lane_base(qm, lane), b_kt = OpKt::lane_base(qn, lane) + smem;
  const u32 b_st = StashS::lane_base(sm, sn, lane);
  const u32 stat_lane = smem + OFF_STATS + (16 * sm + (lane >> 2)) * 8;
  const i32 dq_lane = dq_tile_offset<DQK>(qm, 2 * qn) + (i32)lane * 4;

  // ---- K, V once ----
  mbar_wait(smem + BAR_KV, 0);
  if (FG_PADDED && w.kv0 + TK > w.len_kv) {
    scrub_rows<TK, DQK>(smem + OFF_K, w.len_kv - w.kv0, tid);
    scrub_rows<TK, DV>(smem + OFF_V, w.len_kv - w.kv0, tid);
    bar_sync<NB_MATH, MATH_THREADS>();
  }
  constexpr int KK0 = (DQK - KREG) / 16, VK0 = (DV - VREG) / 16;  // first register-resident k-step
  u32 kreg[KREG / 16 + 1][S_NT][2], vreg[VREG / 16 + 1][S_NT][2];
#pragma unroll
  for (int s = 0; s < KREG / 16; s++) OpK::load_b<S_NT>(b_kv + OFF_K, KK0 + s, kreg[s]);
#pragma unroll
  for (int s = 0; s < VREG / 16; s++) OpK::load_b<S_NT>(b_kv + OFF_V, VK0 + s, vreg[s]);

  // The highest q tile is the only one that can reach past len_q.
  if (FG_PADDED && w.qb_hi * TQ > w.len_q) {
    const i32 first = w.len_q - (w.qb_hi - 1) * TQ;
    mbar_wait(smem + BAR_Q_FULL, 0);
    scrub_rows<TQ, DQK>(smem + OFF_Q, first, tid);
    mbar_wait(smem + BAR_DO_FULL, 0);
    scrub_rows<TQ, DV>(smem + OFF_DO, first, tid);
    bar_sync<NB_MATH, MATH_THREADS>();
  } else if (VREG > 0) {
    bar_sync<NB_MATH, MATH_THREADS>();  // P and dS overwrite the columns of V that now live in registers
  }

  u32 qs = 0, qp = 0, os = 0, op = 0, ps = 0, pp = 1, tp = 0;  // ring positions and parities; tp flips every tile
#pragma unroll 1
  for (i32 qb = w.qb_hi - 1; qb >= w.qb_lo; qb--) {
    // Without this the compiler keeps every swizzled address of the fixed tiles in its own register across the loop (40+) and
    // spills; recomputing one XOR per ldmatrix is free here (the loop is bound by shared memory, not by issue slots).
    u32 l_kv = b_kv, l_kt = b_kt, l_q = b_q, l_pt = b_pt, l_dot = b_dot, l_ds = b_ds, l_st = b_st;
    opaque(l_kv), opaque(l_kt), opaque(l_q), opaque(l_pt), opaque(l_dot), opaque(l_ds), opaque(l_st);
    const u32 s_q = smem + OFF_Q + qs * Q_BYTES, s_do = smem + OFF_DO + os * DO_BYTES;
    const u32 s_p = smem + OFF_P + ps * PT_BYTES, s_ds = smem + OFF_DS + ps * PT_BYTES;

    // ---- GEMM1: S = Q K^T ----
    float s[S_MT][S_NT][4];
    const i32 row0 = qb * TQ + row_in;
    float bz[BIAS_EARLY ? S_MT : 1][BIAS_EARLY ? S_NT : 1][4];
    if (BIAS_EARLY)
      for_scores(row0, col0, [&](int i, int j, int e, i32 q, i32 k) { bz[BIAS_EARLY ? i : 0][BIAS_EARLY ? j : 0][e] = load_bias(g, w, q, k); });
    const float none[S_MT][2] = {};
    mbar_wait(smem + BAR_Q_FULL + 8 * qs, qp);
    gemm<BF16, S_MT, S_NT, DQK / 16, Init::ZERO>(
        s, none, [&](int ks, u32(&a)[S_MT][4]) { OpQ::load_a<S_MT>(s_q + l_q, ks, a); },
        [&](int ks, u32(&b)[S_NT][2]) {
          if (ks < KK0)
            OpK::load_b<S_NT>(l_kv + OFF_K, ks, b);
          else
#pragma unroll
            for (int j = 0; j < S_NT; j++) b[j][0] = kreg[ks < KK0 ? 0 : ks - KK0][j][0], b[j][1] = kreg[ks < KK0 ? 0 : ks - KK0][j][1];
        },
        NoHook{});
    if (FG_BIAS)
      for_scores(row0, col0, [&](int i, int j, int e, i32 q, i32 k) {
        const float bias = BIAS_EARLY ? bz[BIAS_EARLY ? i : 0][BIAS_EARLY ? j : 0][e] : load_bias(g, w, q, k);
        s[i][j][e] = s[i][j][e] * sl2 + bias * LOG2E;
      });
    if (tile_has_edge(w, qb * TQ)) mask_scores(s, w, row0, col0, dead);

    // ---- GEMM2: dP - delta = dO V^T - delta; the exponentials run between its MMAs ----
    float dp[S_MT][S_NT][4], lse2[S_MT][2], ndelta[S_MT][2];
#pragma unroll
    for (int i = 0; i < S_MT; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) lds_f32x2(stat_lane + qs * (TQ * 8) + (16 * SM * i + 8 * h) * 8, lse2[i][h], ndelta[i][h]);
    mbar_wait(smem + BAR_DO_FULL + 8 * os, op);
    if (PS == 1) mbar_wait(smem + BAR_PDS_FREE, pp);
    constexpr int PAIRS = S_MT * S_NT / 2, KS2 = DV / 16;
    PSink sink;
    gemm<BF16, S_MT, S_NT, KS2, Init::ROWS>(
        dp, ndelta, [&](int ks, u32(&a)[S_MT][4]) { OpQ::load_a<S_MT>(s_do + l_q, ks, a); },
        [&](int ks, u32(&b)[S_NT][2]) {
          if (ks < VK0)
            OpK::load_b<S_NT>(l_kv + OFF_V, ks, b);
          else
#pragma unroll
            for (int j = 0; j < S_NT; j++) b[j][0] = vreg[ks < VK0 ? 0 : ks - VK0][j][0], b[j][1] = vreg[ks < VK0 ? 0 : ks - VK0][j][1];
        },
        [&](int ks) {
#pragma unroll
          for (int p = ks * PAIRS / KS2; p < (ks + 1) * PAIRS / KS2; p++) {
            const int i = p / (S_NT / 2), j = p % (S_NT / 2) * 2;
#pragma unroll
            for (int t = 0; t < 2; t++)
#pragma unroll
              for (int e = 0; e < 4; e++) {
                float& x = s[i][j + t][e];
                x = ex2(FG_BIAS ? x - lse2[i][e >> 1] : x * sl2 - lse2[i][e >> 1]);
              }
            sink.put(s_p + l_st, i, j / 2, s[i][j], s[i][j + 1]);
          }
        });

    // ---- dS = P o (dP - delta) ----
#pragma unroll
    for (int i = 0; i < S_MT; i++)
#pragma unroll
      for (int j = 0; j < S_NT; j += 2) {
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
          for (int e = 0; e < 4; e++) dp[i][j + t][e] *= s[i][j + t][e];
        StashS::put<BF16>(s_ds + l_st, i, j / 2, dp[i][j], dp[i][j + 1]);
      }
    sink.finish(s_p + l_st, s);
    if (FG_DBIAS)
      for_scores(qb * TQ + row_in, col0, [&](int i, int j, int e, i32 q, i32 k) {
        if (q < w.len_q && k < w.len_kv) red_f32(g.dbias + ((i64)q * g.dbias_ss + k), dp[i][j][e]);
      });
    if (FG_DET == 2) {
      fence_async_smem();
      if (PS == 2 && tid == 0) tma_wait_read<0>();  // the other buffer's store was issued a whole iteration ago
    }
    bar_sync<NB_MATH, MATH_THREADS>();
    if (FG_DET == 2 && tid == 0) {
#pragma unroll
      for (int c = 0; c < TK / 64; c++) tma_store_3d(g.tm_ds, s_ds + c * TQ * 128, w.kv0 + 64 * c, qb * TQ, w.b_h);
      tma_commit();
    }

    // ---- GEMM4: dQ = dS K, one column part at a time; its output goes to dq_accum by adds or, DQ_BULK, to the staging tile ----
    float dq[Q_MT][P_NT][4];
    const float qz[Q_MT][2] = {}, kz[K_MT][2] = {}, vz[V_MT][2] = {};
    auto gemm4 = [&](int part) {
      gemm<BF16, Q_MT, P_NT, TK / 16, Init::ZERO>(
          dq, qz, [&](int ks, u32(&a)[Q_MT][4]) { OpDS::load_a<Q_MT>(s_ds + l_ds, ks, a); },
          [&](int ks, u32(&b)[P_NT][2]) { OpKt::load_b<P_NT>(l_kt + OFF_K, ks, b, part * P_NT / 2); }, NoHook{});
    };
    float* dq_out = DQ_BULK ? nullptr : g.dq + ((i64)(qb * TQ) * DQK + dq_lane);
    const u32 dq_stage = smem + OFF_DQ + dq_lane * 4;
    auto put_dq = [&](int part, int first, int last) {
#pragma unroll
      for (int t = first; t < last; t++) {
        const float(&c)[4] = dq[t / P_NT][t % P_NT];
        if (DQ_BULK)
          sts_v4(dq_stage + dq_slot(part, t) * 4, __float_as_uint(c[0]), __float_as_uint(c[1]), __float_as_uint(c[2]), __float_as_uint(c[3]));
        else
          red_v4(dq_out + dq_slot(part, t), c[0], c[1], c[2], c[3]);
      }
    };
    // The last part is spread over the next GEMM's k-steps: as one burst, adds fill the load/store path that GEMM's ldmatrix needs.
    constexpr int KS35 = TQ / 16;
    constexpr bool SPREAD = FG_DET != 2 && DQ_FIRST;
    auto spread = [&](int ks) {
      if (SPREAD) put_dq(DQ_PARTS - 1, ks * DQ_TILES / KS35, (ks + 1) * DQ_TILES / KS35);
    };
    // ---- GEMM3: dV += P^T dO, GEMM5: dK += dS^T Q (SPLIT: both here, half of the warps each) ----
    auto gemm3 = [&]() {
      gemm<BF16, V_MT, V_NT, KS35, Init::ACCUMULATE>(
          dv, vz, [&](int ks, u32(&a)[V_MT][4]) { OpPt::load_a<V_MT>(s_p + l_pt, ks, a); },
          [&](int ks, u32(&b)[V_NT][2]) { OpDOt::load_b<V_NT>(s_do + l_dot, ks, b); }, NoHook{});
      release(smem + BAR_DO_FREE + 8 * os, qb, lane);
    };
    auto gemm5 = [&]() {
      const u32 at_a = (SPLIT && warp < 4 ? s_p : s_ds) + l_pt, at_b = (SPLIT && warp < 4 ? s_do : s_q) + l_dot;
      gemm<BF16, K_MT, DK_NT, KS35, Init::ACCUMULATE>(
          dk, kz, [&](int ks, u32(&a)[K_MT][4]) { OpPt::load_a<K_MT>(at_a, ks, a); },
          [&](int ks, u32(&b)[DK_NT][2]) { OpDOt::load_b<DK_NT>(at_b, ks, b); }, spread);
      if (SPLIT) release(smem + BAR_DO_FREE + 8 * os, qb, lane);
      release(smem + BAR_Q_FREE + 8 * qs, qb, lane);
    };
    auto dq_all = [&]() {
#pragma unroll
      for (int part = 0; part < DQ_PARTS; part++) {
        gemm4(part);
        if (part == 0 && DQ_BULK) mbar_wait(smem + BAR_DQ_FREE, tp ^ 1);
        if (part == 0 && FG_DET == 1 && !DQ_BULK) mbar_wait(smem + BAR_DQ_GO, tp);
        if (!SPREAD || part < DQ_PARTS - 1) put_dq(part, 0, DQ_TILES);
      }
    };
    auto dq_done = [&]() {  // hand this warp's share to the dQ warp: staged (bulk), or added (relay)
      if (DQ_BULK) fence_async_smem();
      if (DQ_BULK || FG_DET == 1) {
        __syncwarp();
        if (lane == 0) mbar_arrive(smem + BAR_DQ_FULL);
      }
    };

    if (SPLIT)
      load_fence(qb);
    else
      gemm3();
    if (FG_DET == 2) {
      gemm5();
      if (PS == 1 && tid == 0) tma_wait_read<0>();
    } else if (DQ_FIRST) {
      dq_all();
      load_fence(qb);
      gemm5();
      dq_done();
    } else {  // a single Q (or dO) buffer is free after GEMM5, and its refill hides behind GEMM4
      gemm5();
      load_fence(qb);
      dq_all();
      dq_done();
    }
    if (PS == 1) {
      release(smem + BAR_PDS_FREE, qb, lane);
      pp ^= 1;
    } else {
      ps ^= 1;
    }
    tp ^= 1;
    if (++qs == QS) qs = 0, qp ^= 1;
    if (++os == OS) os = 0, op ^= 1;
  }
  if (FG_DET == 2 && tid == 0) tma_wait_read<0>();
}

}  // namespace fg
