// fg_qat_fwd_quantize: Q, K, V -> their NVFP4 fake quantisation (blocks of 16 along the head dim) as contiguous bf16 [B, H, S, d] copies.
// The first launch of the forward chain. Every row < S is quantised, those past a length too: the copies are read where Q, K, V would be.
//
// grid: 1-D, B * (H_q * ceil(S_q, rows(d_qk)) + H_kv * (ceil(S_kv, rows(d_qk)) + ceil(S_kv, rows(d_v)))) with rows(d) = 8192 / d rounded
// down; block 256. The row tiles of Q, K and V lie behind each other in the grid.
#include "common/nvfp4.cuh"

#if !defined(FG_D_QK) || !defined(FG_D_V)
#error "quantize.cu needs FG_D_QK and FG_D_V"
#endif

namespace fg {

// A thread has UNITS 16-byte units in flight; a lane pair holds a block.
constexpr i32 THREADS = 256, UNITS = 4;
static_assert(FG_D_QK % 16 == 0 && FG_D_V % 16 == 0, "whole blocks");
template <int D> constexpr i32 TILE_ROWS = THREADS * UNITS / (D / 8);

FG_DEV void ldg_stream_v4(const void* p, u32 (&w)[4]) {
  asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "l"(p));
}

// Rows of one (batch, head): tile `tile` of them.
template <int D> FG_DEV void quantize_rows(const u16* src, u16* dst, i64 ss, i32 tile, i32 rows) {
  u32 w[UNITS][4] = {};
#pragma unroll
  for (int p = 0; p < UNITS; p++) {
    const i32 at = (i32)threadIdx.x + p * THREADS, in = at / (D / 8), r = tile * TILE_ROWS<D> + in;
    if (in < TILE_ROWS<D> && r < rows) ldg_stream_v4(src + ((i64)r * ss + at % (D / 8) * 8), w[p]);
  }
  Fp4Scale k[UNITS];
#pragma unroll
  for (int p = 0; p < UNITS; p += 2) {
    const float x = bf16x2_amax(w[p]), y = bf16x2_amax(w[p + 1]);
    fp4_scales(fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1)), fmaxf(y, __shfl_xor_sync(0xffffffffu, y, 1)), k[p], k[p + 1]);
  }
#pragma unroll
  for (int p = 0; p < UNITS; p++) {
    const i32 at = (i32)threadIdx.x + p * THREADS, in = at / (D / 8), r = tile * TILE_ROWS<D> + in;
#pragma unroll
    for (int i = 0; i < 4; i++) w[p][i] = fp4_fake_bf16x2(w[p][i], k[p]);
    if (in < TILE_ROWS<D> && r < rows) stg_v4(dst + ((i64)r * D + at % (D / 8) * 8), w[p][0], w[p][1], w[p][2], w[p][3]);
  }
}

}  // namespace fg

extern "C" __global__ void __launch_bounds__(fg::THREADS) fg_qat_fwd_quantize(
    const u16* q, const u16* k, const u16* v, u16* q_hat, u16* k_hat, u16* v_hat, i64 q_sb, i64 q_sh, i64 q_ss, i64 k_sb, i64 k_sh, i64 k_ss,
    i64 v_sb, i64 v_sh, i64 v_ss, i32 batch, i32 heads_q, i32 heads_kv, i32 s_q, i32 s_kv) {
  using namespace fg;
  u32 x = blockIdx.x;
  i32 tile, b, h;
  // Whether block x is one of a tensor's; if not, x counts on behind them.
  auto mine = [&](i32 heads, i32 rows, i32 tile_rows) {
    const u32 tiles = (u32)ceil_div(rows, tile_rows), n = tiles * (u32)heads * (u32)batch;
    if (x >= n) {
      x -= n;
      return false;
    }
    const u32 bh = x / tiles;
    tile = (i32)(x - bh * tiles);
    b = (i32)(bh / (u32)heads);
    h = (i32)bh - b * heads;
    return true;
  };
  if (mine(heads_q, s_q, TILE_ROWS<FG_D_QK>))
    quantize_rows<FG_D_QK>(q + ((i64)b * q_sb + (i64)h * q_sh), q_hat + ((i64)b * heads_q + h) * s_q * FG_D_QK, q_ss, tile, s_q);
  else if (mine(heads_kv, s_kv, TILE_ROWS<FG_D_QK>))
    quantize_rows<FG_D_QK>(k + ((i64)b * k_sb + (i64)h * k_sh), k_hat + ((i64)b * heads_kv + h) * s_kv * FG_D_QK, k_ss, tile, s_kv);
  else if (mine(heads_kv, s_kv, TILE_ROWS<FG_D_V>))
    quantize_rows<FG_D_V>(v + ((i64)b * v_sb + (i64)h * v_sh), v_hat + ((i64)b * heads_kv + h) * s_kv * FG_D_V, v_ss, tile, s_kv);
}
