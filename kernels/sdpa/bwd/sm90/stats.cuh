// Where the rows' LSE and delta lie: the agreement of the statistics warp (load.cuh) and the math warps.
#pragma once
#include "sdpa/bwd/sm90/config.cuh"

namespace fg {

// Row statistics of a buffer.
FG_DEV u32 lse_at(u32 buffer) { return OFF_LSE + buffer * (TQ * 4); }
FG_DEV u32 delta_at(u32 buffer) { return OFF_DELTA + buffer * (TQ * 4); }
// Place of a row's number in its buffer. STATS_AHEAD: what a lane wants of 16 rows, two columns of each of two blocks of 8, are 16 bytes.
FG_DEV u32 stat_place(u32 row) { return STATS_AHEAD ? (row & ~15u) + (row >> 1 & 3) * 4 + (row >> 3 & 1) * 2 + (row & 1) : row; }

}  // namespace fg
