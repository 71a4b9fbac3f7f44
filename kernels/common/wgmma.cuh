// Warpgroup matrix multiply of sm_90a (wgmma): shared-memory descriptors, the instructions, their fences. Own to Hopper: no other architecture has it.
//
//   D (64 x N, fp32, N/2 registers a thread) (+)= A (64 x 16) B (16 x N)        one instruction, N/2 clocks of the SM's tensor core
//
// Wgmma<BF16, N, TB, TA>::ss(d, desc_a, desc_b, acc)   A and B in shared memory
// Wgmma<BF16, N, TB>::rs(d, a0, a1, a2, a3, desc_b, acc)   A in registers
// acc = 0 writes D = AB (no zeroing needed), anything else adds. TA, TB: 0 K-major (k runs along the 128-byte row), 1 MN-major.
//
// Tiles: [rows][64 elements], 128-byte rows, 16-byte units XOR (row & 7): what TMA writes with a 128-byte swizzle. A tile is 1024-byte aligned;
// wider tiles are several such chunks, rows * 128 bytes apart.
//   K-major:  desc(tile, 16);          k step: + 2 in the chunk, + rows * 8 to the next chunk;  M/N offset of r rows (r % 8 == 0): + r * 8
//   MN-major: desc(tile, rows * 128);  k step: + 128 (16 rows);                                 M/N offset of 64 columns: + rows * 8
// (advances count descriptor units of 16 bytes; the descriptor's high word never changes.)
//
// Fragments, warp w of the warpgroup, lane 4g + t: d[4j + 2h + e] = row 16w + g + 8h, column 8j + 2t + e. As A of the next product, k step s takes
// pack(d[8s], d[8s+1]), pack(d[8s+2], d[8s+3]), pack(d[8s+4], d[8s+5]), pack(d[8s+6], d[8s+7]).
//
// Order: write accumulators / A registers; pin(); wgmma_fence(); wgmmas; wgmma_commit(); ... wgmma_wait<n>(); pin(); read. Between issue and wait
// nothing may touch D or A registers; every product must be consumed or waited for before its registers are zeroed by the next (ptxas reuses the
// registers of a dead product that is still in flight). Shared memory written by ordinary stores: fence_async_smem() by the writers, then a barrier.
// A descriptor must come from a run-time address: a literal one crashes NVRTC 13.0.
#pragma once
#include "common/ptx.cuh"

