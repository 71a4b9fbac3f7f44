// fg_sdpa_fwd_combine: the splits of fg_sdpa_fwd_decode into O and Stats. One CTA per row; its warps take every WARPS-th split, lanes the
// columns, and the warps' sums are added in ascending order, so the result is reproducible.
//
// Partial LSEs are natural logs; log2(e) is applied once, at the final store (S4). A split with LSE -inf has weight exactly 0 and its O,
// which nobody wrote, is selected away. The sink enters here, once.
//
// grid: B * H_q * S_q; block 128. Static smem only.
//
// defines: FG_BF16, FG_D_V (padded row width of part_o), FG_PADDED (1: seq_q is read when not null), FG_CU_SEQ (1: running totals), FG_SINK,
//          FG_STATS (0 none, 1 natural log, 2 log base 2)
//
// parameters, in order
//    0 part_o        fp32 [splits (<= 256), B, H_q, S_q, FG_D_V]
//    1 part_lse      fp32 [splits, B, H_q, S_q]
//    2 o             io, rows 16-byte aligned, d_v a multiple of 8
//    3 stats         fp32 or null
//    4 sink          fp32 [H_q]
//    5 seq_q         int32 [B] (FG_CU_SEQ: [B + 1]) or null
//    6-8 o_sb, o_sh, o_ss    9-11 stats_sb, stats_sh, stats_ss    i64
//    12-16 batch, heads_q, s_q, d_v, splits    i32
//
// writes fully: O (columns < d_v) and Stats of every row < S_q; 0 and -inf at or past a length.
#if !defined(FG_BF16) || !defined(FG_D_V) || !defined(FG_PADDED) || !defined(FG_CU_SEQ) || !defined(FG_SINK) || !defined(FG_STATS)
#error "combine.cu needs FG_BF16, FG_D_V, FG_PADDED, FG_CU_SEQ, FG_SINK, FG_STATS"
#endif
#include "common/ptx.cuh"
#include "sdpa/fwd/mma/geometry.cuh"

namespace fg {
constexpr int WARPS = 4, DV = FG_D_V, VECS = (DV + 127) / 128;  // float4 vectors per lane
constexpr int UNROLL = 8, CHUNKS = 8;                           // 32 partial rows in flight per CTA; up to 256 splits
FG_DEV float warp_max(float x) {
#pragma unroll
  for (int m = 16; m > 0; m /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, m));
  return x;
}
FG_DEV float warp_sum(float x) {
#pragma unroll
  for (int m = 16; m > 0; m /= 2) x += __shfl_xor_sync(0xffffffffu, x, m);
  return x;
}
}  // namespace fg

extern "C" __global__ void __launch_bounds__(128) fg_sdpa_fwd_combine(const float* part_o, const float* part_lse, u16* o, float* stats, const float* sink,
                                                                      const i32* seq_q, i64 o_sb, i64 o_sh, i64 o_ss, i64 stats_sb, i64 stats_sh,
                                                                      i64 stats_ss, i32 batch, i32 heads_q, i32 s_q, i32 d_v, i32 splits) {
  using namespace fg;
  __shared__ float sums[WARPS][DV];
  const u32 tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
  const u32 bh = blockIdx.x / (u32)s_q;
  const i32 tok = (i32)(blockIdx.x - bh * (u32)s_q), b = (i32)(bh / (u32)heads_q), h = (i32)(bh - (u32)b * (u32)heads_q);
  const i64 rows = (i64)batch * heads_q * s_q;
#if __CUDA_ARCH__ >= 900
  pdl_wait();
  pdl_launch();
#endif
  const bool past = FG_PADDED && tok >= seq_len<FG_CU_SEQ>(seq_q, b, s_q);
  const float* lse_at = part_lse + blockIdx.x;
  const float* o_at = part_o + ((i64)blockIdx.x * DV + lane * 4);

  // Lane l holds the LSE of splits l, l + 32, ...: all of them, in every warp. Chunk j of the partial rows, 8 a warp, is in flight
  // before the weights are known: one trip to memory instead of two.
  float lse[CHUNKS], x[UNROLL][VECS][4];
#pragma unroll
  for (int j = 0; j < CHUNKS; j++) {
    const i32 s = 32 * j + (i32)lane;
    lse[j] = !past && s < splits ? ldg_f32(lse_at + (i64)s * rows) * LOG2E : neg_inf();
  }
  auto fetch = [&](int j) {
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
      const i32 s = 32 * j + u * WARPS + (i32)warp;
#pragma unroll
      for (int c = 0; c < VECS; c++) {
        x[u][c][0] = x[u][c][1] = x[u][c][2] = x[u][c][3] = 0.f;
        if (!past && s < splits && c * 128 + lane * 4 < DV)
          ldg_v4f(o_at + ((i64)s * rows * DV + c * 128), x[u][c][0], x[u][c][1], x[u][c][2], x[u][c][3]);
      }
    }
  };
  fetch(0);

  // Maximum and total in log2 units, the same in every warp.
  float m = neg_inf(), total = 0.f;
#pragma unroll
  for (int j = 0; j < CHUNKS; j++) m = fmaxf(m, lse[j]);
  m = warp_max(m);
#pragma unroll
  for (int j = 0; j < CHUNKS; j++) {
    lse[j] = lse[j] == neg_inf() ? 0.f : ex2(lse[j] - m);  // from here on the weight
    total += lse[j];
  }
  total = warp_sum(total);
  const RowEnd e = finish_row<FG_SINK>(m, total, FG_SINK && !past ? __ldg(sink + h) : 0.f);
  const bool dead = past || e.dead;

  float acc[VECS][4] = {};
#pragma unroll
  for (int j = 0; j < CHUNKS; j++) {
    if (32 * j >= splits) break;
    if (j > 0) fetch(j);
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
      const float f = __shfl_sync(0xffffffffu, lse[j], u * WARPS + warp);
      // Selected, not multiplied: the O of a split without keys is whatever the workspace held.
#pragma unroll
      for (int c = 0; c < VECS; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) acc[c][i] = f == 0.f ? acc[c][i] : fmaf(x[u][c][i], f, acc[c][i]);
    }
  }
#pragma unroll
  for (int c = 0; c < VECS; c++)
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (c * 128 + lane * 4 < DV) sums[warp][c * 128 + lane * 4 + i] = acc[c][i];
  __syncthreads();
  if (tid == 0 && FG_STATS && stats != nullptr)
    stats[(i64)b * stats_sb + (i64)h * stats_sh + (i64)tok * stats_ss] = past ? neg_inf() : FG_STATS == 2 ? e.stats * LOG2E : e.stats;
  const i32 c = (i32)tid * 8;
  if (c < d_v) {
    u32 v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float y[2];
#pragma unroll
      for (int k = 0; k < 2; k++) {
        float t = 0.f;
#pragma unroll
        for (int x = 0; x < WARPS; x++) t += sums[x][c + 2 * i + k];
        y[k] = t * e.mul;
      }
      v[i] = dead ? 0u : pack2<FG_BF16>(y[0], y[1]);
    }
    stg_v4(o + ((i64)b * o_sb + (i64)h * o_sh + (i64)tok * o_ss + c), v[0], v[1], v[2], v[3]);
  }
}
