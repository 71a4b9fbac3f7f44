// What the roles of both forms of main share: how they take turns at the barriers. Uses the constants of main_config.cuh or pair/config.cuh, which include it at their ends.
#pragma once
#include "grouped_gemm/sm90/params.cuh"

namespace fg {

using Raw = Ring<STAGES>;
// Barriers behind AT_BAR: of raw stages, of slots of 16-bit B, of headers.
constexpr u32 FULL = 0, EMPTY = FULL + 8 * STAGES, B_FULL = EMPTY + 8 * STAGES, B_EMPTY = B_FULL + 8 * B16, H_FULL = B_EMPTY + 8 * B16, H_EMPTY = H_FULL + 16;
static_assert(H_EMPTY + 16 <= 256, "barrier space");

// By one thread. `b_readers`: warps that must have read a slot of 16-bit B before it is written again.
FG_DEV void init_barriers(u32 bar, u32 b_readers) {
  for (u32 s = 0; s < STAGES; s++) {
    mbar_init(bar + FULL + 8 * s, 1);
    mbar_init(bar + EMPTY + 8 * s, MATH_WARPS + DEQUANT_WARPS);
  }
  for (u32 s = 0; s < B16; s++) {
    mbar_init(bar + B_FULL + 8 * s, DEQUANT_WARPS);
    mbar_init(bar + B_EMPTY + 8 * s, b_readers);
  }
  for (u32 s = 0; s < 2; s++) {
    mbar_init(bar + H_FULL + 8 * s, 1);
    mbar_init(bar + H_EMPTY + 8 * s, MATH_WARPS + DEQUANT_WARPS);
  }
  mbar_init_fence();
}

// Headers are two deep: that of this CTA's item number `it`.
FG_DEV u32 wait_header(u32 sm, u32 it) {
  mbar_wait(sm + AT_BAR + H_FULL + 8 * (it & 1), (it >> 1) & 1);
  return sm + AT_HDR + (it & 1) * HDR;
}
FG_DEV void free_header(u32 sm, u32 it, u32 lane) {
  __syncwarp();
  if (lane == 0) mbar_arrive(sm + AT_BAR + H_EMPTY + 8 * (it & 1));
}

// C, behind a tile's last step of k: one thread brings it. `col`, `row`: the tile's first.
FG_DEV void copy_c(const TensorMap* map, u32 sm, Raw& ring, i32 col, i32 row) {
#pragma unroll 1
  for (u32 i = 0; i < 2 * C_SLOTS; i++) {
    const u32 at = sm + ring.slot() * STAGE, full = sm + AT_BAR + FULL + 8 * ring.slot();
    mbar_wait(sm + AT_BAR + EMPTY + 8 * ring.slot(), ring.parity() ^ 1);
    mbar_expect(full, C_PER_SLOT * C_BOX);
#pragma unroll
    for (u32 x = 0; x < C_PER_SLOT; x++) {
      const i32 box = (i32)(i % C_SLOTS * C_PER_SLOT + x);
      tma_load_2d(at + x * C_BOX, map, full, col + box * (128 / width(C_TYPE)), row + (i32)(i / C_SLOTS * C_ROWS));
    }
    ring.next();
  }
}
// Slots of C that this warp does not read pass by.
template <u32 SLOTS> FG_DEV void pass_c(u32 sm, Raw& ring, u32 lane) {
#pragma unroll 1
  for (u32 i = 0; i < SLOTS; i++) {
    mbar_wait(sm + AT_BAR + FULL + 8 * ring.slot(), ring.parity());
    __syncwarp();
    if (lane == 0) mbar_arrive(sm + AT_BAR + EMPTY + 8 * ring.slot());
    ring.next();
  }
}

}  // namespace fg
