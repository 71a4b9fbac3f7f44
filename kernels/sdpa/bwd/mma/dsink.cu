// dsink: dsink[h] = -sum over b and q < len_q[b] of exp(sink[h] - LSE[b,h,q]) * delta[b,h,q].
//
// exp(sink - LSE) is the sink's softmax probability (the forward LSE already holds the sink), so no other tensor is read. One block per
// head and a fixed tree of additions: bitwise reproducible in every mode.
//
// grid  (H_q, 1, 1), block 256, static shared memory only.
//
// defines
//   FG_PADDED      1: seq_q is read when it is not null. Rows past it are dead although their LSE is finite under a sink
//   FG_THD         1: Stats and delta are packed; needs FG_PADDED 1 and a seq_q
//   FG_RAGGED_I64  1: ragged offsets are int64, 0: int32
//
// parameters, in order
//    0 lse (natural log, fp32), 1 delta (fp32, chain.cuh: ws_row0), 2 sink fp32 [H_q], 3 dsink fp32 [H_q]
//    4 seq_q int32 [B] or null
//    5-6 rag_q, rag_lse       THD: ragged starts; rag_q gives the workspace origin
//    7-9 mul_q, mul_lse, q_ss
//   10-12 lse_sb, lse_sh, lse_ss
//   13-16 batch, heads_q, s_q, ws_rows
//
// writes fully: dsink [H_q].
#ifndef FG_PADDED
#error "FG_PADDED"
#endif
#ifndef FG_THD
#error "FG_THD"
#endif
#ifndef FG_RAGGED_I64
#error "FG_RAGGED_I64"
#endif
#include "sdpa/bwd/mma/chain.cuh"

namespace fg {

constexpr i32 DSINK_THREADS = 256;

// One row's term. The difference comes before the change of base: log2(e) * 2.4e38 would overflow, and inf - inf is NaN. LSE = -inf is an
// empty row, +inf one whose sink took everything; both contribute nothing. A caller whose LSE leaves the sink out can make the difference
// large: it is capped where exp is still finite, because delta may be 0 there.
FG_DEV float sink_term(float sink, float lse, float delta) {
  const float p = ex2(fminf(sink - lse, 88.f) * LOG2E);
  return fabsf(lse) < f32_bits(0x7f800000u) ? p * delta : 0.f;
}

}  // namespace fg

extern "C" __global__ void __launch_bounds__(256)
fg_sdpa_bwd_dsink(const float* lse, const float* delta, const float* sink, float* dsink, const i32* seq_q, const void* rag_q,
                  const void* rag_lse, i64 mul_q, i64 mul_lse, i64 q_ss, i64 lse_sb, i64 lse_sh, i64 lse_ss, i32 batch, i32 heads_q, i32 s_q,
                  i32 ws_rows) {
  using namespace fg;
  constexpr i32 CHAINS = 8;  // independent sums per thread, so that that many pairs of loads are in flight
  __shared__ float warp_sum[DSINK_THREADS / 32];
  const i32 h = blockIdx.x, tid = threadIdx.x;
  pdl_wait();
  pdl_launch();
  const float z = sink[h];
  float a[CHAINS];
#pragma unroll
  for (i32 c = 0; c < CHAINS; ++c) a[c] = 0.f;
  for (i32 b = 0; b < batch; ++b) {
    i32 rows = s_q;
#if FG_PADDED || FG_THD
    rows = seq_len(seq_q, b, s_q);
#endif
#if FG_THD
    const i64 token0 = ragged_offset<FG_RAGGED_I64>(rag_q, b, mul_q) / q_ss;
    const float* l = lse + ragged_offset<FG_RAGGED_I64>(rag_lse, b, mul_lse) + h * lse_sh;
#else
    const i64 token0 = 0;
    const float* l = lse + b * lse_sb + h * lse_sh;
#endif
    const float* d = delta + ws_row0<FG_THD>(token0, b, h, heads_q, ws_rows);
    for (i32 q0 = 0; q0 < rows; q0 += CHAINS * DSINK_THREADS) {
      float lv[CHAINS], dv[CHAINS];
#pragma unroll
      for (i32 c = 0; c < CHAINS; ++c) {
        const i32 q = q0 + c * DSINK_THREADS + tid;
        lv[c] = f32_bits(0xff800000u);
        dv[c] = 0.f;
        if (q < rows) {
          lv[c] = l[q * lse_ss];
          dv[c] = d[q];
        }
      }
#pragma unroll
      for (i32 c = 0; c < CHAINS; ++c) a[c] += sink_term(z, lv[c], dv[c]);
    }
  }
  float s = ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7]));
#pragma unroll
  for (i32 m = 16; m > 0; m /= 2) s += __shfl_xor_sync(0xffffffffu, s, m);
  if (tid % 32 == 0) warp_sum[tid / 32] = s;
  __syncthreads();
  if (tid == 0) {
    s = 0.f;
    for (i32 w = 0; w < DSINK_THREADS / 32; ++w) s += warp_sum[w];
    dsink[h] = -s;
  }
}
