// The multiplying warpgroups' loop over k: 16 rows of A a warp, dequantised in registers, times 256 columns of B from the 16-bit ring.
#pragma once
#include "grouped_gemm/sm90/pair/schedule.cuh"

namespace fg {

// Where a thread stands. Warp w of warpgroup c owns rows 64 c + 16 w .. + 15 of the CTA's; lane 4g + t rows g and g + 8 of them.
struct MathLane {
  u32 sm, peer_bar;  // aligned shared memory; the other CTA's barriers
  u32 a_row, a_xor;  // byte offset of this lane's ldmatrix row in a stage, its swizzle
  u32 sf;            // byte offset of row g's first scale word; row g + 8: + 128
  u32 lane;
};
struct Place {
  Raw raw;
  Ring<B16> b;
};

// Raw words of 64 k (chunks 2 x, 2 x + 1 of 32): w[c][h] chunk c of row g + 8 h.
template <int X> FG_DEV void raw_words(u32 (&w)[2][2], const MathLane& l, u32 stage) {
  ldsm4(stage + l.a_row + (((2 * X + (l.lane >> 4)) ^ l.a_xor) << 4), w[0][0], w[0][1], w[1][0], w[1][1]);
}
FG_DEV void scale_words(u32 (&sf)[2 * SF_WORDS], const MathLane& l, u32 stage, const Tail& tail, bool last) {
#pragma unroll
  for (int h = 0; h < 2; h++)
#pragma unroll
    for (int w = 0; w < SF_WORDS; w++) sf[SF_WORDS * h + w] = lds_u32(stage + STAGE_SFA + l.sf + h * 128 + w * 512) & (last ? tail.word[w] : ~0u);
}
// E4M3: the scales of chunks 2 x and 2 x + 1 of both rows as f16.
template <int X> FG_DEV void scale_pairs(u32 (&m)[2], const u32 (&sf)[2 * SF_WORDS], const MathLane& l) {
#pragma unroll
  for (int h = 0; h < 2; h++) m[h] = scale_pair(prmt(sf[scale_word_of(h, 2 * X)], 0, 0x20 + 0x11 * ((l.lane >> 1) & 1)));
}

// Fragments of chunk Q, [k16 step][register].
template <int Q> FG_DEV void fragments(u32 (&f)[2][4], const u32 (&w)[2][2], const u32 (&sf)[2 * SF_WORDS], const u32 (&pairs)[2], const MathLane& l) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const u32 m = SF_E4M3 ? both(pairs[h], Q % 2) : multiplier(sf[scale_word_of(h, Q)], scale_byte_of(l.lane, Q));
    u32 first, second;
    nibbles(w[Q % 2][h], first, second);
    dequant(first, m, f[0][h], f[0][h + 2]);
    dequant(second, m, f[1][h], f[1][h + 2]);
  }
}
// Both halves of the columns.
template <int BF16> FG_DEV void issue(float (&d0)[64], float (&d1)[64], const u32 (&f)[2][4], u64 desc) {
#pragma unroll
  for (int k = 0; k < 2; k++) {
    Wgmma<BF16, 128>::rs(d0, f[k][0], f[k][1], f[k][2], f[k][3], desc + 2 * k, 1);
    Wgmma<BF16, 128>::rs(d1, f[k][0], f[k][1], f[k][2], f[k][3], desc + B16_HALF / 16 + 2 * k, 1);
  }
}
// A slot of B is free for the dequantising warpgroups of both CTAs.
FG_DEV void free_b(const MathLane& l, u32 slot) {
  mbar_arrive(l.sm + AT_BAR + B_EMPTY + 8 * slot);
  arrive_remote(l.peer_bar + B_EMPTY + 8 * slot);
}

struct Loaded {
  u32 w[2][2], sf[2 * SF_WORDS], pairs[2];
};

template <int Q>
FG_DEV void fast_step(float (&d0)[64], float (&d1)[64], u32 (&f)[2][2][4], Loaded& a, const MathLane& l, Place& p, u64 desc, u32 stage, const Tail& tail, bool last, bool more, bool release) {
  const u32 bar = l.sm + AT_BAR;
  constexpr bool FIRST = Q % 2 == 0;  // of a slot of B
  if (FIRST) mbar_wait(bar + B_FULL + 8 * p.b.slot(), p.b.parity());
  pin(d0);
  pin(d1);
  wgmma_fence();
  issue<0>(d0, d1, f[Q & 1], desc + (u64)(p.b.slot() * (B16_BYTES / 16) + (FIRST ? 0 : 4)));
  wgmma_commit();
  if (Q == 3) {  // every fragment of this stage is in registers that a product has read by now
    __syncwarp();
    if (l.lane == 0) mbar_arrive(bar + EMPTY + 8 * p.raw.slot());
  }
  wgmma_wait<1>();
  if (FIRST && release && l.lane == 0) free_b(l, p.b.before());
  if (!FIRST) p.b.next();
  if (Q < 3) {
    if (Q == 1) {
      raw_words<1>(a.w, l, stage);
      if (SF_E4M3) scale_pairs<1>(a.pairs, a.sf, l);
    }
    fragments<(Q + 1) & 3>(f[(Q + 1) & 1], a.w, a.sf, a.pairs, l);
  } else {
    p.raw.next();
    if (more) {
      const u32 at = l.sm + p.raw.slot() * STAGE;
      mbar_wait(bar + FULL + 8 * p.raw.slot(), p.raw.parity());
      scale_words(a.sf, l, at, tail, last);
      raw_words<0>(a.w, l, at);
      if (SF_E4M3) scale_pairs<0>(a.pairs, a.sf, l);
      fragments<0>(f[0], a.w, a.sf, a.pairs, l);
    }
  }
}

