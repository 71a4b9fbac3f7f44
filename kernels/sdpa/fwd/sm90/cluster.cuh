// Two CTAs of a cluster work on neighbouring tiles of rows of one head and on the same kv tiles: each loads half the keys of every tile into both, so that
// half as much leaves the L2 cache. A buffer is free when both have read it, so its barrier takes arrivals from both.
#pragma once
#include "common/hopper.cuh"

namespace fg {

FG_DEV u32 cluster_rank() {
  u32 r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)::"memory");  // read where it is used: the loading thread has few registers
  return r;
}
FG_DEV u32 at_rank(u32 addr, u32 rank) {
  u32 r;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(addr), "r"(rank));
  return r;
}
// With no scope named: `.release.cluster` costs a membar.gpu each time, and what this tells is that the tensor core has read, which its wait has ordered.
FG_DEV void arrive_remote(u32 bar) { asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory"); }
// Behind mbar_init_fence() of the thread that made the barriers.
FG_DEV void cluster_enter() { asm volatile("barrier.cluster.arrive.relaxed.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// No CTA ends while the other may still write to its shared memory. For threads on paths of their own.
FG_DEV void cluster_leave() { asm volatile("barrier.cluster.arrive.relaxed;\n\tbarrier.cluster.wait.acquire;" ::: "memory"); }

// A box to the same place in both CTAs, counted on the barrier at the same place in both.
FG_DEV void tma_load_4d_to_both(u32 dst, const TensorMap* m, u32 bar, i32 c0, i32 c1, i32 c2, i32 c3, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %8, "
      "%7;" ::"r"(dst),
      "l"(m), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(policy), "h"((u16)3)
      : "memory");
}

}  // namespace fg
