// Stages of the ring: 64 bytes of k of 256 rows of A and 128 columns of B, and the scale atoms they lie in, copied by all threads with cp.async.
#pragma once
#include "common/cp_async.cuh"
#include "grouped_gemm/mma/config.cuh"

namespace fg {

// Swizzle of a row's four 16-byte units. B's also takes the row's 32-block: ldmatrix reads rows 2 j, 2 j + 1 of each of the four.
FG_DEV u32 unit_a(u32 row, u32 unit) { return row * ROW + ((unit ^ ((row >> 1) & 3)) << 4); }
FG_DEV u32 unit_b(u32 row, u32 unit) { return row * ROW + ((unit ^ ((row >> 1) & 3) ^ ((row >> 5) & 3)) << 4); }

// Where a tile's copies start. Kept in shared memory: nine registers are not there beside the accumulators.
struct Source {
  const u8 *a, *b;      // first row of the tile, first column
  const u8 *sfa, *sfb;  // first atom of the rows (two lines of atoms), of the columns
  i64 cols;             // columns of B that exist
};
FG_DEV const u8* pointer_at(u32 at) {
  u64 v;
  asm volatile("ld.shared.u64 %0, [%1];" : "=l"(v) : "r"(at));
  return reinterpret_cast<const u8*>(v);
}

// row_bytes of k; atoms of a line of scales.
FG_DEV void load_stage(u32 sm, u32 stage, i32 step, i32 row_bytes, i32 atoms) {
  const u32 at = sm + stage * STAGE, from = sm + AT_SOURCE;
  u32 thread = threadIdx.x;
  opaque(thread);  // the thread's place is cheap to compute again, and expensive to keep beside the accumulators
  const u32 unit = thread % 4, first = thread / 4;
  const i32 byte = step * (i32)ROW + (i32)unit * 16;
  const bool live = byte < row_bytes;
  const u8 *a = pointer_at(from) + byte, *b = pointer_at(from + 8) + byte;
  const i32 cols = (i32)(i64)pointer_at(from + 32);
#pragma unroll
  for (u32 r = 0; r < M_TILE; r += THREADS / 4) cp_async16(at + STAGE_A + unit_a(first + r, unit), a + (i64)(first + r) * row_bytes, live);
#pragma unroll
  for (u32 r = 0; r < N_TILE; r += THREADS / 4) cp_async16(at + STAGE_B + unit_b(first + r, unit), b + (i64)(first + r) * row_bytes, live && (i32)(first + r) < cols);
  // Atoms: ATOMS of each of three lines, 32 units each.
  if (thread < 96 * ATOMS) {
    const u32 line = thread / (32 * ATOMS), rest = thread % (32 * ATOMS);
    const i32 atom = step * (i32)ROW_BLOCKS / 4 + (i32)rest / 32;
    const u8* base = line == 2 ? pointer_at(from + 24) : pointer_at(from + 16) + (i64)line * atoms * 512;
    cp_async16(at + STAGE_SF + line * ATOMS * 512 + rest * 16, base + (i64)atom * 512 + rest % 32 * 16, atom < atoms);
  }
}

}  // namespace fg
