// table: which expert owns which 256 rows (block 0), and zeros in dprob (the others, 4096 each; none where it is null).
//
// grid 1 + ceil(m / 4096) or 1, block 512. Writes head, table [head.blocks], dprob [m], amax [experts] = -inf and status where they are not null.
#include "grouped_gemm/table.cuh"

extern "C" __global__ void __launch_bounds__(512) fg_grouped_gemm_table(const u8* b, const u8* sfb, const i64* b_ptrs, const i64* sfb_ptrs, const i32* offsets, i32* head, fg::Block* table, float* dprob, float* amax,
                                                                        i32* status, i64 b_pool, i64 sfb_pool, i64 b_bytes, i64 sfb_bytes, i64 m, i32 experts) {
  using namespace fg;
  pdl_wait();
  pdl_launch();
  if (blockIdx.x == 0) {
    write_table(offsets, experts, m, WeightList{b, sfb, b_ptrs, sfb_ptrs, b_pool, sfb_pool, b_bytes, sfb_bytes}, head, table, amax, status);
    return;
  }
  const i64 first = ((i64)blockIdx.x - 1) * 4096;
  for (i64 i = first + threadIdx.x; i < min2(first + 4096, m); i += blockDim.x) dprob[i] = 0.f;
}
