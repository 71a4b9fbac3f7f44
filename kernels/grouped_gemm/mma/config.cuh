// Tile, threads and shared memory of the portable grouped product.
#pragma once
#include "common/ptx.cuh"

#if !defined(FG_IN) || !defined(FG_SF_E4M3) || !defined(FG_SF_VEC) || !defined(FG_HARDWARE)
#error "grouped_gemm/mma needs FG_IN, FG_SF_E4M3, FG_SF_VEC, FG_HARDWARE"
#endif

namespace fg {

constexpr int IN_E2M1 = 2, IN = FG_IN, SF_E4M3 = FG_SF_E4M3, SF_VEC = FG_SF_VEC;
// No E8M0 scale for each 16 values: the instruction has none, and f16 products of half blocks cost spills.
static_assert(IN != IN_E2M1 ? (SF_VEC == 32 && !SF_E4M3) : (SF_VEC == (SF_E4M3 ? 16 : 32)), "scale kind");

// Eight warps own 32 rows x 128 columns each: 128 accumulators a thread.
constexpr u32 M_TILE = 256, N_TILE = 128, THREADS = 256;
// A stage: 64 bytes of k, that is 64 FP8 or 128 E2M1 values, in blocks of SF_VEC; and the scale atoms (four blocks each) in which they lie.
constexpr u32 ROW = 64, ROW_VALUES = IN == IN_E2M1 ? 128 : 64, ROW_BLOCKS = ROW_VALUES / SF_VEC, ATOMS = ROW_BLOCKS > 4 ? 2 : 1;
constexpr u32 STAGE_A = 0, STAGE_B = M_TILE * ROW, STAGE_SF = STAGE_B + N_TILE * ROW, STAGE = STAGE_SF + 3 * 512 * ATOMS;
// Three stages fit the 99 KB of compute capability 12.
constexpr u32 STAGES = 3, AT_SOURCE = STAGES * STAGE, SMEM = AT_SOURCE + 64;
static_assert(SMEM <= 101376, "shared memory");

}  // namespace fg
