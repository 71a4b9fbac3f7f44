// Which cluster does what: whole tiles in rounds; where a last round would leave most clusters idle, its tiles are split along k.
#pragma once
#include "grouped_gemm/sm90/pair/config.cuh"

namespace fg {

// A tile's steps begin .. end of k; one of `parts`.
struct Work {
  i32 tile, begin, end, part, parts;
};
constexpr i32 MOST_PARTS = 8, LEAST_STEPS = 4;  // a part is not shorter than this

struct Schedule {
  i32 whole, items, parts, steps;
  // By each role for itself: what is made before the roles part is spilled there.
  FG_DEV explicit Schedule(const Params& p) {
    const i32 tiles = p.head[0] * ceil_div(p.n, COLS), clusters = gridDim.x >> 1, left = tiles % clusters;
    steps = ceil_div(p.k, 128);
    parts = left ? max2(1, min2(min2(MOST_PARTS, clusters / left), steps / LEAST_STEPS)) : 1;
    whole = tiles - left;
    items = whole + left * parts;
  }
  FG_DEV static i32 first() { return blockIdx.x >> 1; }
  FG_DEV static i32 stride() { return gridDim.x >> 1; }
  FG_DEV Work at(i32 item) const {
    if (item < whole) return {item, 0, steps, 0, 1};
    const i32 i = item - whole, tile = i / parts, part = i - tile * parts;
    return {whole + tile, steps * part / parts, steps * (part + 1) / parts, part, parts};
  }
};

// Sums of a part, by warpgroup: [item behind the whole tiles][rank][warpgroup][32 units][128 threads] of four values; and how many parts of [tile][rank][warpgroup] are there.
struct Parts {
  float* sums;
  i32* arrived;
};
constexpr i64 PART_FLOATS = 128 * 128;

// True where this warpgroup, `thread` of 128, brought the last part; then d0 and d1 hold the sum of all, added in the order of the parts.
FG_DEV bool join_parts(float (&d0)[64], float (&d1)[64], const Parts& w, const Work& work, i32 whole, u32 rank, u32 c, u32 thread, u32 word) {
  const i32 tile = work.tile - whole, each = 2 * 2 * PART_FLOATS;
  float* tile_sums = w.sums + (i64)tile * work.parts * each + (2 * rank + c) * PART_FLOATS + 4 * thread;
  float* own = tile_sums + (i64)work.part * each;
#pragma unroll
  for (int i = 0; i < 32; i++) {
    const float* d = i < 16 ? d0 + 4 * i : d1 + 4 * i - 64;
    stg_v4(own + 512 * i, __float_as_uint(d[0]), __float_as_uint(d[1]), __float_as_uint(d[2]), __float_as_uint(d[3]));
  }
  __threadfence();
  bar_sync_at<128>(5 + c);
  if (thread == 0) sts_u32(word, (u32)atomicAdd(w.arrived + 4 * tile + 2 * rank + c, 1));
  bar_sync_at<128>(5 + c);
  if ((i32)lds_u32(word) != work.parts - 1) return false;
  __threadfence();
#pragma unroll
  for (int i = 0; i < 64; i++) d0[i] = d1[i] = 0.f;
#pragma unroll 1
  for (i32 part = 0; part < work.parts; part++) {
    const float* from = tile_sums + (i64)part * each;
#pragma unroll
    for (int i = 0; i < 32; i++) {
      const float4 v = __ldcg(reinterpret_cast<const float4*>(from + 512 * i));
      float* d = i < 16 ? d0 + 4 * i : d1 + 4 * i - 64;
      d[0] += v.x;
      d[1] += v.y;
      d[2] += v.z;
      d[3] += v.w;
    }
  }
  return true;
}

}  // namespace fg
