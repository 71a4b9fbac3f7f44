// prep: everything the product needs to know before its first tile.
//   blocks [0, row_blocks)             128 rows of A each: largest scale, flag, normalised multipliers; dprob = 0
//   blocks [row_blocks, + col_blocks)  128 columns of one expert's B each: largest scale of each and of all, flag
//   last block                         padded_offsets -> tile table and status; sets amax to -inf
//
// block 128 or 512 (one or four threads a line of scales: short lines make many blocks, long lines long ones). parameters in the order of the entry point; every pointer 16-byte aligned. pointers that a configuration does not use may be null.
// writes fully: fields [row_blocks][k_atoms][512], row_exp [128 row_blocks], row_flag, col_exp [128 col_blocks], col_top, col_flag, head, table [head.blocks],
// dprob [m] (unless null), amax [experts] (unless null), part_count (unless null).
#include "grouped_gemm/sm90/config.cuh"
#include "grouped_gemm/sm90/expert_map.cuh"

namespace fg {

// Largest byte and (smallest nonzero byte) - 1 of four scales.
FG_DEV void span(u32 w, u32& most, u32& least) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const u32 b = (w >> (8 * i)) & 255u;
    most = max2(most, b);
    least = min2(least, (b - 1u) & 255u);
  }
}

}  // namespace fg

extern "C" __global__ void __launch_bounds__(512)
    fg_grouped_gemm_prep(const __grid_constant__ TensorMap map_b, const u8* sfa, const u8* b, const u8* sfb, const i64* b_ptrs, const i64* sfb_ptrs, const i32* offsets, u8* fields, u8* row_exp,
                         i32* row_flag, u8* col_exp, i32* col_top, i32* col_flag, i32* head, fg::Block* table, u8* maps, const u8** sfb_at, float* dprob, float* amax, i32* status, i32* part_count,
                         i64 b_pool, i64 sfb_pool, i64 b_bytes, i64 sfb_bytes, i64 m, i32 n, i32 k, i32 experts, i32 row_blocks, i32 col_blocks) {
  using namespace fg;
  __shared__ u32 s_most[4][128], s_least[4][128], s_top[2];
  const i32 tid = threadIdx.x, threads = blockDim.x, kg = tid >> 7, parts = threads >> 7, r = tid & 127;
  const WeightList list{b, sfb, b_ptrs, sfb_ptrs, b_pool, sfb_pool, b_bytes, sfb_bytes};
  pdl_wait();
  pdl_launch();
  if ((i32)blockIdx.x == row_blocks + col_blocks) {
    write_table(offsets, experts, m, list, head, table, amax, status);
    if (part_count)
      for (i32 i = tid; i < PART_COUNTS; i += threads) part_count[i] = 0;
    return;
  }
  if (dprob && (i32)blockIdx.x < row_blocks && kg == 0 && (i64)blockIdx.x * 128 + r < m) dprob[(i64)blockIdx.x * 128 + r] = 0.f;
  const bool is_row = (i32)blockIdx.x < row_blocks;
  const i32 blk = is_row ? blockIdx.x : blockIdx.x - row_blocks, col_tiles = col_blocks / experts;
  const u8* scales = (is_row ? sfa : sfb);
  i64 slice = blk;
  if (!is_row) {  // no rows, no tiles: the weights of an empty expert are not looked at
    const i32 e = blk / col_tiles;
    if (!has_rows(offsets, e)) return;
    if (WEIGHT_LIST) {
      if (!list.usable(e)) return;
      scales = list.sfb_of(e);
      slice = blk % col_tiles;
      if (slice == 0 && tid == 0) {
        write_map(reinterpret_cast<TensorMap*>(maps) + e, map_b, list.b_of(e));
        sfb_at[e] = scales;
      }
    }
  }
  if (SF_E4M3) return;  // such scales are used as they are given
  const i32 kb = ceil_div(k, SF_VEC), atoms = ceil_div(kb, 4);
  const u32 tail = kb % 4 ? (1u << (8 * (kb % 4))) - 1u : ~0u;
  const u32* src = reinterpret_cast<const u32*>(scales) + slice * atoms * 128 + r;
  u32 most = 0, least = 255;
#pragma unroll 8
  for (i32 a = kg; a < atoms; a += parts) span(src[(i64)a * 128] & (a == atoms - 1 ? tail : ~0u), most, least);
  s_most[kg][r] = most;
  s_least[kg][r] = least;
  __syncthreads();
  for (i32 i = 0; i < parts; i++) {
    most = max2(most, s_most[i][r]);
    least = min2(least, s_least[i][r]);
  }
  const i32 line = (r >> 2) + 32 * (r & 3);  // the row or column whose scales word r of an atom holds
  const bool absent = is_row ? (i64)blk * 128 + line >= m : blk % col_tiles * 128 + line >= n;
  if (absent) {
    most = 0;
    least = 255;
  }
  // least + 1 is the smallest nonzero byte (none: 256).
  if (is_row) {
    // A NaN scale poisons its row in the epilogue and asks for nothing here.
    const bool wide = most != 255 && most != 0 && ((i32)most - (i32)least - 1 > DEFICIT || (i32)most > 127 + ROWS_FAR || (i32)most < 127 - ROWS_FAR);
    const i32 any = __syncthreads_or(wide);
    if (kg == 0) row_exp[(i64)blk * 128 + line] = (u8)most;
    if (tid == 0) row_flag[blk] = any;
  } else {
    if (tid == 0) {
      s_top[0] = 0;
      s_top[1] = 255;
    }
    __syncthreads();
    if (kg == 0) {
      col_exp[(i64)blk * 128 + line] = (u8)most;
      atomicMax(&s_top[0], most);
      atomicMin(&s_top[1], least);
    }
    __syncthreads();
    if (tid == 0) {
      const i32 top = (i32)s_top[0], low = (i32)s_top[1] + 1;
      col_top[blk] = top;
      // The wide loop keeps a NaN to its column.
      col_flag[blk] = top != 0 && (top == 255 || top - low > DEFICIT || top > 127 + COLS_FAR || top < 127 - COLS_FAR);
    }
  }
  if (is_row) {
    u32* dst = reinterpret_cast<u32*>(fields) + (i64)blk * atoms * 128 + r;
#pragma unroll 4
    for (i32 a = kg; a < atoms; a += parts) {
      const u32 w = src[(i64)a * 128] & (a == atoms - 1 ? tail : ~0u);
      u32 f = 0;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const i32 b = (w >> (8 * i)) & 255, x = b - (i32)most + FIELD_MAX;
        f |= (b == 0 || x < 0 ? 0u : (u32)x * 4u) << (8 * i);
      }
      dst[(i64)a * 128] = f;
    }
  }
}
