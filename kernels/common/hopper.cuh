// What warp-specialised kernels of sm_90 and later need besides ptx.cuh: cache-hinted TMA loads, 4-D TMA stores, named barriers chosen at run time,
// transposing stmatrix.
#pragma once
#include "common/ptx.cuh"

namespace fg {

// L2 policies of TMA loads (encodings of createpolicy.fractional at fraction 1): keep what other CTAs read again, drop what is read once.
constexpr u64 L2_EVICT_FIRST = 0x12f0000000000000ull, L2_EVICT_NORMAL = 0x1000000000000000ull, L2_EVICT_LAST = 0x14f0000000000000ull;

FG_DEV void tma_load_4d(u32 dst, const TensorMap* m, u32 bar, i32 c0, i32 c1, i32 c2, i32 c3, u64 policy) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(dst),
               "l"(m), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(policy)
               : "memory");
}
FG_DEV void tma_store_4d(const TensorMap* m, u32 src, i32 c0, i32 c1, i32 c2, i32 c3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(m), "r"(src), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
               : "memory");
}
// Contiguous bytes to shared memory; both ends 16-byte aligned, bytes a multiple of 16.
FG_DEV void bulk_load(u32 dst, const void* src, u32 bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst), "l"(src), "r"(bytes), "r"(bar) : "memory");
}

// Named barriers whose number is a warp-uniform run-time value (ping-pong between warpgroups).
template <int N> FG_DEV void bar_sync_at(u32 id) { asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(N) : "memory"); }
template <int N> FG_DEV void bar_arrive_at(u32 id) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(N) : "memory"); }

// Four 8x8 matrices, stored transposed: lane l gives the row address (l & 7) of matrix l >> 3.
FG_DEV void stsm4t(u32 a, u32 r0, u32 r1, u32 r2, u32 r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(a), "r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory");
}

}  // namespace fg
