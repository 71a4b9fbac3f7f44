// status: what is wrong with offsets and indices, as one word. One block; launched only where the word is asked for.
#include "moe/sm90/config.cuh"

extern "C" __global__ void __launch_bounds__(1024)
    fg_moe_status(const void* offsets, const i32* index, const i32* ks, i32* status, i32 tokens, i32 routed, i32 groups, i32 experts, i32 top_k) {
  using namespace fg;
  __shared__ u32 s_bad;
  const Routing p{offsets, index, ks, tokens, routed, groups, experts, top_k};
  pdl_wait();
  pdl_launch();
  if (threadIdx.x == 0) s_bad = ~0u;
  __syncthreads();
  for (i32 g = threadIdx.x; g < groups; g += 1024)
    if (fault(p, g, boundary(p, g), boundary(p, g + 1))) atomicMin(&s_bad, (u32)g);
  __syncthreads();
  const i32 good = (i32)min2(s_bad, (u32)groups);
  i32 word = good == groups ? 0 : fault(p, good, boundary(p, good), boundary(p, good + 1)) | (good + 1);
  bool out = false;
  // Rows of the good groups only.
  if (MODE != NONE && good > 0)
    for (i64 r = boundary(p, 0) + threadIdx.x; r < boundary(p, good); r += 1024) out |= target(p, (i32)r) < 0;
  word |= __syncthreads_or(out) ? INDEX : 0;
  if (threadIdx.x == 0) *status = word;
}
