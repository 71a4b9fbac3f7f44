// fg_sdpa_fwd_prefill: attention forward with an online softmax. One CTA owns TQ = 16 * FG_M_TILES * FG_WARPS rows of one query head (of
// one kv head with FG_PACK_GQA) and walks the kv tiles that its rows can see from the last to the first.
//
//   S = Q K^T;  m = running row maximum;  P = exp2(scale log2e S + bias log2e - m);  O = P V / sum P;  Stats = m + ln sum P
//
// grid: 1-D, ceil(S_q * g, TQ) * (H_q / g) * B with g = H_q / H_kv when packed, else 1; block 32 * FG_WARPS.
// Dynamic smem: fg_sdpa_fwd_prefill_smem bytes. Defines and the ordered parameter list: README.md in this folder.
// Writes fully: O (columns < d_v), Stats, score max and sum of the rows < S_q (dense; zeros, -inf, -inf, 0 past a length) or < len_q (THD).
// Nothing is read from rows at or past a length; a CTA's result does not depend on any other CTA, so runs are bitwise equal.
#include "sdpa/fwd/mma/prefill_config.cuh"
#include "sdpa/fwd/mma/prefill_math.cuh"
#include "sdpa/fwd/mma/prefill_store.cuh"

extern "C" __device__ const int fg_sdpa_fwd_prefill_smem = fg::SMEM_BYTES;

