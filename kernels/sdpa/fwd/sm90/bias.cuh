// Additive bias and scaling of a tile's scores before masks and softmax (FG_BIAS, FG_PRESCALE). Empty otherwise. Here a bias of any strides, read by the
// thread that has its score; bias_tile.cuh: one that comes through shared memory.
#pragma once
#include "sdpa/fwd/sm90/bias_tile.cuh"

#if !defined(FG_PRESCALE) || !defined(FG_MAX_SUM)
#error "prefill.cu needs FG_PRESCALE, FG_MAX_SUM"
#endif

namespace fg {

static_assert(!FG_BIAS || FG_PRESCALE, "a bias is added to scaled scores");

// Where this lane's two rows of it begin. Eight tokens apart unless packed: then one of them is enough to know.
struct BiasRows {
  const void* row[PACK ? 2 : 1];
  i64 sk, next;
  bool read[2], pairs;  // the row is read; two keys are one aligned load

  static FG_DEV const void* element(const void* base, i64 at) { return FG_BIAS == 2 ? (const void*)((const float*)base + at) : (const void*)((const u16*)base + at); }
  FG_DEV const void* at(int h) const { return PACK ? row[PACK ? h : 0] : h ? element(row[0], next) : row[0]; }
  FG_DEV void enter(const BiasArgs& a, const Work& w, const i32 (&tok)[2], const i32 (&head)[2], const bool (&is_row)[2]) {
    if (!BIAS_DIRECT) return;
    const u32 align = FG_BIAS == 2 ? 8 : 4;
    sk = a.sk;
    next = 8 * a.sq;
    pairs = a.sk == 1;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const void* p = element(a.base, (i64)w.b * a.sb + (i64)head[h] * a.sh + (i64)tok[h] * a.sq);
      if (PACK || h == 0) row[PACK ? h : 0] = p;
      read[h] = is_row[h] && tok[h] < w.len_q;
      pairs &= (u64)p % align == 0;
    }
    pairs = __all_sync(0xffffffffu, pairs);
  }
};

// One tile's part. Read only where a live row meets a key that the CTA loads, so nothing past the end of a row or of the tensor is touched.
struct BiasTile {
  float b[BIAS_DIRECT ? S_REGS : 1];

  static FG_DEV float one(const BiasRows& r, int h, i32 key) {
    const void* p = BiasRows::element(r.at(h), (i64)key * r.sk);
    return FG_BIAS == 2 ? __ldg((const float*)p) : unpack1<BF16>(__ldg((const u16*)p));
  }
  FG_DEV void load(const BiasRows& r, const Work& w, i32 n, u32 lane) {
    if (!BIAS_DIRECT) return;
    const i32 col0 = n * TK + 2 * (i32)(lane & 3);
    if (r.pairs) {
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int j = 0; j < S_REGS / 4; j++) {
          const i32 key = col0 + 8 * j;
          float &x = b[4 * j + 2 * h], &y = b[4 * j + 2 * h + 1];
          x = y = 0.f;
          if (!r.read[h] || key + 1 < w.keys.k_lo || key >= w.keys.k_hi) continue;
          if (key < w.keys.k_lo || key + 1 >= w.keys.k_hi) {
            if (key >= w.keys.k_lo) x = one(r, h, key);
            if (key + 1 < w.keys.k_hi) y = one(r, h, key + 1);
          } else if (FG_BIAS == 2) {
            const float2 v = __ldg((const float2*)BiasRows::element(r.at(h), key));
            x = v.x, y = v.y;
          } else {
            const u32 v = __ldg((const u32*)BiasRows::element(r.at(h), key));
            x = unpack1<BF16>((u16)v), y = unpack1<BF16>((u16)(v >> 16));
          }
        }
    } else {
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int j = 0; j < S_REGS / 4; j++)
#pragma unroll
          for (int e = 0; e < 2; e++) {
            const i32 key = col0 + 8 * j + e;
            b[4 * j + 2 * h + e] = r.read[h] && key >= w.keys.k_lo && key < w.keys.k_hi ? one(r, h, key) : 0.f;
          }
    }
  }
  FG_DEV void apply(float (&s)[S_REGS], float scale) const {
#pragma unroll
    for (int j = 0; j < (FG_PRESCALE ? S_REGS : 0); j++) s[j] = FG_BIAS ? fmaf(s[j], scale, b[BIAS_DIRECT ? j : 0]) : s[j] * scale;
  }
};

}  // namespace fg
