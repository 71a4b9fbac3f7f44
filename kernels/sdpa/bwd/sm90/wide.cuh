// The two math warpgroups at head dims above 128. dK and dV of 64 keys fill 128 registers of all 256 threads, so each warpgroup owns all keys of the
// tile for its share of the columns of dV, dK and dQ, and the scores are divided by product instead: the first warpgroup (R = 0) computes S^T and P^T,
// the second (R = 1) dP^T and dS^T. Each keeps its own result in registers as an operand and hands it to the other through shared memory.
//
//   S^T = K Q^T;  P = exp2(scale log2e S - lse log2e);  dP^T = V dO^T;  dS = P o (dP - delta)
//   dV += P^T dO;  dK += dS^T Q;  dQ = dS K, added to memory as it leaves the accumulators
//
// The first runs one tile ahead. Buffers of P and dS need no barrier of their own against overwriting: P(i + 2) waits for Q(i + 2), which is loaded
// after both have freed Q(i), that is after dV(i), dK(i) and dQ(i); dS(i + 2) waits for P(i + 2), stored after the first warpgroup's dQ(i).
#pragma once
#include "common/hopper.cuh"
#include "common/wgmma.cuh"
#include "sdpa/bwd/sm90/config.cuh"
#include "sdpa/bwd/sm90/pieces.cuh"
#if FG_BIAS
#include "sdpa/bwd/sm90/bias.cuh"
#endif

