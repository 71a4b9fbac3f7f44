// What the epilogue of the grouped product is compiled with, and where one thread stands.
//
// A warp holds 32 consecutive rows of D and 128 columns; lane 4 g + t holds rows g, g + 8, g + 16, g + 24 of them and columns 32 t .. + 31: a row's block of 32
// belongs to one thread, a column's block of 32 rows to the eight lanes of equal t. Row R = 0 .. 3 of a thread stands 8 R below its first.
// Accumulators: d0 holds rows 0 and 1, d1 rows 2 and 3; column i of row R at 4 (i / 2) + 2 (R % 2) + i % 2.
//
// The kernel supplies a `Source` for a thread's rows:
//   float factor(int r)                  G = accumulator * factor, the factor >= 0 or NaN
//   float prob(int r)
//   void c(int r, int unit, u32 (&w)[4]) 16 bytes of C: columns C_UNIT * unit .. of the thread's 32; anything behind the last column of D.
//                                        With FG_SRELU called thrice for a unit: by a volatile load, or ptxas keeps all of C in registers (2 KB of spills)
#pragma once
#include "common/ptx.cuh"

#if !defined(FG_C) || !defined(FG_D) || !defined(FG_READING) || !defined(FG_CLAMP) || !defined(FG_DET) || !defined(FG_AMAX) || !defined(FG_DBIAS) || !defined(FG_COMPACT) || !defined(FG_SRELU) || !defined(FG_EDGE)
#error "the epilogue needs FG_C, FG_D, FG_READING, FG_CLAMP, FG_DET, FG_AMAX, FG_DBIAS, FG_COMPACT, FG_SRELU, FG_EDGE"
#endif

namespace fg {

constexpr int T_F32 = 0, T_BF16 = 1, T_F16 = 2, T_E4M3 = 3, T_E5M2 = 4;
FG_DEV constexpr int width(int type) { return type == T_F32 ? 4 : type <= T_F16 ? 2 : 1; }
constexpr int C_TYPE = FG_C, D_TYPE = FG_D;
constexpr bool D_FP8 = D_TYPE >= T_E4M3;
constexpr int C_UNIT = 16 / width(C_TYPE);  // values of C in 16 bytes
// Reading 0: G is the pre-activation; 1: C is.
constexpr bool G_IS_X = FG_READING == 0;
// FG_EDGE: N is no multiple of 32, so a thread may own fewer than 32 columns.
constexpr bool EDGE = FG_EDGE;

struct Outputs {
  const float* norm_const;
  u8 *d_row, *d_col, *sfd_row, *sfd_col, *d_srelu, *sfd_col_d_srelu;
  float *dprob, *amax, *dbias;  // dprob: [ceil(n / 128)][m] slots with FG_DET; dbias: [m / 32][n] partial sums
  float clamp;
  i32 n;
  i64 m;
};

// Where a thread stands in D.
struct Out {
  i64 row;  // first of its rows
  i32 col, valid;            // first of its 32 columns, and how many of them exist
  i32 nb, block;             // its tile of 128 columns, its warp's block of 32 rows
  i32 expert, first, count;  // the expert's first block of 256 rows, and how many it has
  u32 g, t;
};

}  // namespace fg