namespace fg {

FG_DEV u64 wgmma_desc(u32 addr, u32 leading_bytes) {
  return (u64)((addr & 0x3ffff) >> 4) | ((u64)(leading_bytes >> 4) << 16) | (64ull << 32) | (1ull << 62);  // stride: 8 rows; layout: 128-byte swizzle
}
FG_DEV void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FG_DEV void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most N committed groups are under way.
template <int N> FG_DEV void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// Keeps the compiler from moving reads or writes of these registers across.
template <int N> FG_DEV void pin(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N> FG_DEV void pin(u32 (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+r"(d[i])::"memory");
}

template <int BF16, int N, int TB = 0, int TA = 0> struct Wgmma;

// Register lists in eights: names for the instruction text (R), constraints for the compiler (C).
#define FG_R0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define FG_R1 FG_R0 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define FG_R2 FG_R1 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define FG_R3 FG_R2 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define FG_R4 FG_R3 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define FG_R5 FG_R4 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define FG_R6 FG_R5 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define FG_R7 FG_R6 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define FG_R8 FG_R7 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define FG_R9 FG_R8 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define FG_R10 FG_R9 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define FG_R11 FG_R10 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define FG_R12 FG_R11 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define FG_R13 FG_R12 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define FG_R14 FG_R13 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define FG_R15 FG_R14 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define FG_E(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define FG_C0 FG_E(0)
#define FG_C1 FG_C0, FG_E(8)
#define FG_C2 FG_C1, FG_E(16)
#define FG_C3 FG_C2, FG_E(24)
#define FG_C4 FG_C3, FG_E(32)
#define FG_C5 FG_C4, FG_E(40)
#define FG_C6 FG_C5, FG_E(48)
#define FG_C7 FG_C6, FG_E(56)
#define FG_C8 FG_C7, FG_E(64)
#define FG_C9 FG_C8, FG_E(72)
#define FG_C10 FG_C9, FG_E(80)
#define FG_C11 FG_C10, FG_E(88)
#define FG_C12 FG_C11, FG_E(96)
#define FG_C13 FG_C12, FG_E(104)
#define FG_C14 FG_C13, FG_E(112)
#define FG_C15 FG_C14, FG_E(120)

#define FG_TEXT(N, T) "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" T ", 0;\n\twgmma.mma_async.sync.aligned.m64n" #N "k16.f32."
// N columns, registers in LAST + 1 eights; i0 ... i6: N/2, N/2 + 1, ..., the numbers of the operands behind the accumulators.
#define FG_WGMMA(N, LAST, i0, i1, i2, i3, i4, i5, i6)                                                                                                \
  template <int BF16, int TB, int TA> struct Wgmma<BF16, N, TB, TA> {                                                                                \
    static FG_DEV void ss(float (&d)[N / 2], u64 a, u64 b, i32 acc) {                                                                                \
      if (BF16)                                                                                                                                      \
        asm volatile(FG_TEXT(N, #i2) "bf16.bf16 {" FG_R##LAST "}, %" #i0 ", %" #i1 ", p, 1, 1, %" #i3 ", %" #i4 ";\n\t}"                             \
                     : FG_C##LAST                                                                                                                    \
                     : "l"(a), "l"(b), "r"(acc), "n"(TA), "n"(TB));                                                                                  \
      else                                                                                                                                           \
        asm volatile(FG_TEXT(N, #i2) "f16.f16 {" FG_R##LAST "}, %" #i0 ", %" #i1 ", p, 1, 1, %" #i3 ", %" #i4 ";\n\t}"                               \
                     : FG_C##LAST                                                                                                                    \
                     : "l"(a), "l"(b), "r"(acc), "n"(TA), "n"(TB));                                                                                  \
    }                                                                                                                                                \
    static FG_DEV void rs(float (&d)[N / 2], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, i32 acc) {                                                       \
      static_assert(TA == 0, "A in registers has one form");                                                                                         \
      if (BF16)                                                                                                                                      \
        asm volatile(FG_TEXT(N, #i5) "bf16.bf16 {" FG_R##LAST "}, {%" #i0 ", %" #i1 ", %" #i2 ", %" #i3 "}, %" #i4 ", p, 1, 1, %" #i6 ";\n\t}"       \
                     : FG_C##LAST                                                                                                                    \
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(acc), "n"(TB));                                                               \
      else                                                                                                                                           \
        asm volatile(FG_TEXT(N, #i5) "f16.f16 {" FG_R##LAST "}, {%" #i0 ", %" #i1 ", %" #i2 ", %" #i3 "}, %" #i4 ", p, 1, 1, %" #i6 ";\n\t}"         \
                     : FG_C##LAST                                                                                                                    \
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(acc), "n"(TB));                                                               \
    }                                                                                                                                                \
  };
FG_WGMMA(16, 0, 8, 9, 10, 11, 12, 13, 14)
FG_WGMMA(32, 1, 16, 17, 18, 19, 20, 21, 22)
FG_WGMMA(48, 2, 24, 25, 26, 27, 28, 29, 30)
FG_WGMMA(64, 3, 32, 33, 34, 35, 36, 37, 38)
FG_WGMMA(80, 4, 40, 41, 42, 43, 44, 45, 46)
FG_WGMMA(96, 5, 48, 49, 50, 51, 52, 53, 54)
FG_WGMMA(112, 6, 56, 57, 58, 59, 60, 61, 62)
FG_WGMMA(128, 7, 64, 65, 66, 67, 68, 69, 70)
FG_WGMMA(144, 8, 72, 73, 74, 75, 76, 77, 78)
FG_WGMMA(160, 9, 80, 81, 82, 83, 84, 85, 86)
FG_WGMMA(176, 10, 88, 89, 90, 91, 92, 93, 94)
FG_WGMMA(192, 11, 96, 97, 98, 99, 100, 101, 102)
FG_WGMMA(208, 12, 104, 105, 106, 107, 108, 109, 110)
FG_WGMMA(224, 13, 112, 113, 114, 115, 116, 117, 118)
FG_WGMMA(240, 14, 120, 121, 122, 123, 124, 125, 126)
FG_WGMMA(256, 15, 128, 129, 130, 131, 132, 133, 134)

}  // namespace fg