extern "C" __global__ void __launch_bounds__(fg::THREADS, FG_MIN_CTAS) fg_sdpa_fwd_prefill(
    const u16* q, const u16* k, const u16* v, u16* o, float* stats, float* score_max, float* score_sum, const void* bias, const float* sink,
    const i32* seq_q, const i32* seq_kv, const void* rag_q, const void* rag_k, const void* rag_v, const void* rag_o, const void* rag_stats,
    const void* rag_max, const void* rag_sum, i64 mul_q, i64 mul_k, i64 mul_v, i64 mul_o, i64 mul_stats, i64 mul_max, i64 mul_sum, i64 q_sb,
    i64 q_sh, i64 q_ss, i64 k_sb, i64 k_sh, i64 k_ss, i64 v_sb, i64 v_sh, i64 v_ss, i64 o_sb, i64 o_sh, i64 o_ss, i64 stats_sb, i64 stats_sh,
    i64 stats_ss, i64 max_sb, i64 max_sh, i64 max_ss, i64 sum_sb, i64 sum_sh, i64 sum_ss, i64 bias_sb, i64 bias_sh, i64 bias_sq, i64 bias_sk,
    i32 batch, i32 heads_q, i32 group, i32 s_q, i32 s_kv, i32 d_qk, i32 d_v, i32 window_left, i32 window_right, i32 bottom_right, i32 section,
    float scale) {
  using namespace fg;
  extern __shared__ __align__(1024) u8 smem_raw[];
  const u32 smem = smem_addr(smem_raw), tid = threadIdx.x, warp = uniform(tid / 32), lane = lane_id();
  const Work w = make_work(s_q, s_kv, batch, heads_q, group, section, seq_q, seq_kv, bottom_right, window_left, window_right);
  if (FG_THD && w.row0 >= w.rows) return;  // nothing past a packed sequence's end belongs to it

  auto origin = [&](const void* rag, i64 mul, i64 sb) { return FG_THD ? ragged_offset<FG_RAGGED_I64>(rag, w.b, mul) : (i64)w.b * sb; };
  const u16* kp = k + (origin(rag_k, mul_k, k_sb) + (i64)w.h_kv * k_sh);
  const u16* vp = v + (origin(rag_v, mul_v, v_sb) + (i64)w.h_kv * v_sh);
  // Rows outside [k_lo, k_hi) are zeros in shared memory: P is 0 there, and 0 times a caller's NaN would not be.
  auto load_k = [&](i32 n, int st) { KCopy::load(smem + OFF_K + st * K_BYTES, kp, k_ss, n * TK, w.k_lo, w.k_hi, d_qk, tid); };
  auto load_v = [&](i32 n, int st) { VCopy::load(smem + OFF_V + st * V_BYTES, vp, v_ss, n * TK, w.k_lo, w.k_hi, d_v, tid); };

  float acc[MT][O_NT][4] = {};
  Rows<MT> r;
  clear(r);
#pragma unroll
  for (int i = 0; i < MT; i++)
#pragma unroll
    for (int h = 0; h < 2; h++) r.at[i][h] = row_at(w, tile_row(warp, lane, i, h), group).tok + w.band.diag;

  const i32 n_lo = w.k_lo / TK;
  i32 n = w.k_hi > w.k_lo ? (w.k_hi - 1) / TK : n_lo - 1;
  if (n >= n_lo) {
    const u16* qp = q + origin(rag_q, mul_q, q_sb);
    if (!FG_PACK_GQA) {
      QCopy::load(smem, qp + (i64)w.h * q_sh, q_ss, w.row0, 0, w.rows, d_qk, tid);
    } else {
#pragma unroll 1
      for (i32 row = QCopy::row(tid); row < TQ; row += QCopy::PASS_ROWS) {
        const RowAt at = row_at(w, row, group);
        const u16* src = qp + ((i64)at.tok * q_ss + (i64)at.head * q_sh + QCopy::col(tid));
#pragma unroll
        for (int c = 0; c < QCopy::CHUNKS; c++)
          cp_async16(smem + QCopy::offset(tid) + (row - QCopy::row(tid)) * QCopy::CH * 2 + c * TQ * QCopy::CH * 2, src + c * QCopy::CH,
                     at.tok < w.len_q && c * QCopy::CH + (i32)QCopy::col(tid) < d_qk);
      }
    }
    load_k(n, 0);
    if (STAGES == 2) load_v(n, 0);
    cp_commit();

    const bool plain = !FG_BIAS && plain_scale(scale);
    const float pre = scale * LOG2E, mul = plain ? pre : 1.f;
    BiasPtr bp;
    u32 row_live = 0;
    if (FG_BIAS) {
      bp.base = bias;
      bp.sk = bias_sk;
#pragma unroll
      for (int i = 0; i < MT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const RowAt at = row_at(w, tile_row(warp, lane, i, h), group);
          bp.row[i][h] = (i64)w.b * bias_sb + (i64)at.head * bias_sh + (i64)at.tok * bias_sq;
          if (at.tok < w.len_q) row_live |= 1u << (2 * i + h);
        }
    }

    const u32 q_lane = smem + OpQ::lane_base(warp, lane);
    const u32 k_lane = smem + OFF_K + OpK::lane_base(0, lane), v_lane = smem + OFF_V + OpV::lane_base(0, lane);
    QFrags qf;
    if (Q_REGS) {
      cp_wait<0>();
      __syncthreads();
#pragma unroll
      for (int ks = 0; ks < QK_STEPS; ks++) OpQ::load_a<MT>(q_lane, ks, qf.f[ks]);
    }
    float s[MT][S_NT][4];
    u32 st = 0;
#pragma unroll 1
    for (; n >= n_lo; n--) {
      // Two stages: one barrier a tile. It publishes tile n, copied a whole tile ago, and certifies that every warp is done with tile
      // n + 1, whose buffers the copies issued next overwrite. One stage: the same barrier frees V, a second one frees K.
      cp_wait<0>();
      __syncthreads();
      if (STAGES == 2) {
        if (n > n_lo) {
          load_k(n - 1, st ^ 1);
          load_v(n - 1, st ^ 1);
        }
      } else {
        load_v(n, 0);
      }
      cp_commit();
      scores(s, qf, q_lane, k_lane + st * K_BYTES);
      if (STAGES == 1) {
        cp_wait<0>();
        __syncthreads();
        if (n > n_lo) load_k(n - 1, 0);
        cp_commit();
      }
      const i32 col0 = n * TK + 2 * (i32)(lane & 3);
      if (!plain) prescale(s, bp, w, col0, row_live, pre);
      if (tile_has_edge(w, n * TK)) mask_scores<true, FG_WINDOW>(s, r, w.band, w.len_kv, col0);
      softmax<FG_MAX_SUM>(s, acc, r, mul);
      values(acc, s, v_lane + st * V_BYTES);
      if (STAGES == 2) st ^= 1;
    }
  }

  // Every warp must be done with Q, K and V before O is staged over them. With no key at all nothing was written, and this is harmless.
  __syncthreads();
  u16* op = o + origin(rag_o, mul_o, o_sb);
  const i32 end = FG_THD ? w.len_q : s_q;
#pragma unroll
  for (int i = 0; i < MT; i++) {
    float mul[2];
    bool dead[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const RowAt at = row_at(w, tile_row(warp, lane, i, h), group);
      const bool past = at.tok >= w.len_q;
      const float l = quad_sum(r.l[i][h]);
      RowEnd e = finish_row<FG_SINK>(r.m[i][h], l, FG_SINK && !past ? __ldg(sink + at.head) : 0.f);
      mul[h] = e.mul;
      dead[h] = e.dead || past;
      if (at.tok >= end || (lane & 3) != 0) continue;
      auto put = [&](float* base, const void* rag, i64 rmul, i64 sb, i64 sh, i64 ss, float x) {
        if (base != nullptr) base[origin(rag, rmul, sb) + (i64)at.head * sh + (i64)at.tok * ss] = x;
      };
      if (FG_STATS) put(stats, rag_stats, mul_stats, stats_sb, stats_sh, stats_ss, past ? neg_inf() : FG_STATS == 2 ? e.stats * LOG2E : e.stats);
      if (FG_MAX_SUM) {
        const bool none = past || r.top[i][h] == neg_inf();
        put(score_max, rag_max, mul_max, max_sb, max_sh, max_ss, none ? neg_inf() : r.top[i][h] * LN2);
        put(score_sum, rag_sum, mul_sum, sum_sb, sum_sh, sum_ss, none ? 0.f : l * ex2(r.m[i][h] - r.top[i][h]));
      }
    }
    stage_o(smem, warp, lane, i, acc[i], mul[0], mul[1], dead[0], dead[1]);
    __syncwarp();
    store_o(smem, warp, lane, i, w, op, o_sh, o_ss, end, group, d_v);
  }
}
