// fg_sdpa_bwd_sm90_cvt_t: dq_accum of the 48-row tiles (fp32, dQ^T fragments) -> dQ (io dtype, any strides), times attn_scale.
// grid (ceil(S_q, 48) * H_q * B), row block fastest; block 256. Defines FG_BF16, FG_D_QK, FG_Q_TILE, FG_THD, FG_RAGGED_I64.
// Writes fully: dQ rows < S_q (THD: < len_q), columns < d_qk. Rows that attended nothing read the zeros `dot` left and come out 0.
#include "common/hopper.cuh"
#include "sdpa/bwd/sm90/rows.cuh"
#if !defined(FG_BF16) || !defined(FG_D_QK) || !defined(FG_Q_TILE) || !defined(FG_THD) || !defined(FG_RAGGED_I64)
#error "cvt_t.cu needs FG_BF16, FG_D_QK, FG_Q_TILE, FG_THD, FG_RAGGED_I64"
#endif

extern "C" __global__ void __launch_bounds__(256) fg_sdpa_bwd_sm90_cvt_t(const float* dq_accum, u16* dq, i64 dq_sb, i64 dq_sh, i64 dq_ss, i32 batch,
                                                                         i32 heads_q, i32 s_q, i32 d_qk, i32 ws_rows, float scale, const i32* seq_q,
                                                                         const void* rag_q, const void* rag_dq, i64 mul_q, i64 mul_dq, i64 q_ss) {
  using namespace fg;
  // A tile is (D / 16) x (TQ / 8) fragments of 16 columns by 8 rows, rows fastest; a warp takes two neighbours in the columns at once.
  constexpr int TQ = FG_Q_TILE, D = FG_D_QK, PITCH = D * 2 + 16, ROWS8 = TQ / 8, PAIRS = (D / 32) * ROWS8, PER_WARP = (PAIRS + 7) / 8;
  __shared__ __align__(16) u8 tile[TQ * PITCH];
  pdl_wait();
  pdl_launch();
  const u32 blocks = (u32)ceil_div(s_q, TQ), bh = blockIdx.x / blocks;
  const i32 qb = (i32)(blockIdx.x - bh * blocks), b = (i32)(bh / (u32)heads_q), h = (i32)(bh - (u32)b * (u32)heads_q);
  const i32 rows = FG_THD ? seq_len(seq_q, b, s_q) : s_q;
  if (qb * TQ >= rows) return;
  const i64 token = FG_THD ? ragged_offset<FG_RAGGED_I64>(rag_q, b, mul_q) / q_ss : 0;
  const u32 warp = threadIdx.x / 32, lane = lane_id();
  const float* src = dq_accum + (dq_row0<FG_THD, TQ>(token, b, h, heads_q, ws_rows) + qb * TQ) * D + lane * 4;
  float v[PER_WARP][8];
#pragma unroll
  for (int i = 0; i < PER_WARP; i++) {
    const int u = warp + 8 * i, pair = u / ROWS8, q8 = u % ROWS8;
    if (u < PAIRS) {
      const float* p = src + (2 * pair * ROWS8 + q8) * 128;
      ldg_v4f(p, v[i][0], v[i][1], v[i][2], v[i][3]);
      ldg_v4f(p + ROWS8 * 128, v[i][4], v[i][5], v[i][6], v[i][7]);
    }
  }
#pragma unroll
  for (int i = 0; i < PER_WARP; i++) {
    const int u = warp + 8 * i, pair = u / ROWS8, q8 = u % ROWS8;
    if (u < PAIRS)
      stsm4t(smem_addr(tile) + (q8 * 8 + (lane & 7)) * PITCH + (pair * 4 + (lane >> 3)) * 16, pack2<FG_BF16>(v[i][0] * scale, v[i][1] * scale),
             pack2<FG_BF16>(v[i][2] * scale, v[i][3] * scale), pack2<FG_BF16>(v[i][4] * scale, v[i][5] * scale),
             pack2<FG_BF16>(v[i][6] * scale, v[i][7] * scale));
  }
  __syncthreads();
  u16* dst = dq + ((FG_THD ? ragged_offset<FG_RAGGED_I64>(rag_dq, b, mul_dq) : (i64)b * dq_sb) + (i64)h * dq_sh);
  constexpr u32 U = D / 8;
#pragma unroll
  for (u32 n = threadIdx.x; n < TQ * U; n += 256) {
    const i32 r = (i32)(n / U), c = (i32)(n % U) * 8, row = qb * TQ + r;
    if (row < rows && c < d_qk) {
      u32 x, y, z, t;
      lds_v4(smem_addr(tile) + r * PITCH + c * 2, x, y, z, t);
      stg_v4(dst + ((i64)row * dq_ss + c), x, y, z, t);
    }
  }
}
