// The two math warpgroups. Scores are kept transposed (keys in M): warpgroup c owns 64 keys, so P^T and dS^T feed dV and dK straight from
// registers, and only dQ, which sums over all keys, needs dS in shared memory.
//
//   S^T = K Q^T;  P = exp2(scale log2e S - lse log2e);  dP^T = V dO^T;  dS = P o (dP - delta)
//   dV += P^T dO;  dK += dS^T Q;  dQ = dS K, added to memory as it leaves the accumulators
#pragma once
#include "common/hopper.cuh"
#include "common/wgmma.cuh"
#include "sdpa/bwd/sm90/config.cuh"
#include "sdpa/bwd/sm90/pieces.cuh"
#if FG_BIAS
#include "sdpa/bwd/sm90/bias.cuh"
#endif

namespace fg {

constexpr int NQ = DQ_T ? TQ / 2 : 32;  // accumulator registers of dQ (64 x 64, or a 64 x TQ block of dQ^T)

struct Math;
FG_DEV void pair_loop(Math& m, Walk w);  // pair.cuh

struct Math {
  static constexpr int K0 = 0, KN = DQK, V0 = 0, VN = DV;  // first 64-column chunk and columns of dK and dV that a warpgroup owns
  u32 smem, wg, warp, lane;  // wg 0, 1; warp 0..3 in it
  float sl2;                 // scale * log2e
  u32 k_off;                 // of this item's buffer of K (STAY)
  u32 ph, turn;              // parity bit of each Q / dO buffer; parity of the relay (FG_STAGED: a bit of each place)
  // Descriptor bases at shared memory 0, every tile a constant away: K-major (d_n; d_kv and d_ds for this warpgroup), MN-major with the chunk distance
  // of Q and dO (d_qt) and of K (d_kt).
  u64 d_n, d_kv, d_qt, d_kt, d_ds;

  float s[NS], dp[NP], dq[NQ], dk[DQK / 2], dv[DV / 2];
  u32 p[NS / 2], ds[NS / 2];
  float st[TQ / 4];  // row statistics in use
  PSink sink;
#if FG_BIAS
  Bias bias;
  u32 ds32;  // parity of the way to dBias
#endif

  FG_DEV void init(u32 zero, u32 smem_, u32 wg_, u32 warp_, u32 lane_, float scale) {
    smem = smem_, wg = wg_, warp = warp_, lane = lane_;
    sl2 = scale * LOG2E;
    // `zero` is a uniform 0 that the compiler does not know: with a known base ptxas builds every descriptor from literals, two moves each.
    const u32 smem = smem_ + zero;
    ph = turn = k_off = 0;
    const u64 base = (u64)(((smem & 0x3ffff) >> 4) + zero) + ((u64)(64u + (1u << 30) + zero) << 32);
    d_n = base + (1u << 16);
    d_kv = d_n + wg * (64 * 128 >> 4);
    d_qt = base + ((QCH >> 4) << 16);
    d_ds = d_n + (OFF_DS >> 4) + (TQ == 128 ? wg * (64 * 128 >> 4) : 0);
    d_kt = base + ((KCH >> 4) << 16) + (OFF_K >> 4) + (TQ != 128 ? wg * (KCH >> 4) : 0);
  }
  FG_DEV void clear() {
#pragma unroll
    for (int i = 0; i < DQK / 2; i++) dk[i] = 0.f;
#pragma unroll
    for (int i = 0; i < DV / 2; i++) dv[i] = 0.f;
    pin(dk), pin(dv);
  }

