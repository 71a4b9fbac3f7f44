// zero: clears a compact fp32 buffer (the dBias destination or accumulator) before main adds into it.
//
// grid  (min(ceil(count / 1024), 65535 * 8), 1, 1), block 256, no shared memory, no defines.
// parameters: 0 dst, fp32, only element aligned (a caller's fp32 dBias is cleared in place); 1 count.
// writes fully: dst [count].
#include "common/ptx.cuh"

extern "C" __global__ void __launch_bounds__(256) fg_sdpa_bwd_zero(float* dst, i64 count) {
  fg::pdl_wait();
  fg::pdl_launch();
  const i64 me = (i64)blockIdx.x * 256 + threadIdx.x, all = (i64)gridDim.x * 256;
  // Floats before the first 16-byte boundary, whole vectors, the rest.
  const i64 head = fg::min2<i64>(count, (i64)((0 - ((u64)dst >> 2)) & 3));
  const i64 vecs = (count - head) / 4, tail = head + 4 * vecs;
#pragma unroll 4
  for (i64 i = me; i < vecs; i += all) fg::stg_v4(dst + head + 4 * i, 0, 0, 0, 0);
  if (me < head) dst[me] = 0.f;
  if (tail + me < count) dst[tail + me] = 0.f;
}
