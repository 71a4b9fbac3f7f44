// Weights of each expert at a place of their own: byte offsets into a pool, or device addresses where there is no pool.
#pragma once
#include "common/ptx.cuh"

#if !defined(FG_LIST)
#error "the grouped product needs FG_LIST"
#endif

namespace fg {

// FG_LIST: B and SFB are found through lists; else they are one dense tensor each and the lists are null.
constexpr bool WEIGHT_LIST = FG_LIST;

struct WeightList {
  const u8 *b, *sfb;              // pools; null: the lists hold addresses
  const i64 *b_ptrs, *sfb_ptrs;   // one entry an expert
  i64 b_pool, sfb_pool;           // bytes of the pools
  i64 b_bytes, sfb_bytes;         // bytes of one expert

  // An entry that may be read: on 16 bytes, which TMA and bulk copies need, and inside its pool; of an address no more can be known than that it is not null.
  static FG_DEV bool inside(i64 at, i64 bytes, const u8* pool, i64 size) { return !(at & 15) && (pool ? at >= 0 && at <= size - bytes : at != 0); }
  FG_DEV bool usable(i32 e) const { return inside(b_ptrs[e], b_bytes, b, b_pool) && inside(sfb_ptrs[e], sfb_bytes, sfb, sfb_pool); }
  FG_DEV u64 b_of(i32 e) const { return (u64)b + (u64)b_ptrs[e]; }
  FG_DEV const u8* sfb_of(i32 e) const { return sfb + sfb_ptrs[e]; }
};

}  // namespace fg