  // ---- products: issue and commit; at: buffer, i: which half where a tile has halves ----
  FG_DEV static float (&part(float (&x)[NS], int i))[NP] { return *(float(*)[NP])(x + i * NP); }
  FG_DEV void issue_s(u32 at, int i = 0) {
    const u64 k_a = at_buffer(d_kv, OFF_K + k_off), q_b = at_buffer(d_n, OFF_Q + at * Q_BYTES + i * PQ * 128);
    float(&x)[NP] = part(s, i);
    pin(x), wgmma_fence();
#pragma unroll
    for (int k = 0; k < DQK / 16; k++) Wgmma<BF16, PQ>::ss(x, k_a + kstep(k, KCH), q_b + kstep(k, QCH), k != 0);
    wgmma_commit();
  }
  FG_DEV void issue_dp(u32 at, int i = 0) {
    const u64 v_a = at_buffer(d_kv, OFF_V), do_b = at_buffer(d_n, OFF_DO + at * DO_BYTES + i * PQ * 128);
    pin(dp), wgmma_fence();
#pragma unroll
    for (int k = 0; k < DV / 16; k++) Wgmma<BF16, PQ>::ss(dp, v_a + kstep(k, KCH), do_b + kstep(k, QCH), k != 0);
    if constexpr (DELTA_STEP) Wgmma<1, PQ>::ss(dp, ones(), delta_rows(at), 1);
    wgmma_commit();
  }
  // DELTA_STEP, descriptors without swizzle: all groups of 8 keys read the same 8 x 8 of ones, then of zeros; both halves of the k step read the same rows of
  // -delta.
  FG_DEV u64 ones() const { return at_buffer(d_n, 0) + ((OFF_ONES >> 4) + (7u << 16)) - (64ull << 32) - (1ull << 62); }
  FG_DEV u64 delta_rows(u32 at) const { return at_buffer(d_n, at * (TQ * 16)) + (OFF_DELTA >> 4) - (1u << 16) - ((64ull - 8) << 32) - (1ull << 62); }
  FG_DEV void issue_dv(u32 at, int i = 0) {
    const u64 do_t = at_buffer(d_qt, OFF_DO + at * DO_BYTES);
    if (i == 0) pin(dv);
    wgmma_fence();
#pragma unroll
    for (int k = i * PQ / 16; k < (i + 1) * PQ / 16; k++) Wgmma<BF16, DV, 1>::rs(dv, p[4 * k], p[4 * k + 1], p[4 * k + 2], p[4 * k + 3], do_t + k * 128, 1);
    wgmma_commit();
  }
  FG_DEV void issue_dk(u32 at, int i = 0) {
    const u64 q_t = at_buffer(d_qt, OFF_Q + at * Q_BYTES);
    if (i == 0) pin(dk);
    wgmma_fence();
#pragma unroll
    for (int k = i * PQ / 16; k < (i + 1) * PQ / 16; k++) Wgmma<BF16, DQK, 1>::rs(dk, ds[4 * k], ds[4 * k + 1], ds[4 * k + 2], ds[4 * k + 3], q_t + k * 128, 1);
    wgmma_commit();
  }
  FG_DEV void issue_dq(u32 at) {
    const u64 ds = at_buffer(d_ds, at * DS_BYTES);
    [[maybe_unused]] const u64 kt = K_BUFS == 1 ? d_kt : at_buffer(d_kt, k_off);
    pin(dq), wgmma_fence();
#pragma unroll
    for (int k = 0; k < TK / 16; k++)
#if FG_Q_TILE == 48
      Wgmma<BF16, TQ, 0, 1>::ss(dq, d_kt + k * 128, ds + kstep(k, QCH), k != 0);
#else
      Wgmma<BF16, 64, 1>::ss(dq, ds + kstep(k, QCH), kt + k * 128, k != 0);
#endif
    wgmma_commit();
  }
  // The third block of dQ^T, by the warpgroup whose turn it is, beside dK. In the registers of the first, which has been added.
  FG_DEV void third_dq(float* to, u32 at) {
#if FG_Q_TILE == 48
    if (at != wg) return;
    const u64 ds = at_buffer(d_ds, at * DS_BYTES), kt = at_buffer(d_kt, (2 - wg) * KCH);
    pin(dq), wgmma_fence();
#pragma unroll
    for (int k = 0; k < TK / 16; k++) Wgmma<BF16, TQ, 0, 1>::ss(dq, kt + k * 128, ds + kstep(k, QCH), k != 0);
    wgmma_commit();
    wgmma_wait<0>(), pin(dq);
    add_block(to + (8 - 4 * (i32)wg) * (TQ / 8 * 128));
#endif
  }

