// finish: sums that main left in slots, in a fixed order.
//   blocks [0, dprob_blocks)   256 rows: dprob[row] = sum over column tiles of slots[tile][row]; 0 behind the last expert
//   the rest                   one expert, 128 columns: dbias = bf16(sum of its 32-row partial sums); 0 for an expert without rows
//
// grid (dprob_blocks + experts * ceil(n / 128)), or without the second kind; block 512. reads head (blocks, status) of prep. writes fully what it is given.
#include "common/ptx.cuh"

extern "C" __global__ void __launch_bounds__(512) fg_grouped_gemm_finish(const float* slots, float* dprob, const float* partial, u16* dbias, const i32* offsets, const i32* head,
                                                                       i64 m, i32 n, i32 dprob_blocks) {
  using namespace fg;
  __shared__ float sums[4][128];
  pdl_wait();
  pdl_launch();
  const i32 tid = threadIdx.x, tiles = ceil_div(n, 128);
  const i64 rows = (i64)head[0] * 256;
  if ((i32)blockIdx.x < dprob_blocks) {
    const i64 row = (i64)blockIdx.x * 256 + tid;
    if (tid >= 256 || row >= m) return;
    float sum = 0.f;
    if (row < rows)
      for (i32 t = 0; t < tiles; t++) sum += slots[(i64)t * m + row];
    dprob[row] = sum;
    return;
  }
  const i32 at = (i32)blockIdx.x - dprob_blocks, expert = at / tiles, col = at % tiles * 128 + (tid & 127), part = tid >> 7;
  const i32 faulty = (head[1] & 0xffff) - 1;  // the first expert that has no rows because of its end; -1: none
  const bool good = faulty < 0 || expert < faulty;
  const i32 first = good && expert ? offsets[expert - 1] / 32 : 0, end = good ? offsets[expert] / 32 : 0;
  // Four interleaved sums, then those four in order: the same order on every run.
  float sum = 0.f;
  if (col < n)
    for (i32 b = first + part; b < end; b += 4) sum += partial[(i64)b * n + col];
  sums[part][tid & 127] = sum;
  __syncthreads();
  if (part == 0 && col < n) {
    const u32 two = pack2<1>((sums[0][tid] + sums[1][tid]) + (sums[2][tid] + sums[3][tid]), 0.f);
    dbias[(i64)expert * n + col] = (u16)two;
  }
}
