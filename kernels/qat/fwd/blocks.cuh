// NVFP4 fake quantisation of four blocks of probabilities at a time, as tensor-core accumulators hold them: a lane has four of a block's 16
// keys (columns 2t, 2t + 1 of two adjacent n8 tiles) and its quad has all of them.
#pragma once
#include "common/nvfp4.cuh"

namespace fg {

// A lane's four values of one block.
struct Part {
  float &a, &b, &c, &d;
  FG_DEV float top() const { return fmaxf(fmaxf(a, b), fmaxf(c, d)); }
  template <class F> FG_DEV void each(F&& f) const { a = f(a), b = f(b), c = f(c), d = f(d); }
};

// Any values. Each lane of a quad reduces and scales one of the four blocks and hands the scale on; every lane scaling all four by itself
// took 60 instructions more.
FG_DEV void fake_blocks(const Part (&x)[4]) {
  constexpr u32 ALL = 0xffffffffu;
  const u32 lane = lane_id();
  const bool up = lane & 2, odd = lane & 1;
  const float v[4] = {x[0].top(), x[1].top(), x[2].top(), x[3].top()};
  // Maxima of blocks 0 and 1 to the lower pair of lanes, of 2 and 3 to the upper; then one block's to each lane.
  const float c = fmaxf(up ? v[2] : v[0], __shfl_xor_sync(ALL, up ? v[0] : v[2], 2));
  const float d = fmaxf(up ? v[3] : v[1], __shfl_xor_sync(ALL, up ? v[1] : v[3], 2));
  const float mine = fp4_scale(fmaxf(odd ? d : c, __shfl_xor_sync(ALL, odd ? c : d, 1))).s;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const Fp4Scale k = fp4_reciprocal(__shfl_sync(ALL, mine, i, 4));
    x[i].each([&](float p) { return fp4_fake(p, k); });
  }
}

// Values up to FP4_FLOOR_AMAX: the scale is the floor, no maximum is needed.
FG_DEV void fake_blocks_floor(const Part (&x)[4]) {
#pragma unroll
  for (int i = 0; i < 4; i++) x[i].each([](float p) { return fp4_fake_floor(p); });
}

// Steps i = 0, STEP, ... < N, each of which fakes the four blocks that blocks(i, f) passes to f, by what the warp's largest value needs.
//
// With many keys nearly every P lies below the top of the floor scale, where quantising costs half. One decision a tile: deciding for each column of
// blocks cut the general path into pieces that cannot overlap, and was slower wherever one of the two is not rare.
template <int N, int STEP, class Blocks> FG_DEV void fake_tile(float top, Blocks&& blocks) {
  if (__any_sync(0xffffffffu, top > FP4_FLOOR_AMAX)) {
#pragma unroll
    for (int i = 0; i < N; i += STEP) blocks(i, [](const Part(&x)[4]) { fake_blocks(x); });
  } else {
#pragma unroll
    for (int i = 0; i < N; i += STEP) blocks(i, [](const Part(&x)[4]) { fake_blocks_floor(x); });
  }
}

}  // namespace fg