  // ---- element-wise pieces ----
  // The rows' numbers of each 8-column block. With 48 rows they are loaded before the wait for the product they go with; at 64 rows that was 3-8 %
  // slower, at 128 it does not fit.
  static constexpr bool EARLY_STATS = TQ == 48 && !FG_BIAS;
  FG_DEV void stat(u32 at, int j) { lds_f32x2(smem + at + (lane & 3) * 8 + j * 32, st[2 * j], st[2 * j + 1]); }
  // STATS_AHEAD: the numbers of two blocks at one load. ptxas keeps few loads in flight, and each waits behind the products' reads of shared memory. So the
  // first half of a tile's are loaded before the wait for the product they go with, and a group of the second half once a group of the first is used.
  static constexpr int GROUPS = TQ / 16;
  FG_DEV void stat2(u32 at, int g) {
    u32 x[4];
    lds_v4(smem + at + (lane & 3) * 16 + g * 64, x[0], x[1], x[2], x[3]);
#pragma unroll
    for (int i = 0; i < 4; i++) st[4 * g + i] = __uint_as_float(x[i]);
  }
  FG_DEV void stats_ahead(u32 at) {
#pragma unroll
    for (int g = 0; g < GROUPS / 2; g++) stat2(at, g);
  }
  FG_DEV void stats_behind(u32 at, int j) {
    if (STATS_AHEAD && j % 2 == 1 && j / 2 < GROUPS / 2) stat2(at, j / 2 + GROUPS / 2);
  }
  FG_DEV void early(u32 at) {
    if constexpr (EARLY_STATS) {
#pragma unroll
      for (int j = 0; j < TQ / 8; j++) stat(at, j);
    }
  }
  // S has landed: bias, masks.
  FG_DEV void scores(const Walk& w, int i = 0) {
    const i32 q0 = w.qb * TQ + i * PQ;
    const u32 row = wg * 64 + warp * 16 + (lane >> 2);
#if FG_BIAS
    add_bias(part(s, i), w, bias, q0, row, lane, sl2);
    mask_scores(part(s, i), w, q0, row, lane, 1.f);
#else
    mask_scores(part(s, i), w, q0, row, lane, sl2);
#endif
  }
  // dV of half of the rows is under way while dS of the other half is computed: the tensor core would stand still. P is then packed beside dS. A finer
  // alternation is slower, more steps before any dS do not fit (C7512).
  static constexpr bool DV_IN_HALVES = (FG_ORDER == 2 || PAIR) && !FG_DBIAS && PSink::BLOCKWISE;
  FG_DEV void softmax(u32 at, int i = 0) {
#pragma unroll
    for (int j = i * PQ / 8; j < (i + 1) * PQ / 8; j++) {
      if (!EARLY_STATS && !STATS_AHEAD) stat(lse_at(at), j);
#pragma unroll
      for (int e = 0; e < 4; e++) s[4 * j + e] = ex2(FG_BIAS ? s[4 * j + e] + st[2 * j + (e & 1)] : fmaf(s[4 * j + e], sl2, st[2 * j + (e & 1)]));
      stats_behind(lse_at(at), j);
      if (!DV_IN_HALVES && !LATE) sink.put(s, p, j);
    }
  }
  FG_DEV static float minus(float dp, float delta) { return DELTA_STEP ? dp : dp - delta; }
  // Half of the rows: dS, and P for dV.
  FG_DEV void ds_half(u32 at, int i) {
    const u32 q = ((lane >> 4) & 1) * 8 + (lane & 7), unit = 2 * warp + ((lane >> 3) & 1);  // as in dsoftmax
    const u32 at_lane = smem + OFF_DS + at * DS_BYTES + wg * QCH + q * 128 + ((unit ^ (q & 7)) << 4);
#pragma unroll
    for (int k = i * TQ / 32; k < (i + 1) * TQ / 32; k++) {
      sink.put(s, p, 2 * k), sink.put(s, p, 2 * k + 1);
#pragma unroll
      for (int j = 2 * k; j < 2 * k + 2; j++) {
        if (!DELTA_STEP) stat(delta_at(at), j);
        const float a = DELTA_STEP ? 0.f : st[2 * j], b = DELTA_STEP ? 0.f : st[2 * j + 1];
        ds[2 * j] = pack2<BF16>(s[4 * j] * minus(dp[4 * j], a), s[4 * j + 1] * minus(dp[4 * j + 1], b));
        ds[2 * j + 1] = pack2<BF16>(s[4 * j + 2] * minus(dp[4 * j + 2], a), s[4 * j + 3] * minus(dp[4 * j + 3], b));
      }
      stsm4t(at_lane + k * 2048, ds[4 * k], ds[4 * k + 1], ds[4 * k + 2], ds[4 * k + 3]);
    }
  }
  FG_DEV void issue_dv_half(u32 at, int i) {
    const u64 do_t = at_buffer(d_qt, OFF_DO + at * DO_BYTES);
    if (i == 0) pin(dv);
    wgmma_fence();
#pragma unroll
    for (int k = i * TQ / 32; k < (i + 1) * TQ / 32; k++) Wgmma<BF16, DV, 1>::rs(dv, p[4 * k], p[4 * k + 1], p[4 * k + 2], p[4 * k + 3], do_t + k * 128, 1);
    wgmma_commit();
  }
  // buffer: of dS.
  FG_DEV void dsoftmax(u32 at, int i = 0) { dsoftmax(at, i, at); }
  FG_DEV void dsoftmax(u32 at, int i, u32 buffer) {
#if FG_DBIAS
    const u32 at32 = ds32_lane(smem, wg * 64 + warp * 16 + (lane >> 2), lane);
    if (i == 0) mbar_wait(smem + BAR_DS32_FREE, ds32 ^ 1);
#endif
#pragma unroll
    for (int j = i * PQ / 8; j < (i + 1) * PQ / 8; j++) {
      if (LATE) sink.put(s, p, j);  // packed beside dP there would not be registers enough
      if (!EARLY_STATS && !STATS_AHEAD && !DELTA_STEP) stat(delta_at(at), j);
      const float a = DELTA_STEP ? 0.f : st[2 * j], b = DELTA_STEP ? 0.f : st[2 * j + 1];
      const float* y = dp + 4 * j - i * NP;
      const float x[4] = {s[4 * j] * minus(y[0], a), s[4 * j + 1] * minus(y[1], b), s[4 * j + 2] * minus(y[2], a), s[4 * j + 3] * minus(y[3], b)};
#if FG_DBIAS
      put_ds32(at32, j, x);
#endif
      ds[2 * j] = pack2<BF16>(x[0], x[1]);
      ds[2 * j + 1] = pack2<BF16>(x[2], x[3]);
      stats_behind(delta_at(at), j);
    }
#if FG_DBIAS
    if (i == PARTS - 1) {
      fence_cta();
      __syncwarp();
      if (lane == 0) mbar_arrive(smem + BAR_DS32_FULL);
      ds32 ^= 1;
    }
#endif
    // dS^T -> [q][kv]: matrices (kv 0-7, kv 8-15) x (q 0-7, q 8-15), transposed on the way
    const u32 base = smem + OFF_DS + buffer * DS_BYTES + wg * QCH;
    const u32 q = ((lane >> 4) & 1) * 8 + (lane & 7), unit = 2 * warp + ((lane >> 3) & 1);
    const u32 at_lane = base + q * 128 + ((unit ^ (q & 7)) << 4);
#pragma unroll
    for (int j = i * PQ / 16; j < (i + 1) * PQ / 16; j++) stsm4t(at_lane + j * 2048, ds[4 * j], ds[4 * j + 1], ds[4 * j + 2], ds[4 * j + 3]);
  }
  FG_DEV void add_block(float* to) {
#pragma unroll
    for (int j = 0; j < NQ / 4; j++) red_v4(to + j * 128, dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]);
  }
  FG_DEV void add_dq(float* to, u32 at) {
#if FG_STAGED
    mbar_wait(smem + BAR_DQ_GO + 8 * at, ((turn >> at) & 1) ^ 1);
    const u32 stage = smem + OFF_STAGE + at * DQ_BYTES + dq_lane() * 4;
#pragma unroll
    for (int j = 0; j < NQ / 4; j++)
      sts_v4(stage + j * 512, __float_as_uint(dq[4 * j]), __float_as_uint(dq[4 * j + 1]), __float_as_uint(dq[4 * j + 2]), __float_as_uint(dq[4 * j + 3]));
    fence_async_smem();
    __syncwarp();
    if (lane == 0) mbar_arrive(smem + BAR_DQ_DONE + 8 * at);
    turn ^= 1u << at;
#else
    if (FG_DET) mbar_wait(smem + BAR_DQ_GO, turn);
    add_block(to);
    third_dq(to, at);
    if (FG_DET) {
      __syncwarp();
      if (lane == 0) mbar_arrive(smem + BAR_DQ_DONE);
      turn ^= 1;
    }
#endif
  }
  // This thread's place in a tile of dq_accum (chain.cuh: 16x8 tiles of 128 floats, head dim first). dQ^T: (16 head-dim columns) x (8 rows) tiles, rows
  // first, in blocks of TQ rows by D_QK.
  FG_DEV i32 dq_lane() const {
    if (DQ_T) return (i32)(wg * 4 + warp) * (TQ / 8 * 128) + (i32)lane * 4;
    const i32 row16 = (i32)(warp + (TQ == 128 ? 4 * wg : 0)), col8 = TQ == 64 ? (i32)wg * (DQK / 16) : 0;
    return dq_tile_offset<DQK>(row16, col8) + (i32)lane * 4;
  }