// Leaves its last group under way: the caller waits for it and frees the last slot of B.
FG_DEV void fast_loop(float (&d0)[64], float (&d1)[64], const MathLane& l, Place& p, u64 desc, const Work& work, i32 steps, const Tail& tail) {
  u32 f[2][2][4];
  Loaded a;
  const u32 first = l.sm + p.raw.slot() * STAGE;
  mbar_wait(l.sm + AT_BAR + FULL + 8 * p.raw.slot(), p.raw.parity());
  // Multipliers come clean from prep up to the last atom; given scales end in whatever their padding holds.
  constexpr bool CLEAN = !SF_E4M3 && SF_WORDS == 1;
  scale_words(a.sf, l, first, tail, !CLEAN && work.begin + 1 == steps);
  raw_words<0>(a.w, l, first);
  if (SF_E4M3) scale_pairs<0>(a.pairs, a.sf, l);
  fragments<0>(f[0], a.w, a.sf, a.pairs, l);
#pragma unroll 1
  for (i32 s = work.begin; s < work.end; s++) {
    const u32 stage = l.sm + p.raw.slot() * STAGE;
    const bool last = !CLEAN && s + 2 == steps;
    fast_step<0>(d0, d1, f, a, l, p, desc, stage, tail, last, true, s > work.begin);
    fast_step<1>(d0, d1, f, a, l, p, desc, stage, tail, last, true, true);
    fast_step<2>(d0, d1, f, a, l, p, desc, stage, tail, last, true, true);
    fast_step<3>(d0, d1, f, a, l, p, desc, stage, tail, last, s + 1 < work.end, true);
  }
}

template <int Q> FG_DEV void wide_fragments(u32 (&f)[2][4], const u32 (&w)[2][2], const u32 (&sf)[2 * SF_WORDS], const MathLane& l, const i32 (&most)[2]) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const float m = wide_multiplier(sf[scale_word_of(h, Q)], (i32)scale_byte_of(l.lane, Q), most[h]);
    u32 first, second;
    nibbles(w[Q % 2][h], first, second);
    dequant_wide(first, m, f[0][h], f[0][h + 2]);
    dequant_wide(second, m, f[1][h], f[1][h + 2]);
  }
}
template <int X>
FG_DEV void wide_half(float (&d0)[64], float (&d1)[64], const u32 (&sf)[2 * SF_WORDS], const MathLane& l, Place& p, u64 desc, u32 stage, const i32 (&most)[2]) {
  u32 w[2][2], f[2][4];
  raw_words<X>(w, l, stage);
  mbar_wait(l.sm + AT_BAR + B_FULL + 8 * p.b.slot(), p.b.parity());
#pragma unroll
  for (int c = 0; c < 2; c++) {
    if (c)
      wide_fragments<2 * X + 1>(f, w, sf, l, most);
    else
      wide_fragments<2 * X>(f, w, sf, l, most);
    pin(d0);
    pin(d1);
    wgmma_fence();
    issue<1>(d0, d1, f, desc + (u64)(p.b.slot() * (B16_BYTES / 16) + c * 4));
    wgmma_commit();
    wgmma_wait<0>();
    pin(d0);
    pin(d1);
  }
  __syncwarp();
  if (l.lane == 0) free_b(l, p.b.slot());
  p.b.next();
}
// The rare tile whose scales leave f16's range: bf16, one step at a time.
FG_DEV void wide_loop(float (&d0)[64], float (&d1)[64], const MathLane& l, Place& p, u64 desc, const Work& work, i32 steps, const Tail& tail, const i32 (&most)[2]) {
  const u32 bar = l.sm + AT_BAR;
#pragma unroll 1
  for (i32 s = work.begin; s < work.end; s++) {
    const u32 stage = l.sm + p.raw.slot() * STAGE;
    mbar_wait(bar + FULL + 8 * p.raw.slot(), p.raw.parity());
    u32 sf[2 * SF_WORDS];
    scale_words(sf, l, stage, tail, s + 1 == steps);
    wide_half<0>(d0, d1, sf, l, p, desc, stage, most);
    wide_half<1>(d0, d1, sf, l, p, desc, stage, most);
    __syncwarp();
    if (l.lane == 0) mbar_arrive(bar + EMPTY + 8 * p.raw.slot());
    p.raw.next();
  }
}

}  // namespace fg
