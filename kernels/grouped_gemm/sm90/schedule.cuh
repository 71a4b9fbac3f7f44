// Which CTA does what: one tile after another, each whole. The cluster form has its own (pair/schedule.cuh).
#pragma once
#include "common/ptx.cuh"

namespace fg {

// A tile's steps begin .. end of k.
struct Work {
  i32 tile, begin, end;
};
struct Schedule {
  i32 items, steps;
  FG_DEV Schedule(i32 tiles, i32 k) : items(tiles), steps(ceil_div(k, 128)) {}
  FG_DEV static i32 first() { return blockIdx.x; }
  FG_DEV static i32 stride() { return gridDim.x; }
  FG_DEV Work at(i32 item) const { return {item, 0, steps}; }
};

}  // namespace fg
