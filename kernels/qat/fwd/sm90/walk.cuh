// P of the second walk: from the known LSE, fake-quantised. Exponentials and quantisation of a tile run under the products of the tile before it and of the
// other warpgroups.
#pragma once
#include "qat/fwd/blocks.cuh"
#include "sdpa/fwd/sm90/frame.cuh"

namespace fg {

static_assert(TK % 32 == 0, "four blocks are two columns of two rows");
static_assert(!KEY_SPLIT && !FG_PRESCALE && !FG_MAX_SUM, "variants of the plain forward that this walk has no use for");

struct Quantised {
  // Rows of V past the keys hold finite values (the quantiser's), and P is 0 there.
  static constexpr bool CLEAN_V = false, EDGES = false;
  float scale;       // scores to log2 units
  float neg_lse[2];  // log2 units

  FG_DEV float pre() const { return scale; }

  // Half h of block column g.
  static FG_DEV Part part(float (&s)[S_REGS], int g, int h) {
    return {s[8 * g + 2 * h], s[8 * g + 2 * h + 1], s[8 * g + 4 + 2 * h], s[8 * g + 5 + 2 * h]};
  }
  // Raw scores -> fake-quantised P, packed as the A operand of the next product. Dead scores are -inf and become 0.
  FG_DEV void first(float (&s)[S_REGS], u32 (&p)[P_REGS]) const {
    float top = 0.f;
#pragma unroll
    for (int j = 0; j < S_REGS; j++) {
      s[j] = ex2(fmaf(s[j], scale, neg_lse[j / 2 % 2]));
      top = fmaxf(top, s[j]);
    }
    fake_tile<TK / 16, 2>(top, [&](int g, void (*fake)(const Part(&)[4])) {
      const Part x[4] = {part(s, g, 0), part(s, g, 1), part(s, g + 1, 0), part(s, g + 1, 1)};
      fake(x);
    });
#pragma unroll
    for (int j = 0; j < P_REGS; j++) p[j] = pack2<1>(s[2 * j], s[2 * j + 1]);
  }
  FG_DEV bool lazy(float (&s)[S_REGS], u32 (&p)[P_REGS]) const {
    first(s, p);
    return true;
  }
  FG_DEV void exact(const float (&)[S_REGS], u32 (&)[P_REGS], float (&)[2]) const {}
};

}  // namespace fg
