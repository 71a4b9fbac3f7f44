// A role's place in a ring of N slots.
#pragma once
#include "common/ptx.cuh"

namespace fg {

// Rings of a power of two count, which is cheaper; a wait takes a parity of 0 or 1 and nothing else.
template <u32 N, bool POWER = (N & (N - 1)) == 0> struct Ring {
  u32 at = 0, turn = 0;
  FG_DEV u32 slot() const { return at; }
  FG_DEV u32 parity() const { return turn; }
  FG_DEV void next() {
    if (++at == N) {
      at = 0;
      turn ^= 1;
    }
  }
  FG_DEV u32 before() const { return at ? at - 1 : N - 1; }
};
template <u32 N> struct Ring<N, true> {
  u32 count = 0;
  FG_DEV u32 slot() const { return count % N; }
  FG_DEV u32 parity() const { return count / N & 1; }
  FG_DEV void next() { count++; }
  FG_DEV u32 before() const { return (count - 1) % N; }
};

}  // namespace fg
