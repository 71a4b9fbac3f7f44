// fg_sdpa_bwd_dq2k: dQ = scale * dS K, the second kernel of the deterministic two-kernel route. dS is what main streamed out.
//
// One CTA owns FG_Q2_TILE query rows of one head: one TMA warp feeds (dS panel, K tile) pairs of 64 keys through a two-stage ring,
// and one math warp per 16 rows accumulates its rows over an ascending kv walk. The order of additions is fixed: bitwise reproducible.
// grid (ceil(S_q, Q2_TILE) * H_q * B), q tile fastest and descending; block (Q2_TILE/16 + 1) * 32; smem fg_sdpa_bwd_dq2k_smem bytes.
// Defines FG_BF16, FG_D_QK, FG_Q_TILE, FG_KV_TILE (main's tiles), FG_Q2_TILE, FG_CAUSAL, FG_WINDOW. Parameters: README.md.
// Writes fully: dQ rows < S_q, columns < d_qk.
#include "common/mma_tile.cuh"
#include "common/ptx.cuh"
#include "sdpa/bwd/mma/chain.cuh"
#if !defined(FG_BF16) || !defined(FG_D_QK) || !defined(FG_Q_TILE) || !defined(FG_KV_TILE) || !defined(FG_Q2_TILE)
#error "dq2k.cu needs FG_BF16, FG_D_QK, FG_Q_TILE, FG_KV_TILE, FG_Q2_TILE"
#endif
#if !defined(FG_CAUSAL) || !defined(FG_WINDOW)
#error "dq2k.cu needs FG_CAUSAL, FG_WINDOW"
#endif

namespace fg {
constexpr int D = FG_D_QK, Q2 = FG_Q2_TILE, WARPS = Q2 / 16, STAGES = 2, KB = 64;
static_assert(D % 64 == 0 && D <= 256, "64-column chunks");
static_assert(Q2 % FG_Q_TILE == 0 || FG_Q_TILE % Q2 == 0, "tiles must nest");
constexpr u32 DS_BYTES = Q2 * KB * 2, K_BYTES = KB * D * 2, STAGE_BYTES = DS_BYTES + K_BYTES;
constexpr u32 OFF_BAR = STAGES * STAGE_BYTES, SMEM_BYTES = OFF_BAR + 64;
static_assert(Q2 * D * 2 <= (int)OFF_BAR, "the output tile is staged in the ring");

// 64-key blocks [first, end) of dS that main stored for the q tile starting at row q0.
struct Walk {
  i32 first, end;
};
FG_DEV Walk stored_blocks(const Band& m, i32 q0, i32 s_q, i32 s_kv) {
  constexpr i32 PER = FG_KV_TILE / KB;
  if (q0 >= s_q || q_tile_dead<FG_WINDOW>(m, q0, s_kv)) return {0, 0};
  return {kv_tile_first<FG_WINDOW, FG_KV_TILE>(m, q0) * PER, min2(kv_tile_end<FG_CAUSAL, FG_KV_TILE>(m, q0 + FG_Q_TILE, s_kv) * PER, ceil_div(s_kv, KB))};
}
}  // namespace fg

extern "C" __device__ const int fg_sdpa_bwd_dq2k_smem = fg::SMEM_BYTES;

