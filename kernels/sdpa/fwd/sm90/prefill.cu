// fg_sdpa_fwd_sm90: attention forward on wgmma. One warpgroup loads with TMA, FG_MATH_GROUPS warpgroups own 64 query rows each and walk the kv tiles that
// the CTA's rows can see from the last to the first.
//
//   S = Q K^T;  m = reference of the row;  P = exp2(scale log2e S - m);  O = P V / sum P;  Stats = m + ln sum P
//
// grid: 1-D, up to ceil(S_q, TQ) * H_q * B CTAs: with fewer, each takes several tiles in turn. Block 128 * (1 + FG_MATH_GROUPS).
// Dynamic smem: fg_sdpa_fwd_sm90_smem bytes. Defines and the ordered parameter list: README.md in this folder.
// Writes fully: O (columns < d_v) and Stats of the rows < S_q (dense; zeros and -inf past a length) or < len_q (THD).
// A CTA's result does not depend on any other CTA, so runs are bitwise equal.
#include "sdpa/fwd/sm90/math.cuh"
#include "sdpa/fwd/sm90/store.cuh"

extern "C" __device__ const int fg_sdpa_fwd_sm90_smem = fg::SMEM_BYTES;

extern "C" __global__ void __launch_bounds__(fg::THREADS, 1) fg_sdpa_fwd_sm90(
    const __grid_constant__ TensorMap tm_q, const __grid_constant__ TensorMap tm_k, const __grid_constant__ TensorMap tm_v, u16* o, float* stats,
    const float* sink, const i32* seq_q, const i32* seq_kv, const void* rag_q, const void* rag_k, const void* rag_v, const void* rag_o,
    const void* rag_stats, i64 mul_q, i64 mul_k, i64 mul_v, i64 mul_o, i64 mul_stats, i64 q_ss, i64 k_ss, i64 v_ss, i64 o_sb, i64 o_sh, i64 o_ss,
    i64 stats_sb, i64 stats_sh, i64 stats_ss, i32 batch, i32 heads_q, i32 group, i32 s_q, i32 s_kv, i32 d_v, i32 window_left, i32 window_right,
    i32 bottom_right, i32 section, i32 form_bits, float scale) {
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
  const Form form(form_bits);
  auto work = [&](u32 index) { return make_work(form, index, s_q, s_kv, batch, heads_q, group, section, seq_q, seq_kv, bottom_right, window_left, window_right); };

  if (role == 0) {
    regs_dec<LOAD_REGS>();
    if (warp != 0 || lane != 0) return;
    Loader l{smem, form.thd, &tm_q, &tm_k, &tm_v};
#pragma unroll 1
    for (u32 round = 0, i; (i = nth_tile(form, round)) < total || round * gridDim.x < total; round++) {
      if (i >= total) continue;
      const Work w = work(i);
      l.run(w, form.token(rag_q, mul_q, w.b, q_ss), form.token(rag_k, mul_k, w.b, k_ss), form.token(rag_v, mul_v, w.b, v_ss));
    }
    return;
  }

  regs_inc<MATH_REGS>();
  Math m;
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
    if (form.thd && w.row0 >= w.len_q) continue;  // nothing past a packed sequence's end belongs to it
    float acc[O_REGS];
#pragma unroll
    for (int j = 0; j < O_REGS; j++) acc[j] = 0.f;
    pin(acc);
    const i32 row = w.row0 + 64 * (i32)m.group + 16 * (i32)m.warp + (i32)(lane >> 2);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      m.r.m[h] = neg_inf();
      m.r.l[h] = 0.f;
      m.at[h] = row + 8 * h + w.band.diag;
    }
    m.keys = make_span(w.band, w.row0 + 64 * (i32)m.group, 64, w.len_q, w.len_kv);
    if (w.keys.n_hi > w.keys.n_lo) {
      mbar_wait(smem + BAR_Q_FULL + 8 * m.group, q_parity);
      q_parity ^= 1;
      m.run(w, acc);
    }
    u16* op = o + (form.origin(rag_o, mul_o, w.b, o_sb) + (i64)w.h * o_sh);
    float* sp = stats;
    if (stats != nullptr) sp += form.origin(rag_stats, mul_stats, w.b, stats_sb) + (i64)w.h * stats_sh;
    const i32 end = form.thd ? w.len_q : s_q;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const i32 tok = row + 8 * h;
      const bool past = tok >= w.len_q, live = tok < end;
      const float l = quad_sum(m.r.l[h]);
      const RowEnd e = sink != nullptr ? finish_row<1>(m.r.m[h], l, __ldg(sink + w.h)) : finish_row<0>(m.r.m[h], l, 0.f);
      if (stats != nullptr && live && (lane & 3) == 0) sp[(i64)tok * stats_ss] = past ? neg_inf() : form.stats_log2 ? e.stats * LOG2E : e.stats;
      store_row(acc, h, op + (i64)tok * o_ss, live, e.mul, e.dead || past, lane & 3, d_v);
    }
  }
}
