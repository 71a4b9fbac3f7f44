// One tensor map an expert, made on the device: addresses are known there only.
//
// The host encodes a map of one expert's B at any address; a copy of it gets the expert's address. Order of the PTX manual: writes by the generic proxy, then
// tensormap.replace, then a release of the tensormap proxy; whoever uses the map acquires it with its address before the first copy (the next kernel, here).
#pragma once
#include "common/ptx.cuh"

namespace fg {

// By one thread.
FG_DEV void write_map(TensorMap* to, const TensorMap& from, u64 address) {
#pragma unroll
  for (int i = 0; i < 16; i++) to->words[i] = from.words[i];
  asm volatile("tensormap.replace.tile.global_address.global.b1024.b64 [%0], %1;" ::"l"(to), "l"(address) : "memory");
  asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
}
FG_DEV void acquire_map(const TensorMap* m) { asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(m) : "memory"); }

}  // namespace fg
