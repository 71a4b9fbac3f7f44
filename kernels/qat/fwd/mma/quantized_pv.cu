// fg_qat_fwd_quantized_pv: O = fake_nvfp4(P) V with P = exp(scale Q K^T - LSE): the second walk over the keys of the QAT forward. Q, K and V
// are fake-quantised already (quantize.cu) and LSE is the final one (the plain prefill kernel on the same operands), so that P has the value
// that the backward quantises, too. Tiles, copies, masks and stores are the prefill kernel's.
//
// grid: 1-D, ceil(S_q, TQ) * H_q * B, block 32 * FG_WARPS. Dynamic smem: fg_qat_fwd_quantized_pv_smem bytes. Defines and parameters: README.md.
// Writes fully: O columns < d_v of the rows < S_q (zeros where LSE is -inf and past the length). Bitwise reproducible.
#include "qat/fwd/mma/fake_p.cuh"
#include "sdpa/fwd/mma/prefill_store.cuh"

extern "C" __device__ const int fg_qat_fwd_quantized_pv_smem = fg::SMEM_BYTES;

extern "C" __global__ void __launch_bounds__(fg::THREADS, FG_MIN_CTAS) fg_qat_fwd_quantized_pv(
    const u16* q, const u16* k, const u16* v, u16* o, const float* lse, const i32* seq_q, const i32* seq_kv, i64 q_sb, i64 q_sh, i64 q_ss,
    i64 k_sb, i64 k_sh, i64 k_ss, i64 v_sb, i64 v_sh, i64 v_ss, i64 o_sb, i64 o_sh, i64 o_ss, i64 lse_sb, i64 lse_sh, i64 lse_ss, i32 batch,
    i32 heads_q, i32 group, i32 s_q, i32 s_kv, i32 d_qk, i32 d_v, i32 window_left, i32 window_right, i32 bottom_right, i32 section, float scale) {
  using namespace fg;
  extern __shared__ __align__(1024) u8 smem_raw[];
  const u32 smem = smem_addr(smem_raw), tid = threadIdx.x, warp = uniform(tid / 32), lane = lane_id();
  const Work w = make_work(s_q, s_kv, batch, heads_q, group, section, seq_q, seq_kv, bottom_right, window_left, window_right);
  const u16* kp = k + ((i64)w.b * k_sb + (i64)w.h_kv * k_sh);
  const u16* vp = v + ((i64)w.b * v_sb + (i64)w.h_kv * v_sh);
  auto load_k = [&](i32 n, int st) { KCopy::load(smem + OFF_K + st * K_BYTES, kp, k_ss, n * TK, w.k_lo, w.k_hi, d_qk, tid); };
  auto load_v = [&](i32 n, int st) { VCopy::load(smem + OFF_V + st * V_BYTES, vp, v_ss, n * TK, w.k_lo, w.k_hi, d_v, tid); };

  float acc[MT][O_NT][4] = {}, neg_lse[MT][2];
#pragma unroll
  for (int i = 0; i < MT; i++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const RowAt at = row_at(w, tile_row(warp, lane, i, h), group);
      // -inf, a row without keys or past the length, stays -inf here: its exponents are then -inf and its P is 0 whatever the scores are.
      const float x = at.tok < w.len_q ? __ldg(lse + ((i64)w.b * lse_sb + (i64)at.head * lse_sh + (i64)at.tok * lse_ss)) : neg_inf();
      neg_lse[i][h] = x == neg_inf() ? x : -x * LOG2E;
    }

  const i32 n_lo = w.k_lo / TK;
  i32 n = w.k_hi > w.k_lo ? (w.k_hi - 1) / TK : n_lo - 1;
  if (n >= n_lo) {
    QCopy::load(smem, q + ((i64)w.b * q_sb + (i64)w.h * q_sh), q_ss, w.row0, 0, w.rows, d_qk, tid);
    load_k(n, 0);
    if (STAGES == 2) load_v(n, 0);
    cp_commit();
    const float mul = scale * LOG2E;
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
      if (tile_has_edge(w, n * TK)) {
        Rows<MT> r;
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
          for (int h = 0; h < 2; h++) r.at[i][h] = w.row0 + tile_row(warp, lane, i, h) + w.band.diag;
        mask_scores<true, FG_WINDOW>(s, r, w.band, w.len_kv, col0);
      }
      quantize(s, probabilities(s, neg_lse, mul));
      values(acc, s, v_lane + st * V_BYTES);
      if (STAGES == 2) st ^= 1;
    }
  }
  __syncthreads();
  u16* op = o + (i64)w.b * o_sb;
#pragma unroll
  for (int i = 0; i < MT; i++) {
    stage_o(smem, warp, lane, i, acc[i], 1.f, 1.f, false, false);
    __syncwarp();
    store_o(smem, warp, lane, i, w, op, o_sh, o_ss, s_q, group, d_v);
  }
}
