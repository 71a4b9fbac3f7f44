// fg_sdpa_bwd_cvt: dq_accum (fp32, fragment order) -> dQ (io dtype, any strides), times attn_scale.
// grid (ceil(S_q, 64) * H_q * B), row block fastest; block 256; no dynamic smem.
// Defines FG_BF16, FG_D_QK (padded), FG_THD, FG_RAGGED_I64. Parameters: README.md in this folder.
// Writes fully: dQ rows < S_q (THD: < len_q), columns < d_qk. Rows that attended nothing read the zeros `dot` left and come out 0.
#include "common/ptx.cuh"
#include "sdpa/bwd/mma/chain.cuh"
#if !defined(FG_BF16) || !defined(FG_D_QK) || !defined(FG_THD) || !defined(FG_RAGGED_I64)
#error "cvt.cu needs FG_BF16, FG_D_QK, FG_THD, FG_RAGGED_I64"
#endif

extern "C" __global__ void __launch_bounds__(256) fg_sdpa_bwd_cvt(const float* dq_accum, u16* dq, const i32* seq_q, const void* rag_q,
                                                                  const void* rag_dq, i64 mul_q, i64 mul_dq, i64 q_ss, i64 dq_sb, i64 dq_sh,
                                                                  i64 dq_ss, i32 batch, i32 heads_q, i32 s_q, i32 d_qk, i32 ws_rows,
                                                                  float scale) {
  using namespace fg;
  constexpr int D = FG_D_QK, ROWS = 64, SLABS = D / 16, UNITS = (ROWS / 16) * SLABS, PER_WARP = UNITS / 8;
  static_assert(UNITS % 8 == 0, "units are dealt evenly to 8 warps");
  __shared__ __align__(16) u8 block16[8][512];
  pdl_wait();
  pdl_launch();

  const u32 blocks = (u32)ceil_div(s_q, ROWS), bh = blockIdx.x / blocks;
  const i32 r0 = (i32)(blockIdx.x - bh * blocks) * ROWS;
  const i32 b = (i32)(bh / (u32)heads_q), h = (i32)(bh - (u32)b * (u32)heads_q);
  const i32 rows = FG_THD ? seq_len(seq_q, b, s_q) : s_q;
  if (r0 >= rows) return;
  const i64 token = FG_THD ? ragged_offset<FG_RAGGED_I64>(rag_q, b, mul_q) / q_ss : 0;
  const i64 out0 = FG_THD ? ragged_offset<FG_RAGGED_I64>(rag_dq, b, mul_dq) : (i64)b * dq_sb;

  const u32 warp = threadIdx.x / 32, lane = lane_id();
  const float* src = dq_accum + (ws_row0<FG_THD>(token, b, h, heads_q, ws_rows) + r0) * D + lane * 4;
  u16* dst = dq + (out0 + (i64)h * dq_sh);
  const u32 stage = smem_addr(block16[warp]) + lane * 16;

  float v[PER_WARP][8];
#pragma unroll
  for (int i = 0; i < PER_WARP; i++) {
    const int u = warp + 8 * i, row16 = u / SLABS, slab = u % SLABS;
    if (r0 + row16 * 16 < rows) {
      const float* p = src + dq_tile_offset<D>(row16, 2 * slab);
      ldg_v4f(p, v[i][0], v[i][1], v[i][2], v[i][3]);
      ldg_v4f(p + 128, v[i][4], v[i][5], v[i][6], v[i][7]);
    }
  }
#pragma unroll
  for (int i = 0; i < PER_WARP; i++) {
    const int u = warp + 8 * i, row16 = u / SLABS, slab = u % SLABS;
    if (r0 + row16 * 16 >= rows) continue;  // uniform over the warp
    // Four 8x8 matrices at lane*16: the lane that wrote matrix row m*8+r reads back row (lane % 16), column half (lane / 16).
    stsm4(stage, pack2<FG_BF16>(v[i][0] * scale, v[i][1] * scale), pack2<FG_BF16>(v[i][2] * scale, v[i][3] * scale),
          pack2<FG_BF16>(v[i][4] * scale, v[i][5] * scale), pack2<FG_BF16>(v[i][6] * scale, v[i][7] * scale));
    __syncwarp();
    u32 x, y, z, t;
    lds_v4(stage, x, y, z, t);
    const i32 row = r0 + row16 * 16 + (i32)(lane & 15), col = slab * 16 + (i32)(lane >> 4) * 8;
    if (row < rows && col < d_qk) stg_v4(dst + ((i64)row * dq_ss + col), x, y, z, t);
    __syncwarp();
  }
}
