// prep: everything the product needs to know before its first tile.
//   blocks [0, row_blocks)             128 rows of A each: largest scale, flag, normalised multipliers; dprob = 0
//   blocks [row_blocks, + col_blocks)  128 columns of one expert's B each: largest scale of each and of all, flag
//   last block                         padded_offsets -> tile table and status; sets amax to -inf
//
// block 128 or 512 (one or four threads a line of scales: short lines make many blocks, long lines long ones). parameters in the order of the entry point; every pointer 16-byte aligned. pointers that a configuration does not use may be null.
// writes fully: fields [row_blocks][k_atoms][512], row_exp [128 row_blocks], row_flag, col_exp [128 col_blocks], col_top, col_flag, head, table [head.blocks],
// dprob [m] (unless null), amax [experts] (unless null).
#include "grouped_gemm/sm90/config.cuh"

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
// What is wrong with the end of expert e.
FG_DEV i32 fault(const i32* offsets, i32 e, i64 m) {
  const i32 end = offsets[e], begin = e ? offsets[e - 1] : 0;
  return (end < begin ? STATUS_DECREASING : 0) | (end % M_TILE ? STATUS_UNALIGNED : 0) | (end > m ? STATUS_BEYOND : 0);
}

}  // namespace fg

extern "C" __global__ void __launch_bounds__(512)
    fg_grouped_gemm_prep(const u8* sfa, const u8* sfb, const i32* offsets, u8* fields, u8* row_exp, i32* row_flag, u8* col_exp, i32* col_top, i32* col_flag,
                         i32* head, fg::Block* table, float* dprob, float* amax, i32* status, i64 m, i32 n, i32 k, i32 experts, i32 row_blocks, i32 col_blocks) {
  using namespace fg;
  __shared__ u32 s_most[4][128], s_least[4][128], s_bad[1], s_top[2], s_off[1024];
  const i32 tid = threadIdx.x, threads = blockDim.x, kg = tid >> 7, parts = threads >> 7, r = tid & 127;
  pdl_wait();
  pdl_launch();
  if ((i32)blockIdx.x == row_blocks + col_blocks) {
    // The first faulty end takes that expert and all after it out: nothing of theirs is computed.
    if (tid == 0) s_bad[0] = ~0u;
    __syncthreads();
    for (i32 e = tid; e < experts; e += threads)
      if (fault(offsets, e, m)) atomicMin(&s_bad[0], (u32)e);
    __syncthreads();
    const i32 good = (i32)min2(s_bad[0], (u32)experts);
    for (i32 e = tid; e < experts; e += threads) s_off[e] = e < good ? (u32)offsets[e] / M_TILE : good ? (u32)offsets[good - 1] / M_TILE : 0;
    __syncthreads();
    const i32 blocks = (i32)s_off[experts - 1];
    if (tid == 0) {
      head[0] = blocks;
      const i32 word = good == experts ? 0 : fault(offsets, good, m) | (good + 1);
      head[1] = word;
      head[2] = head[3] = 0;
      if (status) *status = word;
    }
    for (i32 b = tid; b < blocks; b += threads) {
      i32 lo = 0, hi = experts - 1;  // the first expert that ends behind block b
      while (lo < hi) {
        const i32 mid = (lo + hi) >> 1;
        if ((i32)s_off[mid] > b) hi = mid;
        else lo = mid + 1;
      }
      const i32 first = lo ? (i32)s_off[lo - 1] : 0;
      table[b] = Block{lo, first, (i32)s_off[lo] - first, 0};
    }
    if (amax)
      for (i32 e = tid; e < experts; e += threads) amax[e] = f32_bits(0xff800000u);
    return;
  }
  if (dprob && (i32)blockIdx.x < row_blocks && kg == 0 && (i64)blockIdx.x * 128 + r < m) dprob[(i64)blockIdx.x * 128 + r] = 0.f;
  if (SF_E4M3) return;  // such scales are used as they are given
  const bool is_row = (i32)blockIdx.x < row_blocks;
  const i32 blk = is_row ? blockIdx.x : blockIdx.x - row_blocks;
  const i32 kb = ceil_div(k, SF_VEC), atoms = ceil_div(kb, 4);
  const u32 tail = kb % 4 ? (1u << (8 * (kb % 4))) - 1u : ~0u;
  if (!is_row) {  // no rows, no tiles: the weights of an empty expert are not looked at
    const i32 e = blk / (col_blocks / experts);
    if (offsets[e] <= (e ? offsets[e - 1] : 0)) return;
  }
  const u32* src = reinterpret_cast<const u32*>(is_row ? sfa : sfb) + (i64)blk * atoms * 128 + r;
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
  const bool absent = is_row ? (i64)blk * 128 + line >= m : (blk % (col_blocks / experts)) * 128 + line >= n;
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
