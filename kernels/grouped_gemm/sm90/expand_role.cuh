// The warpgroup that makes 16-bit B of raw stages: its loop over tiles and k. What it does to a column is `Form`'s (k_major.cuh, n_major.cuh):
//   tile(hdr, wide)            a tile begins
//   scales(s, at, tail, last)  its columns' scale words of the stage at `at`; `tail` masks them in the last step of k
//   load(v, at, half)          raw words of 64 k
//   store(v, s, slot, half)    to their place in a slot (a byte offset) of the 16-bit ring
// Words and scales are the loop's own variables: as members they live from one iteration to the next, and ptxas then unrolls every wait.
#pragma once
#include "grouped_gemm/sm90/expand.cuh"

namespace fg {

template <class Form> FG_DEV void expand_role(i32 total, i32 k, u32 sm, u32 lane, Form form) {
  const u32 bar = sm + AT_BAR;
  const i32 steps = ceil_div(k, 128);
  const Tail tail = tail_of(k);
  Raw ring;
  Ring<B16> b;
  u32 it = 0;
#pragma unroll 1
  for (i32 tile = blockIdx.x; tile < total; tile += gridDim.x, it++) {
    const u32 hdr = wait_header(sm, it);
    form.tile(hdr, lds_u32(hdr + HDR_WORDS + WORD_WIDE));
#pragma unroll 1
    for (i32 s = 0; s < steps; s++) {
      const u32 at = sm + ring.slot() * STAGE;
      mbar_wait(bar + FULL + 8 * ring.slot(), ring.parity());
      typename Form::Scales scales;
      form.scales(scales, at, tail, s + 1 == steps);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        typename Form::Words words;
        form.load(words, at, half);
        mbar_wait(bar + B_EMPTY + 8 * b.slot(), b.parity() ^ 1);
        form.store(words, scales, b.slot() * B16_BYTES, half);
        fence_async_smem();
        __syncwarp();
        if (lane == 0) {
          mbar_arrive(bar + B_FULL + 8 * b.slot());
          if (half) mbar_arrive(bar + EMPTY + 8 * ring.slot());
        }
        b.next();
      }
      ring.next();
    }
    pass_c<2 * C_SLOTS>(sm, ring, lane);
    free_header(sm, it, lane);
  }
}

}  // namespace fg
