// The tile table: which expert owns which 256 rows, made on the device from padded_offsets, and the word that tells about ends that cannot be.
#pragma once
#include "grouped_gemm/weights.cuh"

namespace fg {

constexpr int ROW_ALIGN = 256, MAX_EXPERTS = 1024;

// One entry per 256 rows.
struct alignas(16) Block {
  i32 expert, first, count, pad;  // expert, its first block, its number of blocks
};
// What stands before the entries.
struct alignas(16) Head {
  i32 blocks, status, pad0, pad1;
};
// Status word: one more than the number of the first faulty expert, and what is wrong with it.
constexpr i32 STATUS_DECREASING = 1 << 16, STATUS_UNALIGNED = 1 << 17, STATUS_BEYOND = 1 << 18, STATUS_WEIGHTS = 1 << 19;

FG_DEV bool has_rows(const i32* offsets, i32 e) { return offsets[e] > (e ? offsets[e - 1] : 0); }

// What is wrong with expert e.
FG_DEV i32 fault(const i32* offsets, i32 e, i64 m, const WeightList& w) {
  const i32 end = offsets[e], begin = e ? offsets[e - 1] : 0;
  const i32 bad = (end < begin ? STATUS_DECREASING : 0) | (end % ROW_ALIGN ? STATUS_UNALIGNED : 0) | (end > m ? STATUS_BEYOND : 0);
  return bad | (WEIGHT_LIST && end > begin && !w.usable(e) ? STATUS_WEIGHTS : 0);
}

// One block of threads writes head, table, status (unless null) and amax (unless null: -inf for every expert).
FG_DEV void write_table(const i32* offsets, i32 experts, i64 m, const WeightList& w, i32* head, Block* table, float* amax, i32* status) {
  __shared__ u32 s_bad[1], s_off[MAX_EXPERTS];
  const i32 tid = threadIdx.x, threads = blockDim.x;
  // The first faulty expert takes itself and all after it out: nothing of theirs is computed.
  if (tid == 0) s_bad[0] = ~0u;
  __syncthreads();
  for (i32 e = tid; e < experts; e += threads)
    if (fault(offsets, e, m, w)) atomicMin(&s_bad[0], (u32)e);
  __syncthreads();
  const i32 good = (i32)min2(s_bad[0], (u32)experts);
  for (i32 e = tid; e < experts; e += threads) s_off[e] = e < good ? (u32)offsets[e] / ROW_ALIGN : good ? (u32)offsets[good - 1] / ROW_ALIGN : 0;
  __syncthreads();
  const i32 blocks = (i32)s_off[experts - 1];
  if (tid == 0) {
    head[0] = blocks;
    const i32 word = good == experts ? 0 : fault(offsets, good, m, w) | (good + 1);
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
}

}  // namespace fg
