// A bias that comes through shared memory (FG_BIAS_STAGES): tiles of 64 rows by TMA, a ring of them and a loading warp for each math warpgroup, which takes
// them in the layout of its scores. Read straight from memory by the threads that have the scores, a bias took 0.64 to 0.8 of the portable row's speed.
#pragma once
#include "sdpa/fwd/sm90/load.cuh"

namespace fg {

// A tile of 16 bits is read while S is computed, but not where a product with 64 keys takes all of shared memory's bandwidth (kernels/PERFORMANCE.md section 11).
constexpr bool BIAS_EARLY = BIAS_TMA && BIAS_ITEM == 2 && TK >= 96;

// The operand: any strides, 0 broadcasts. map: (key, query row, head, batch), boxes BIAS_ROW bytes x 64 rows, swizzled over their width; an extent of 1 broadcasts.
struct BiasArgs {
  const TensorMap* map;
  const void* base;
  i64 sb, sh, sq, sk;
};

// The loading side for math warpgroup `group`: the tiles that its rows see, in its order.
struct BiasLoader {
  u32 smem, group;
  const BiasArgs& a;
  Ring<BIAS_TMA ? BIAS_STAGES : 1> ring;

  FG_DEV void run(const Work& w) {
    const i32 row = w.row0 + (KEY_SPLIT ? 0 : 64 * (i32)group), h = a.sh ? w.h : 0, b = a.sb ? w.b : 0;
    const Span s = KEY_SPLIT ? w.keys : make_span(w.band, row, 64, w.len_q, w.len_kv);
    // What other heads or batches read again is kept.
    const u64 policy = a.sh && a.sb ? L2_EVICT_FIRST : L2_EVICT_NORMAL;
#pragma unroll 1
    for (i32 n = s.n_hi - 1 - (KEY_SPLIT ? (i32)group : 0); n >= s.n_lo; n -= STEP) {
      const u32 slot = group * BIAS_STAGES + ring.at, full = smem + BAR_B_FULL + 8 * slot, dst = smem + OFF_B + slot * BIAS_BYTES;
      mbar_wait(smem + BAR_B_FREE + 8 * slot, ring.parity ^ 1);
      mbar_expect(full, BIAS_BYTES);
#pragma unroll
      for (int c = 0; c < (int)(BIAS_BYTES / BIAS_CHUNK); c++)
        tma_load_4d(dst + c * BIAS_CHUNK, a.map, full, n * TK + c * (i32)(BIAS_ROW / BIAS_ITEM), row, h, b, policy);
      ring.next();
    }
  }
};

// Where in a tile a lane begins to read: the 16-byte unit of its row, which is XORed with bits of the row's address as TMA writes it.
// 16 bits: ldmatrix, lane l gives row l & 7 of the matrix (rows 8 (l >> 3 & 1), columns 8 (l >> 4)). 32 bits: columns 2t, 2t + 1 of row g.
FG_DEV u32 bias_lane(u32 warp, u32 lane) {
  const u32 row = 16 * warp + (BIAS_ITEM == 2 ? lane % 16 : lane / 4), unit = BIAS_ITEM == 2 ? lane / 16 : lane % 4 / 2;
  return row * BIAS_ROW + ((unit ^ (row * BIAS_ROW / 128 % (BIAS_ROW / 16))) * 16) + (BIAS_ITEM == 2 ? 0 : lane % 2 * 8);
}
// Columns 8j and on of the tile at `at`, where this lane begins.
FG_DEV u32 bias_columns(u32 at, int j) {
  constexpr int UNITS = BIAS_ROW / 16;
  const int unit = j * (int)BIAS_ITEM / 2;
  return (at + unit / UNITS * BIAS_CHUNK) ^ (unit % UNITS * 16);
}

// A tile of 16-bit elements in the layout of P: word 2j + h is columns 8j + 2t and 8j + 2t + 1 of row g + 8h. No bank is asked twice.
// What comes back depends on every load: whoever has it knows that they are over.
FG_DEV u32 read_bias(u32 (&b)[P_REGS], u32 at) {
  u32 seen = 0;
#pragma unroll
  for (int j = 0; j < S_REGS / 4; j += 2) {
    ldsm4(bias_columns(at, j), b[2 * j], b[2 * j + 1], b[2 * j + 2], b[2 * j + 3]);
    seen ^= b[2 * j];
  }
  return seen;
}
FG_DEV void add_words(float (&s)[S_REGS], const u32 (&b)[P_REGS], float scale) {
#pragma unroll
  for (int i = 0; i < P_REGS; i++) {
    s[2 * i] = fmaf(s[2 * i], scale, unpack1<BF16>((u16)b[i]));
    s[2 * i + 1] = fmaf(s[2 * i + 1], scale, unpack1<BF16>((u16)(b[i] >> 16)));
  }
}
// The same of 32-bit elements, added at once: they would take as many registers as the scores. A bank is asked twice at most.
FG_DEV u32 add_floats(float (&s)[S_REGS], u32 at, float scale) {
  u32 seen = 0;
#pragma unroll
  for (int j = 0; j < S_REGS / 4; j++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float x, y;
      lds_f32x2(bias_columns(at, j) + 8 * BIAS_ROW * h, x, y);
      s[4 * j + 2 * h] = fmaf(s[4 * j + 2 * h], scale, x);
      s[4 * j + 2 * h + 1] = fmaf(s[4 * j + 2 * h + 1], scale, y);
      seen ^= __float_as_uint(x);
    }
  return seen;
}

}  // namespace fg
