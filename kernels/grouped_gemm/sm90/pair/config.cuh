// pair: roles, shared memory and barriers of the kernel whose clusters of two CTAs make 256 x 256 of D.
#pragma once
#include "grouped_gemm/sm90/params.cuh"

namespace fg {

static_assert(IN == IN_E2M1, "FP8 is faster by single CTAs: twice the raw bytes pass through shared memory, which sharing B fills up");

// Warpgroups: 0 copies (one thread), 1 dequantises 128 columns of B, 2 and 3 multiply 64 rows by 256 columns each.
constexpr int THREADS = 512, COPY_REGS = 48, DEQUANT_REGS = 48, MATH_REGS = 208;
static_assert(COPY_REGS + DEQUANT_REGS + 2 * MATH_REGS <= 512, "the pool is what launch_bounds grants");
constexpr int MATH_WARPS = 8, DEQUANT_WARPS = 4;
// A tile of D: rows of a CTA (the cluster: twice as many), columns of both.
constexpr int ROWS = 128, COLS = 256;

// One raw stage: 128 k of this CTA's 128 rows of A and 128 columns of B, and their scales.
constexpr u32 ROW = 64, STAGES = 5;
constexpr u32 A_BYTES = ROWS * ROW, B_BYTES = 128 * ROW, SF_BYTES = 512 * SF_WORDS;
constexpr u32 STAGE_A = 0, STAGE_B = A_BYTES, STAGE_SFA = STAGE_B + B_BYTES, STAGE_SFB = STAGE_SFA + SF_BYTES;
constexpr u32 STAGE = (STAGE_SFB + SF_BYTES + 1023) / 1024 * 1024;
// C follows a tile's last step of k through the same ring: boxes of 128 bytes by 64 rows, first those of warpgroup 0, then those of warpgroup 1.
constexpr u32 C_ROWS = 64, C_BOX = 128 * C_ROWS, C_BOXES = 2 * width(C_TYPE);
constexpr u32 C_PER_SLOT = C_BOXES * C_BOX <= STAGE ? C_BOXES : 4 * C_BOX <= STAGE ? 4 : 2, C_SLOTS = C_BOXES / C_PER_SLOT;
static_assert(C_BOXES % C_PER_SLOT == 0 && C_PER_SLOT * C_BOX <= STAGE && C_SLOTS <= STAGES, "a warpgroup needs its whole C at once");
// 16-byte units of a raw row are XORed with this function of the row: TMA's 64-byte swizzle.
FG_DEV constexpr u32 swizzle(u32 row) { return (row >> 1) & 3; }
// 16-bit B: slots of 64 k of 256 columns: two halves of 128 columns, half h from the CTA of rank h. Column n of a half stands at row
// 8 (n % 32 / 2) + 2 (n / 32) + n % 2, which makes 32 consecutive columns of a thread's fragment.
constexpr u32 B16 = 4, B16_HALF = 128 * 128, B16_BYTES = 2 * B16_HALF, WARP_BYTES = B16_HALF / DEQUANT_WARPS;
// Header of a tile, two deep.
constexpr u32 HDR_PROB = 0, HDR_ROW = 4 * ROWS, HDR_COL = HDR_ROW + ROWS, HDR_WORDS = HDR_COL + COLS, HDR = HDR_WORDS + 64;
constexpr u32 HDR_BYTES = 4 * ROWS + ROWS + COLS;
static_assert(HDR % 16 == 0 && HDR_ROW % 16 == 0, "bulk copies land on 16 bytes");
// Column results of a warp for the warp that holds the other 16 rows.
constexpr u32 SWAP = 4 * 1024;
constexpr u32 AT_B16 = STAGES * STAGE, AT_SWAP = AT_B16 + B16 * B16_BYTES, AT_HDR = AT_SWAP + SWAP, AT_BAR = AT_HDR + 2 * HDR, SMEM = AT_BAR + 256 + 1024;
static_assert(SMEM <= 232448, "shared memory");

// The cluster.
FG_DEV u32 cluster_rank() {
  u32 r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
FG_DEV u32 at_rank(u32 addr, u32 rank) {
  u32 r;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(addr), "r"(rank));
  return r;
}
FG_DEV void cluster_sync() { asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory"); }
FG_DEV void arrive_remote(u32 bar) { asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory"); }
// Shared memory of this CTA to another's, counted on a barrier there.
FG_DEV void bulk_to_peer(u32 dst, u32 src, u32 bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst), "r"(src), "r"(bytes), "r"(bar) : "memory");
}

}  // namespace fg

#include "grouped_gemm/sm90/roles.cuh"