  // A hard barrier. Parting it into arrive and wait, so that one warpgroup's exponentials run beside the other's products, was 5-15 % slower.
  FG_DEV void ds_ready() {
    fence_async_smem();
    bar_sync<NB_DS, MATH_THREADS>();
  }
  FG_DEV void wait_q(u32 at) { mbar_wait(smem + BAR_Q_FULL + 8 * at, (ph >> at) & 1); }
  FG_DEV void wait_do(u32 at) { mbar_wait(smem + BAR_DO_FULL + 8 * at, (ph >> at) & 1); }
  FG_DEV void free_q(u32 at) {
    if (lane == 0) mbar_arrive(smem + BAR_Q_FREE + 8 * at);
  }
  FG_DEV void free_do(u32 at) {
    if (lane == 0) mbar_arrive(smem + BAR_DO_FREE + 8 * at);
    ph ^= 1u << at;
  }

  // ---- the n q tiles of one kv tile, in the order FG_ORDER ----
  FG_DEV void loop(Walk w) {
    clear();
    [[maybe_unused]] const i32 n = w.n;
#if FG_ORDER == 7
    pair_loop(*this, w);
#elif FG_ORDER == 0
    // One tile after the other.
#pragma unroll 1
    for (i32 i = 0; i < n; i++) {
      const u32 at = i & 1;
      wait_q(at);
      issue_s(at);
      wait_do(at);
      issue_dp(at);
      early(lse_at(at));
      wgmma_wait<1>(), pin(s);
      scores(w);
      softmax(at);
      early(delta_at(at));
      wgmma_wait<0>(), pin(dp);
      dsoftmax(at);
      sink.finish(s, p, lane);
      issue_dv(at);
      ds_ready();
      issue_dq(at);
      wgmma_wait<1>(), pin(dv);
      free_do(at);
      issue_dk(at);
      wgmma_wait<1>(), pin(dq);
      add_dq(w.dq, at);
      wgmma_wait<0>(), pin(dk);
      free_q(at);
      next_tile(w);
    }
#elif FG_ORDER == 4
    // One tile after the other in two halves. Slower than order 0: products of 64 columns fill the shared-memory ports. It keeps 32 registers fewer.
#pragma unroll 1
    for (i32 i = 0; i < n; i++) {
      const u32 at = i & 1;
      wait_q(at);
      issue_s(at, 0);
      issue_s(at, 1);
      wait_do(at);
      issue_dp(at, 0);
      wgmma_wait<2>(), pin(part(s, 0));
      halves(w, at);
      issue_dq(at);
      issue_dk(at, 1);
      wgmma_wait<2>(), pin(dv);
      free_do(at);
      wgmma_wait<1>(), pin(dq);
      add_dq(w.dq, at);
      wgmma_wait<0>(), pin(dk);
      free_q(at);
      next_tile(w);
    }
#else
    // Rotated: S of the next tile runs beside dQ and dK of this one. Nothing is in flight across the back edge, or ptxas serialises the wgmmas.
    wait_q(0);
    issue_s(0);
    wait_do(0);
    issue_dp(0);
    early(lse_at(0));
    wgmma_wait<1>(), pin(s);
    head(w, 0);
#pragma unroll 1
    for (i32 i = 0; i < n - 1; i++) {
      const u32 at = i & 1, nx = at ^ 1;
      issue_dq(at);
      wait_q(nx);
      issue_s(nx);
      issue_dk(at);
      wgmma_wait<2>(), pin(dq);
      add_dq(w.dq, at);
      wait_do(nx);
      issue_dp(nx);
      early(lse_at(nx));
      wgmma_wait<1>(), pin(s), pin(dk);
      free_q(at);
      next_tile(w);
      head(w, nx);
    }
    const u32 at = (n - 1) & 1;
    issue_dq(at);
    issue_dk(at);
    wgmma_wait<1>(), pin(dq);
    add_dq(w.dq, at);
    wgmma_wait<0>(), pin(dk);
    free_q(at);
#endif
  }
  // From the first half of S to dS visible.
  FG_DEV void halves(const Walk& w, u32 at) {
    scores(w, 0);
    softmax(at, 0);
    issue_dv(at, 0);
    wgmma_wait<1>(), pin(dp), pin(part(s, 1));
    dsoftmax(at, 0);
    issue_dp(at, 1);
    issue_dk(at, 0);
    scores(w, 1);
    softmax(at, 1);
    issue_dv(at, 1);
    wgmma_wait<2>(), pin(dp);
    dsoftmax(at, 1);
    ds_ready();
  }
  // From S ready (dP in flight) to dS visible and dV done.
  FG_DEV void head(const Walk& w, u32 at) {
    scores(w);
    softmax(at);
    early(delta_at(at));
    wgmma_wait<0>(), pin(dp);
    if constexpr (DV_IN_HALVES) {
      ds_half(at, 0);
      issue_dv_half(at, 0);
      ds_half(at, 1);
      issue_dv_half(at, 1);
    } else {
      dsoftmax(at);
      sink.finish(s, p, lane);
      issue_dv(at);
    }
    ds_ready();
    wgmma_wait<0>(), pin(dv);
    free_do(at);
  }
};

}  // namespace fg
