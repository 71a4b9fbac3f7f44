// The probabilities of one kv tile in registers, and their NVFP4 fake quantisation in blocks of 16 consecutive keys.
//
// The score accumulators of n8 tiles 2 g and 2 g + 1 hold keys 16 g .. 16 g + 15 of the tile. Tiles begin at multiples of 16 keys, so these
// are the blocks of the absolute key axis, and each is one k-step of P V.
#pragma once
#include "qat/fwd/blocks.cuh"
#include "sdpa/fwd/mma/prefill_math.cuh"

namespace fg {

// Raw scores -> P; dead ones are -inf and become 0. Returns the lane's largest value.
FG_DEV float probabilities(float (&s)[MT][S_NT][4], const float (&neg_lse)[MT][2], float mul) {
  float top = 0.f;
#pragma unroll
  for (int i = 0; i < MT; i++)
#pragma unroll
    for (int j = 0; j < S_NT; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const float p = ex2(fmaf(s[i][j][e], mul, neg_lse[i][e >> 1]));
        s[i][j][e] = p;
        top = fmaxf(top, p);
      }
  return top;
}

// Half h of slab i in block column g.
FG_DEV Part part(float (&s)[MT][S_NT][4], int i, int g, int h) {
  return {s[i][2 * g][2 * h], s[i][2 * g][2 * h + 1], s[i][2 * g + 1][2 * h], s[i][2 * g + 1][2 * h + 1]};
}

// P -> its fake quantisation, in place: two slabs of one block column at a time, or two columns of one slab.
FG_DEV void quantize(float (&s)[MT][S_NT][4], float top) {
  constexpr int SLAB = MT - 1, COLUMN = 2 - MT;
  // A function type rather than auto: NVRTC takes a generic lambda for a host function. It is inlined all the same.
  fake_tile<PV_STEPS, 1 + COLUMN>(top, [&](int g, void (*fake)(const Part(&)[4])) {
    const Part x[4] = {part(s, 0, g, 0), part(s, 0, g, 1), part(s, SLAB, g + COLUMN, 0), part(s, SLAB, g + COLUMN, 1)};
    fake(x);
  });
}

}  // namespace fg