namespace fg {

// Two packed numbers, lower half first.
FG_DEV void unpack2(u32 x, float& lo, float& hi) {
  if (BF16) {
    lo = __uint_as_float(x << 16), hi = __uint_as_float(x & 0xffff0000u);
  } else {
    lo = unpack1<BF16>((u16)x), hi = unpack1<BF16>((u16)(x >> 16));
  }
}

template <int R> struct Wide {
  // 64-column chunks: first and columns of this warpgroup's share of dK, dV and dQ. Three chunks are parted so that the accumulators are equal.
  static constexpr int K0 = R * 2, KN = DQK == 256 || R == 0 ? 128 : 64;
  static constexpr int V0 = R * (DV == 256 ? 2 : 1), VN = DV == 256 || R == 1 ? 128 : 64;
  static constexpr int Q0 = V0, QN = VN;

  u32 smem, warp, lane;  // warp 0..3 in the warpgroup
  float sl2;             // scale * log2e
  u32 ph, turn;          // parity bit of each Q / dO buffer; parity of the relay
  u64 d_n, d_t;          // descriptor bases at shared memory 0: K-major, MN-major
  u32 p_lane, ds_lane;   // this lane's row of the matrices that it stores

  float s[NS], dq[QN / 2], dk[KN / 2], dv[VN / 2];  // s: S^T, or dP^T
  u32 own[NS / 2];                                  // P^T, or dS^T
#if FG_BIAS
  Bias bias, dbias;  // dbias.from: dBias, or null
#endif

  FG_DEV void init(u32 zero, u32 smem_, u32, u32 warp_, u32 lane_, float scale) {
    smem = smem_, warp = warp_, lane = lane_;
    sl2 = scale * LOG2E;
    const u32 at = smem_ + zero;  // `zero`: as in math.cuh
    ph = turn = 0;
    const u64 base = (u64)(((at & 0x3ffff) >> 4) + zero) + ((u64)(64u + (1u << 30) + zero) << 32);
    d_n = base + (1u << 16);
    d_t = base + ((QCH >> 4) << 16);
    static_assert(!WIDE || QCH == KCH, "one chunk distance");
    const u32 key = warp * 16 + (lane & 15), q = ((lane >> 4) & 1) * 8 + (lane & 7);
    p_lane = smem + OFF_P + key * 128 + (((lane >> 4) ^ (key & 7)) << 4);
    ds_lane = smem + OFF_DS + q * 128 + (((2 * warp + ((lane >> 3) & 1)) ^ (q & 7)) << 4);
  }
  FG_DEV void clear() {
#pragma unroll
    for (int i = 0; i < KN / 2; i++) dk[i] = 0.f;
#pragma unroll
    for (int i = 0; i < VN / 2; i++) dv[i] = 0.f;
    pin(dk), pin(dv);
  }

  static FG_DEV u32 at_do(u32 at) { return ST_DO == 1 ? 0 : at; }

  // ---- products: issue and commit; at: buffer ----
  // S^T (DP = 0) or dP^T.
  template <int DP> FG_DEV void issue_scores(float (&to)[NS], u32 at) {
    constexpr int D = DP ? DV : DQK;
    const u64 a = at_buffer(d_n, DP ? OFF_V : OFF_K), b = at_buffer(d_n, DP ? OFF_DO + at_do(at) * DO_BYTES : OFF_Q + at * Q_BYTES);
    pin(to), wgmma_fence();
#pragma unroll
    for (int k = 0; k < D / 16; k++) Wgmma<BF16, TQ>::ss(to, a + kstep(k, KCH), b + kstep(k, QCH), k != 0);
    wgmma_commit();
  }
  FG_DEV void issue_dv(u32 at) {
    const u64 do_t = at_buffer(d_t, OFF_DO + V0 * QCH + at_do(at) * DO_BYTES), p = at_buffer(d_n, OFF_P + at * P_BYTES);
    pin(dv), wgmma_fence();
#pragma unroll
    for (int k = 0; k < TQ / 16; k++) {
      if (R == 0)
        Wgmma<BF16, VN, 1>::rs(dv, own[4 * k], own[4 * k + 1], own[4 * k + 2], own[4 * k + 3], do_t + k * 128, 1);
      else
        Wgmma<BF16, VN, 1>::ss(dv, p + k * 2, do_t + k * 128, 1);
    }
    wgmma_commit();
  }
  FG_DEV void issue_dk(u32 at) {
    const u64 q_t = at_buffer(d_t, OFF_Q + K0 * QCH + at * Q_BYTES), ds_t = at_buffer(d_t, OFF_DS + at * DS_BYTES);
    pin(dk), wgmma_fence();
#pragma unroll
    for (int k = 0; k < TQ / 16; k++) {
      if (R == 0)
        Wgmma<BF16, KN, 1, 1>::ss(dk, ds_t + k * 128, q_t + k * 128, 1);
      else
        Wgmma<BF16, KN, 1>::rs(dk, own[4 * k], own[4 * k + 1], own[4 * k + 2], own[4 * k + 3], q_t + k * 128, 1);
    }
    wgmma_commit();
  }
  FG_DEV void issue_dq(u32 at) {
    const u64 ds = at_buffer(d_n, OFF_DS + at * DS_BYTES), k_t = at_buffer(d_t, OFF_K + Q0 * KCH);
    pin(dq), wgmma_fence();
#pragma unroll
    for (int k = 0; k < TK / 16; k++) Wgmma<BF16, QN, 1>::ss(dq, ds + k * 2, k_t + k * 128, k != 0);
    wgmma_commit();
  }

  // ---- element-wise pieces ----
  // S^T -> P^T.
  FG_DEV void softmax(float (&x)[NS], const Walk& w, u32 at) {
    const u32 key = warp * 16 + (lane >> 2);
#if FG_BIAS
    add_bias(x, w, bias, w.qb * TQ, key, lane, sl2);
#endif
    mask_scores(x, w, key, lane, FG_BIAS ? 1.f : sl2);
#pragma unroll
    for (int j = 0; j < TQ / 8; j++) {
      float st[2];
      lds_f32x2(smem + lse_at(at) + (lane & 3) * 8 + j * 32, st[0], st[1]);
#pragma unroll
      for (int e = 0; e < 4; e++) x[4 * j + e] = ex2(FG_BIAS ? x[4 * j + e] + st[e & 1] : fmaf(x[4 * j + e], sl2, st[e & 1]));
    }
  }
  // P as rounded for dV, and what the rounding left: dS wants P itself. The remainder takes the place that the dS of the same keys will take.
  FG_DEV void hand_over_p(u32 at) {
    const u32 to = p_lane + at * P_BYTES, rest_to = ds_lane + at * DS_BYTES;
#pragma unroll
    for (int j = 0; j < TQ / 16; j++) {
      u32 rest[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float* x = s + 8 * j + 2 * i;
        float lo, hi;
        own[4 * j + i] = pack2<BF16>(x[0], x[1]);
        unpack2(own[4 * j + i], lo, hi);
        rest[i] = pack2<BF16>(x[0] - lo, x[1] - hi);
      }
      stsm4(to ^ (j * 32), own[4 * j], own[4 * j + 1], own[4 * j + 2], own[4 * j + 3]);
      stsm4t(rest_to + j * 2048, rest[0], rest[1], rest[2], rest[3]);
    }
    fence_async_smem();
    bar_arrive_at<MATH_THREADS>(NB_P_FULL + at);
  }
  FG_DEV void dsoftmax(const Walk& w, u32 at) {
    const u32 from = p_lane + at * P_BYTES, to = ds_lane + at * DS_BYTES;
#if FG_DBIAS
    const i32 key = (i32)(warp * 16 + (lane >> 2)), q0 = w.qb * TQ + 2 * (i32)(lane & 3), rows = dbias.len_q - q0;
    float* sum = (float*)dbias.from + ((i64)dbias.b * dbias.sb + (i64)w.h * dbias.sh + (i64)q0 * dbias.ss + (dbias.kv0 + key));
#endif
#pragma unroll
    for (int j = 0; j < TQ / 16; j++) {
      u32 p[4], rest[4];
      ldsm4(from ^ (j * 32), p[0], p[1], p[2], p[3]);
      ldsm4t(to + j * 2048, rest[0], rest[1], rest[2], rest[3]);
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const float* dp = s + (2 * j + i) * 4;
        float a, b, x[4], y[4];
        lds_f32x2(smem + delta_at(at_do(at)) + (lane & 3) * 8 + (2 * j + i) * 32, a, b);
        unpack2(p[2 * i], x[0], x[1]), unpack2(rest[2 * i], y[0], y[1]);
        unpack2(p[2 * i + 1], x[2], x[3]), unpack2(rest[2 * i + 1], y[2], y[3]);
#pragma unroll
        for (int e = 0; e < 4; e++) x[e] += y[e];
        x[0] *= dp[0] - a, x[1] *= dp[1] - b, x[2] *= dp[2] - a, x[3] *= dp[3] - b;
#if FG_DBIAS
        add_dbias_block(sum, dbias.ss, rows - 8 * (2 * j + i), key < w.keys, key + 8 < w.keys, x);
#endif
        own[4 * j + 2 * i] = pack2<BF16>(x[0], x[1]);
        own[4 * j + 2 * i + 1] = pack2<BF16>(x[2], x[3]);
      }
      stsm4t(to + j * 2048, own[4 * j], own[4 * j + 1], own[4 * j + 2], own[4 * j + 3]);
    }
    if (ST_DO == 1) {  // the only dO: freed as early as can be
      wgmma_wait<0>(), pin(dv);
      free_do(at);
    }
    fence_async_smem();
    bar_arrive_at<MATH_THREADS>(NB_DS_FULL + at);
    bar_sync<NB_DS_OWN, MATH_THREADS / 2>();
  }
  // This warp's columns of piece I of dQ through its place in the stage: the bulk engine adds them beside the next products. Adds by the math threads
  // stand in the way of everything behind them.
  static constexpr int PIECE = QN / DQ_PIECES;
  template <int I> FG_DEV void stage_dq(u32 part) {
#pragma unroll
    for (int j = 0; j < PIECE / 8; j++) {
      const float* x = dq + I * (PIECE / 2) + 4 * j;
      sts_v4(part + j * 512 + lane * 16, __float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3]));
    }
    fence_async_smem();
    __syncwarp();
  }
  // I of DQ_PIECES.
  template <int I> FG_DEV void add_dq(float* to) {
    if (I >= DQ_PIECES) return;
    if (BULK_DQ) {
      const u32 part = smem + OFF_STAGE + R * 16384 + warp * (PIECE * 64);
      if (lane == 0) tma_wait_read<0>();
      __syncwarp();
      stage_dq<I>(part);
      if (lane == 0) {
        bulk_add(to + I * PIECE * 16, part, PIECE * 64);
        tma_commit();
      }
      return;
    }
    if (FG_DET) mbar_wait(smem + BAR_DQ_GO, turn);
#pragma unroll
    for (int j = 0; j < QN / 8; j++) red_v4(to + j * 128, dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]);
    if (FG_DET) {
      __syncwarp();
      if (lane == 0) mbar_arrive(smem + BAR_DQ_DONE);
      turn ^= 1;
    }
  }
  // The bulk adds of this warp are in memory.
  FG_DEV void drain_dq() {
    if (BULK_DQ && lane == 0) tma_wait_all<0>();
  }
  FG_DEV i32 dq_lane() const { return dq_tile_offset<DQK>((i32)warp, Q0 * 8) + (i32)lane * 4; }

  FG_DEV void wait_q(u32 at) { mbar_wait(smem + BAR_Q_FULL + 8 * at, (ph >> at) & 1); }
  FG_DEV void wait_do(u32 at) { mbar_wait(smem + BAR_DO_FULL + 8 * at_do(at), ST_DO == 1 ? at : (ph >> at) & 1); }
  FG_DEV void free_q(u32 at) {
    if (lane == 0) mbar_arrive(smem + BAR_Q_FREE + 8 * at);
  }
  FG_DEV void free_do(u32 at) {
    if (lane == 0) mbar_arrive(smem + BAR_DO_FREE + 8 * at_do(at));
  }
  // Both of a tile have been waited for.
  FG_DEV void flip(u32 at) { ph ^= 1u << at; }

  // ---- the n q tiles of one kv tile ----
  FG_DEV void loop(Walk w) {
    clear();
    if (BULK_DQ) fence_async_global();  // the zeros that the bulk engine adds to
    if (R == 0)
      loop_p(w);
    else
      loop_ds(w);
    drain_dq();
  }
  FG_DEV void loop_p(Walk w) {
    wait_q(0);
    issue_scores<0>(s, 0);
    wgmma_wait<0>(), pin(s);
    softmax(s, w, 0);
    hand_over_p(0);
    wait_do(0);
    issue_dv(0);
    wgmma_wait<0>(), pin(dv);
    free_do(0), flip(0);
#pragma unroll 1
    for (i32 i = 0; i < w.n - 1; i++) {
      const u32 at = i & 1, nx = at ^ 1;
      float* to = w.dq;
      wait_q(nx);
      issue_scores<0>(s, nx);
      next_tile(w);
      wgmma_wait<0>(), pin(s);
      softmax(s, w, nx);
      hand_over_p(nx);
      bar_sync_at<MATH_THREADS>(NB_DS_FULL + at);
      issue_dk(at);
      issue_dq(at);
      wait_do(nx);
      issue_dv(nx);
      wgmma_wait<2>(), pin(dk);
      free_q(at);
      wgmma_wait<1>(), pin(dq);
      add_dq<0>(to);
      wgmma_wait<0>(), pin(dv);
      free_do(nx), flip(nx);
      add_dq<1>(to);
    }
    const u32 at = (w.n - 1) & 1;
    bar_sync_at<MATH_THREADS>(NB_DS_FULL + at);
    issue_dk(at);
    issue_dq(at);
    wgmma_wait<0>(), pin(dk), pin(dq);
    add_dq<0>(w.dq);
    add_dq<1>(w.dq);
  }
  FG_DEV void loop_ds(Walk w) {
    // The relay wants its adds early: dP of the next tile before them was 4 % slower.
    if (FG_DET) {
#pragma unroll 1
      for (i32 i = 0; i < w.n; i++) {
        const u32 at = i & 1;
        wait_do(at);
        issue_scores<1>(s, at);
        issue_gradients<1>(w, at);
        wgmma_wait<1>(), pin(dq);
        add_dq<0>(w.dq);
        wgmma_wait<0>(), pin(dk);
        free_q(at);
        next_tile(w);
      }
      return;
    }
    wait_do(0);
    issue_scores<1>(s, 0);
    wgmma_wait<0>(), pin(s);
#pragma unroll 1
    for (i32 i = 0; i < w.n - 1; i++) {
      const u32 at = i & 1, nx = at ^ 1;
      issue_gradients<0>(w, at);
      wgmma_wait<1>(), pin(dq);
      add_dq<0>(w.dq);
      wait_do(nx);
      issue_scores<1>(s, nx);
      wgmma_wait<1>(), pin(dk);
      free_q(at);
      add_dq<1>(w.dq);
      next_tile(w);
      wgmma_wait<0>(), pin(s);
    }
    issue_gradients<0>(w, (w.n - 1) & 1);
    wgmma_wait<0>(), pin(dk), pin(dq);
    add_dq<0>(w.dq);
    add_dq<1>(w.dq);
  }
  // From dP^T, which may be under way, to dQ and dK under way and dV complete.
  template <int DP_UNDER_WAY> FG_DEV void issue_gradients(const Walk& w, u32 at) {
    bar_sync_at<MATH_THREADS>(NB_P_FULL + at);
    issue_dv(at);
    if (DP_UNDER_WAY) wgmma_wait<1>(), pin(s);
    dsoftmax(w, at);
    wait_q(at);
    issue_dq(at);
    issue_dk(at);
    if (ST_DO > 1) {
      wgmma_wait<2>(), pin(dv);
      free_do(at);
    }
    flip(at);
  }
};

}  // namespace fg