extern "C" __global__ void __launch_bounds__((FG_Q2_TILE / 16 + 1) * 32)
    fg_sdpa_bwd_dq2k(const __grid_constant__ TensorMap tm_ds, const __grid_constant__ TensorMap tm_k, u16* dq, i64 dq_sb, i64 dq_sh, i64 dq_ss,
                     i32 batch, i32 heads_q, i32 group, i32 s_q, i32 s_kv, i32 d_qk, i32 window_left, i32 window_right, i32 bottom_right,
                     float scale) {
  using namespace fg;
  extern __shared__ __align__(1024) u8 smem_raw[];
  const u32 smem = smem_addr(smem_raw), bar_full = smem + OFF_BAR, bar_free = bar_full + 8 * STAGES;
  const u32 warp = uniform(threadIdx.x / 32), lane = lane_id();

  const u32 tiles = (u32)ceil_div(s_q, Q2), bh = blockIdx.x / tiles;
  const i32 tile = (i32)(tiles - 1 - (blockIdx.x - bh * tiles));  // causal: the longest walks start first
  const i32 b = (i32)(bh / (u32)heads_q), h = (i32)(bh - (u32)b * (u32)heads_q), r0 = tile * Q2;
  const Band band = make_band(bottom_right, s_q, s_kv, window_left, window_right);
  // The CTA walks the union of its main-tiles' blocks; the first tile has the lowest start.
  Walk all = stored_blocks(band, r0 / FG_Q_TILE * FG_Q_TILE, s_q, s_kv);
  for (i32 q0 = r0 / FG_Q_TILE * FG_Q_TILE; q0 < min2(r0 + Q2, s_q); q0 += FG_Q_TILE) all.end = max2(all.end, stored_blocks(band, q0, s_q, s_kv).end);

  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      mbar_init(bar_full + 8 * i, 1);
      mbar_init(bar_free + 8 * i, WARPS);
    }
    mbar_init_fence();
  }
  __syncthreads();
  pdl_wait();
  pdl_launch();

  if (warp == WARPS) {
    if (lane != 0) return;
    u32 st = 0, ph = 1;
#pragma unroll 1
    for (i32 n = all.first; n < all.end; n++) {
      const u32 dst = smem + st * STAGE_BYTES, bar = bar_full + 8 * st;
      mbar_wait(bar_free + 8 * st, ph);
      mbar_expect(bar, STAGE_BYTES);
      tma_load_3d(dst, &tm_ds, bar, n * KB, r0, (i32)bh);
#pragma unroll
      for (int c = 0; c < D / 64; c++) tma_load_4d(dst + DS_BYTES + c * KB * 128, &tm_k, bar, c * 64, n * KB, h / group, b);
      if (++st == STAGES) st = 0, ph ^= 1;
    }
    return;
  }

  // Blocks outside this warp's own band were never written by main (garbage, possibly NaN): skip them, do not multiply by zero.
  const i32 mine0 = (r0 + (i32)warp * 16) / FG_Q_TILE * FG_Q_TILE;
  const Walk mine = stored_blocks(band, mine0, s_q, s_kv);
  using OpDS = Operand<Q2, 64, WARPS, false, true>;
  using OpK = Operand<KB, 64, 1, true, false>;
  const u32 b_ds = OpDS::lane_base(warp, lane), b_k = OpK::lane_base(0, lane);
  constexpr int NT = D / 8;
  float acc[1][NT][4] = {};
  u32 st = 0, ph = 0;
#pragma unroll 1
  for (i32 n = all.first; n < all.end; n++) {
    const u32 src = smem + st * STAGE_BYTES;
    mbar_wait(bar_full + 8 * st, ph);
    if (n >= mine.first && n < mine.end) {
#pragma unroll
      for (int ks = 0; ks < KB / 16; ks++) {
        u32 a[1][4], kf[2][4][2];  // K fragments in groups of 32 columns, the next group in flight
        OpDS::load_a<1>(src + b_ds, ks, a);
        OpK::load_b<4>(src + DS_BYTES + b_k, ks, kf[0], 0);
#pragma unroll
        for (int q = 0; q < NT / 4; q++) {
          if (q + 1 < NT / 4) OpK::load_b<4>(src + DS_BYTES + b_k, ks, kf[(q + 1) & 1], 2 * (q + 1));
#pragma unroll
          for (int j = 0; j < 4; j++) {
            float(&c)[4] = acc[0][4 * q + j];
            mma_16816<FG_BF16>(c, a[0], kf[q & 1][j], c[0], c[1], c[2], c[3]);
          }
        }
      }
    }
    sched_fence(n);  // the ldmatrix results must be in before the refill may start: see `release` in main_ops.cuh
    if (lane == 0) mbar_arrive(bar_free + 8 * st);
    if (++st == STAGES) st = 0, ph ^= 1;
  }

  // Stage the tile through the drained ring so that the stores are whole 16-byte vectors of consecutive columns.
  bar_sync<1, WARPS * 32>();
  using Out = Stash<Q2, 64, WARPS, 1>;
  const u32 b_out = smem + Out::lane_base(warp, 0, lane);
#pragma unroll
  for (int j = 0; j < NT; j += 2) Out::put<FG_BF16>(b_out, 0, j / 2, acc[0][j], acc[0][j + 1], scale);
  __syncwarp();
  u16* out = dq + ((i64)b * dq_sb + (i64)h * dq_sh);
#pragma unroll
  for (int n = 0; n < NT / 2; n++) {
    const u32 v = n * 32 + lane, row = warp * 16 + v / NT, c = v % NT;
    u32 x, y, z, t;
    lds_v4(smem + (c / 8) * (Q2 * 128) + row * 128 + (((c & 7) ^ (row & 7)) << 4), x, y, z, t);
    if (r0 + (i32)row < s_q && (i32)(c * 8) < d_qk) stg_v4(out + ((i64)(r0 + (i32)row) * dq_ss + c * 8), x, y, z, t);
  }
}
