// The probabilities of one kv tile in registers, and their NVFP4 fake quantisation in blocks of 16 consecutive keys.
//
// The score accumulators of n8 tiles 2 g and 2 g + 1 hold keys 16 g .. 16 g + 15 of the tile: for a row, four in each lane of a quad. Tiles
// begin at multiples of 16 keys, so these are the blocks of the absolute key axis, and each is one k-step of P V.
#pragma once
#include "common/nvfp4.cuh"
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

// The lane's four values of one block: half h of slab i.
struct Part {
  float &a, &b, &c, &d;
  FG_DEV float top() const { return fmaxf(fmaxf(a, b), fmaxf(c, d)); }
  template <class F> FG_DEV void each(F&& f) const { a = f(a), b = f(b), c = f(c), d = f(d); }
};
FG_DEV Part part(float (&s)[MT][S_NT][4], int i, int g, int h) {
  return {s[i][2 * g][2 * h], s[i][2 * g][2 * h + 1], s[i][2 * g + 1][2 * h], s[i][2 * g + 1][2 * h + 1]};
}

// Blocks are scaled four at a time: two slabs of one k-step, or two k-steps of one slab. Each lane of a quad reduces and scales one of the
// four and hands the scale on; every lane scaling all four by itself took 60 instructions more.
constexpr int AT_ONCE = MT == 2 ? 1 : 2;
FG_DEV Part part_of(float (&s)[MT][S_NT][4], int g, int x) { return MT == 2 ? part(s, x >> 1, g, x & 1) : part(s, 0, g + (x >> 1), x & 1); }

FG_DEV void quantize_blocks(float (&s)[MT][S_NT][4], int g) {
  constexpr u32 ALL = 0xffffffffu;
  const u32 lane = lane_id();
  const bool up = lane & 2, odd = lane & 1;
  float v[4];
#pragma unroll
  for (int x = 0; x < 4; x++) v[x] = part_of(s, g, x).top();
  // Maxima of blocks 0 and 1 to the lower pair of lanes, of 2 and 3 to the upper; then one block's to each lane.
  const float c = fmaxf(up ? v[2] : v[0], __shfl_xor_sync(ALL, up ? v[0] : v[2], 2));
  const float d = fmaxf(up ? v[3] : v[1], __shfl_xor_sync(ALL, up ? v[1] : v[3], 2));
  const float mine = fp4_scale(fmaxf(odd ? d : c, __shfl_xor_sync(ALL, odd ? c : d, 1))).s;
#pragma unroll
  for (int x = 0; x < 4; x++) {
    const Fp4Scale k = fp4_reciprocal(__shfl_sync(ALL, mine, x, 4));
    part_of(s, g, x).each([&](float p) { return fp4_fake(p, k); });
  }
}

// P -> its fake quantisation, in place. With many keys nearly every P lies below the top of the floor scale, where quantising costs half
// and needs no maximum. One decision a tile: deciding for each column of blocks cut the general path into pieces that cannot overlap, and
// was slower wherever one of the two is not rare (1.31 against 1.24 times the plain walk at d 128, 1.73 against 1.55 at d 64).
FG_DEV void quantize(float (&s)[MT][S_NT][4], float top) {
  if (__any_sync(0xffffffffu, top > FP4_FLOOR_AMAX)) {
#pragma unroll
    for (int g = 0; g < PV_STEPS; g += AT_ONCE) quantize_blocks(s, g);
  } else {
#pragma unroll
    for (int g = 0; g < PV_STEPS; g += AT_ONCE)
#pragma unroll
      for (int x = 0; x < 4; x++) part_of(s, g, x).each([](float p) { return fp4_fake_floor(p); });
  }
}

}  // namespace fg
