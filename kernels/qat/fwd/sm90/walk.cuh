// A math warpgroup of the second walk: 64 query rows against every kv tile that they see, P from the known LSE. S of tile n and O of tile
// n + 1 go to the tensor core together; exponentials and quantisation of tile n run under the latter and under the other warpgroups' products.
#pragma once
#include "qat/fwd/blocks.cuh"
#include "sdpa/fwd/sm90/math.cuh"

namespace fg {

static_assert(TK % 32 == 0, "four blocks are two columns of two rows");

struct Walk : Math {
  float neg_lse[2];  // log2 units

  // Half h of block column g.
  static FG_DEV Part part(float (&s)[S_REGS], int g, int h) {
    return {s[8 * g + 2 * h], s[8 * g + 2 * h + 1], s[8 * g + 4 + 2 * h], s[8 * g + 5 + 2 * h]};
  }
  // Raw scores -> fake-quantised P, packed as the A operand of the next product. Dead scores are -inf and become 0.
  FG_DEV void quantized(float (&s)[S_REGS], u32 (&p)[P_REGS]) const {
    float top = 0.f;
#pragma unroll
    for (int j = 0; j < S_REGS; j++) {
      s[j] = ex2(fmaf(s[j], mul, neg_lse[j / 2 % 2]));
      top = fmaxf(top, s[j]);
    }
    fake_tile<TK / 16, 2>(top, [&](int g, void (*fake)(const Part(&)[4])) {
      const Part x[4] = {part(s, g, 0), part(s, g, 1), part(s, g + 1, 0), part(s, g + 1, 1)};
      fake(x);
    });
#pragma unroll
    for (int j = 0; j < P_REGS; j++) p[j] = pack2<1>(s[2 * j], s[2 * j + 1]);
  }
  FG_DEV void masked(const Work& w, i32 n, float (&s)[S_REGS]) const {
    if (is_edge(n)) mask_scores(s, at, w.band, w.len_kv, n * TK + 2 * (i32)(lane & 3));
  }

  // The first tile of a row block: S alone.
  FG_DEV void first(const Work& w, i32 n, u32 (&p)[P_REGS]) {
    float s[S_REGS];
    mbar_wait(smem + BAR_K_FULL + 8 * k.at, k.parity);
    scores(s);
    wgmma_wait<0>();
    pin(s);
    free_k();
    masked(w, n, s);
    quantized(s, p);
  }
  // S of tile n and O of tile n + 1. Rows of V past the keys hold finite values (the quantiser's), and P is 0 there: no need to clear them.
  FG_DEV void step(const Work& w, i32 n, float (&o)[O_REGS], u32 (&p)[P_REGS], u32 (&p_new)[P_REGS]) {
    float s[S_REGS];
    mbar_wait(smem + BAR_K_FULL + 8 * k.at, k.parity);
    scores(s);
    mbar_wait(smem + BAR_V_FULL + 8 * v.at, v.parity);
    values(o, p);
    wgmma_wait<1>();
    pin(s);
    free_k();
    masked(w, n, s);
    quantized(s, p_new);
    wgmma_wait<0>();
    pin(o);
    free_v();
  }
  // All tiles of the CTA's rows, in the loader's order: those that other warpgroups' rows see are waited for only. Two tiles a turn, as in Math::visible.
  FG_DEV void run(const Work& w, float (&o)[O_REGS]) {
    i32 n = w.keys.n_hi;
    const bool some = keys.n_hi > keys.n_lo;
#pragma unroll 1
    while (n > (some ? keys.n_hi : w.keys.n_lo)) skip(), n--;
    if (!some) {
      free_q();
      return;
    }
    u32 p[P_REGS], q[P_REGS];
    n = keys.n_hi - 1;
    first(w, n, p);
#pragma unroll 1
    while (true) {
      if (--n < keys.n_lo) {
        free_q();
        last(o, p);
        break;
      }
      step(w, n, o, p, q);
      if (--n < keys.n_lo) {
        free_q();
        last(o, q);
        break;
      }
      step(w, n, o, q, p);
    }
#pragma unroll 1
    for (n = keys.n_lo; n > w.keys.n_lo; n--) skip();
  }
};

}  // namespace fg
