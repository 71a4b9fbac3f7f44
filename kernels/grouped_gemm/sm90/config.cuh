// Defines -> constants of the block-scaled grouped product, and the exponent bookkeeping.
//
// Numbers. Element of A: a * 2^(s - 127), s its block's E8M0 byte (B alike). The fast loop multiplies in f16 what it dequantises as a * 2^(s - max - 15 + FIELD_MAX),
// max = the largest s of that row of A, or of the tile's 128 columns of B. FIELD_MAX is the exponent field of the largest multiplier, chosen so that the largest
// element times it stays finite in f16. Exact while s >= max - DEFICIT (nothing rounds, not even subnormals); byte 0 counts as a multiplier of zero: what
// quantisers give blocks of zeros must not cost a fast tile. 2^(max - 127 - SHIFT) of both sides comes back in the epilogue.
// A tile with a wider row or column block, or with scales far from 1, takes the wide loop: bf16, a * 2^(s - max + WIDE) with max of each row and each column;
// exact for s >= max - 165 on one side while the products stay above the smallest fp32.
// E4M3 scales need none of this: E2M1 times E4M3 has 6 significant bits and its range fits f16 as it is.
#pragma once
#include "common/hopper.cuh"
#include "common/ptx.cuh"
#include "common/wgmma.cuh"
#include "grouped_gemm/table.cuh"

#if !defined(FG_IN) || !defined(FG_SF_E4M3) || !defined(FG_SF_VEC)
#error "grouped_gemm/sm90 needs FG_IN, FG_SF_E4M3, FG_SF_VEC"
#endif

namespace fg {

constexpr int IN_E4M3 = 0, IN_E5M2 = 1, IN_E2M1 = 2;
constexpr int IN = FG_IN, SF_E4M3 = FG_SF_E4M3, SF_VEC = FG_SF_VEC;
static_assert(IN != IN_E2M1 ? (SF_VEC == 32 && !SF_E4M3) : (SF_VEC == 16 || (SF_VEC == 32 && !SF_E4M3)), "scale kind");

constexpr int M_TILE = 256, N_TILE = 128;
constexpr int FIELD_MAX = IN == IN_E4M3 ? 22 : IN == IN_E5M2 ? 15 : 30;
constexpr int DEFICIT = IN == IN_E4M3 ? 21 : IN == IN_E5M2 ? 8 : 29;
// E2M1 is read as the E4M3 byte with the same exponent and mantissa bits: 2^-6 of its value.
constexpr int PAYLOAD = IN == IN_E2M1 ? -6 : 0;
constexpr int ROWS_FAR = 60, COLS_FAR = 20;  // powers of two around 1 that the fast loop's factors may have
constexpr int WIDE = 48;
constexpr int SHIFT = FIELD_MAX - 15 + PAYLOAD;  // log2 of what the largest scale's elements are multiplied by
constexpr int SF_WORDS = SF_VEC == 16 ? 2 : 1;   // words of scales of a row in 128 k: one each atom
// Counters of tiles that are split along k (pair/schedule.cuh): four a tile.
constexpr i32 PART_COUNTS = 1024;
constexpr u32 ONES = 0x01010101u;

}  // namespace fg
