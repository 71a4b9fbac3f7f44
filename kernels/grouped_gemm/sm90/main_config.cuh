// main.cu: roles, shared memory, pipeline.
#pragma once
#include "grouped_gemm/sm90/params.cuh"

#if !defined(FG_N_MAJOR)
#error "main.cu needs FG_N_MAJOR"
#endif

namespace fg {

// B lies with n contiguous.
constexpr bool N_MAJOR = FG_N_MAJOR;
static_assert(!N_MAJOR || IN != IN_E2M1, "FP4 is k-major");

// Warpgroups: 0 copies (one thread), 1 dequantises B, 2 and 3 multiply 128 rows each.
constexpr int THREADS = 512, COPY_REGS = N_MAJOR ? 32 : 40, DEQUANT_REGS = N_MAJOR ? 64 : 56, MATH_REGS = 208;
static_assert(COPY_REGS + DEQUANT_REGS + 2 * MATH_REGS <= 512, "the pool is what launch_bounds grants");
constexpr int MATH_WARPS = 8, DEQUANT_WARPS = 4;

// One raw stage: 128 k of 256 rows of A and 128 of B, and their scales.
constexpr u32 ROW = IN == IN_E2M1 ? 64 : 128, STAGES = IN == IN_E2M1 ? 5 : 3;
constexpr u32 A_BYTES = M_TILE * ROW, B_BYTES = N_TILE * ROW, SF_BYTES = 3 * 512 * SF_WORDS;
constexpr u32 STAGE_A = 0, STAGE_B = A_BYTES, STAGE_SFA = STAGE_B + B_BYTES, STAGE_SFB = STAGE_SFA + 1024 * SF_WORDS;
constexpr u32 STAGE = (STAGE_SFA + SF_BYTES + 1023) / 1024 * 1024;
// C follows a tile's last step of k through the same ring: boxes of 128 bytes by 128 rows, first those of warpgroup 0, then those of warpgroup 1.
constexpr u32 C_ROWS = 128, C_BOX = 128 * C_ROWS, C_BOXES = width(C_TYPE), C_PER_SLOT = C_BOXES * C_BOX <= STAGE ? C_BOXES : 2 * C_BOX <= STAGE ? 2 : 1, C_SLOTS = C_BOXES / C_PER_SLOT;
static_assert(C_BOXES % C_PER_SLOT == 0 && C_PER_SLOT >= 1 && C_SLOTS < STAGES, "a warpgroup needs its whole C at once");
// 16-byte units of a row are XORed with this function of the row: TMA's 128-byte and 64-byte swizzles.
FG_DEV constexpr u32 swizzle(u32 row) { return IN == IN_E2M1 ? (row >> 1) & 3 : row & 7; }
// 16-bit B: 64 k of 128 columns. Column n of the tile stands at row 8 (n % 32 / 2) + 2 (n / 32) + n % 2, which makes 32 consecutive columns of a thread's fragment.
constexpr u32 B16 = 4, B16_BYTES = N_TILE * 128;
// Header of a tile, two deep.
constexpr u32 HDR_PROB = 0, HDR_ROW = 1024, HDR_COL = HDR_ROW + 256, HDR_WORDS = HDR_COL + 128, HDR = HDR_WORDS + 64;
constexpr u32 HDR_BYTES = 1024 + 256 + 128;
static_assert(HDR % 16 == 0 && HDR_ROW % 16 == 0, "bulk copies land on 16 bytes");
constexpr u32 AT_B16 = STAGES * STAGE, AT_HDR = AT_B16 + B16 * B16_BYTES, AT_BAR = AT_HDR + 2 * HDR, SMEM = AT_BAR + 256 + 1024;
static_assert(SMEM <= 232448, "shared memory");

}  // namespace fg

#include "grouped_gemm/sm90/roles.cuh"
