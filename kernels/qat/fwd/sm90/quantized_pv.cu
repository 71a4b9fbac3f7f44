// fg_qat_fwd_sm90_pv: O = fake_nvfp4(P) V with P = exp(scale Q K^T - LSE) on wgmma: the second walk over the keys of the QAT forward, as
// qat/fwd/mma/quantized_pv.cu. Tiles, loads, masks and stores are those of the plain wgmma forward.
//
// grid: 1-D, up to ceil(S_q, TQ) * H_q * B CTAs: with fewer, each takes several tiles in turn. Block 128 * (1 + FG_MATH_GROUPS).
// Dynamic smem: fg_qat_fwd_sm90_pv_smem bytes. Defines and the ordered parameter list: README.md in this folder.
// Writes fully: O columns < d_v of the rows < S_q (zeros where LSE is -inf and past the length). Bitwise reproducible.
#include "qat/fwd/sm90/walk.cuh"
#include "sdpa/fwd/sm90/store.cuh"

extern "C" __device__ const int fg_qat_fwd_sm90_pv_smem = fg::SMEM_BYTES;

extern "C" __global__ void __launch_bounds__(fg::THREADS, 1) fg_qat_fwd_sm90_pv(
    const __grid_constant__ TensorMap tm_q, const __grid_constant__ TensorMap tm_k, const __grid_constant__ TensorMap tm_v, u16* o,
    const float* lse, const i32* seq_q, const i32* seq_kv, i64 o_sb, i64 o_sh, i64 o_ss, i64 lse_sb, i64 lse_sh, i64 lse_ss, i32 batch,
    i32 heads_q, i32 group, i32 s_q, i32 s_kv, i32 d_v, i32 window_left, i32 window_right, i32 bottom_right, i32 section, i32 longest_first,
    float scale) {
  using namespace fg;
  extern __shared__ __align__(1024) u8 smem_raw[];
  const u32 smem = smem_addr(smem_raw), warp = uniform(threadIdx.x / 32), role = warp / 4, lane = lane_id();
  if (threadIdx.x == 0) {
    for (u32 g = 0; g < GROUPS; g++) {
      mbar_init(smem + BAR_Q_FULL + 8 * g, 1);
      mbar_init(smem + BAR_Q_FREE + 8 * g, 4);
    }
    for (u32 s = 0; s < STAGES; s++) {
      mbar_init(smem + BAR_K_FULL + 8 * s, 1);
      mbar_init(smem + BAR_V_FULL + 8 * s, 1);
      mbar_init(smem + BAR_K_FREE + 8 * s, 4 * GROUPS);
      mbar_init(smem + BAR_V_FREE + 8 * s, 4 * GROUPS);
    }
    mbar_init_fence();
    tma_prefetch_map(&tm_q);
    tma_prefetch_map(&tm_k);
    tma_prefetch_map(&tm_v);
  }
  __syncthreads();
  const u32 total = (u32)ceil_div(s_q, TQ) * (u32)(batch * heads_q);
  const Form form(longest_first ? 16 : 0);
  auto work = [&](u32 index) {
    return make_work(form, index, s_q, s_kv, batch, heads_q, group, section, seq_q, seq_kv, bottom_right, window_left, window_right);
  };

  if (role == 0) {
    regs_dec<LOAD_REGS>();
    if (warp != 0 || lane != 0) return;
    Loader l{smem, false, &tm_q, &tm_k, &tm_v};
#pragma unroll 1
    for (u32 round = 0, i; (i = nth_tile(form, round)) < total || round * gridDim.x < total; round++)
      if (i < total) l.run(work(i), 0, 0, 0);
    return;
  }

  regs_inc<MATH_REGS>();
  Walk m;
  m.smem = smem;
  m.group = role - 1;
  m.lane = lane;
  m.warp = warp & 3;
  m.desc_q = (u32)wgmma_desc(smem + OFF_Q + m.group * Q_BYTES, 16);
  m.desc_k = (u32)wgmma_desc(smem + OFF_K, 16);
  m.desc_v = (u32)wgmma_desc(smem + OFF_V, TK * 128);
  m.mul = scale * LOG2E;
  u32 q_parity = 0;
#pragma unroll 1
  for (u32 round = 0, i; (i = nth_tile(form, round)) < total || round * gridDim.x < total; round++) {
    if (i >= total) continue;
    const Work w = work(i);
    float acc[O_REGS];
#pragma unroll
    for (int j = 0; j < O_REGS; j++) acc[j] = 0.f;
    pin(acc);
    const i32 row = w.row0 + 64 * (i32)m.group + 16 * (i32)m.warp + (i32)(lane >> 2);
    const float* lp = lse + ((i64)w.b * lse_sb + (i64)w.h * lse_sh);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      // -inf, a row without keys or past the length, stays -inf here: its exponents are then -inf and its P is 0 whatever the scores are.
      const float x = row + 8 * h < w.len_q ? __ldg(lp + (i64)(row + 8 * h) * lse_ss) : neg_inf();
      m.neg_lse[h] = x == neg_inf() ? x : -x * LOG2E;
      m.at[h] = row + 8 * h + w.band.diag;
    }
    m.keys = make_span(w.band, w.row0 + 64 * (i32)m.group, 64, w.len_q, w.len_kv);
    if (w.keys.n_hi > w.keys.n_lo) {
      mbar_wait(smem + BAR_Q_FULL + 8 * m.group, q_parity);
      q_parity ^= 1;
      m.run(w, acc);
    }
    u16* op = o + ((i64)w.b * o_sb + (i64)w.h * o_sh);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const i32 tok = row + 8 * h;
      store_row(acc, h, op + (i64)tok * o_ss, tok < s_q, 1.f, false, lane & 3, d_v);
    }
  }
}
