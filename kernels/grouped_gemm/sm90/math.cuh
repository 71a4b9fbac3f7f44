// The multiplying warpgroups' loop over k: A fragments dequantised in registers, B from the 16-bit ring.
#pragma once
#include "grouped_gemm/sm90/main_config.cuh"

namespace fg {

// Where a thread stands. Warp w of warpgroup c owns rows 128 c + 32 w .. + 31: product b covers 16 of them, lane 4g + t rows g and g + 8.
struct MathLane {
  u32 sm;            // aligned shared memory
  u32 a_row, a_xor;  // byte offset of this lane's ldmatrix row in a stage, its swizzle
  u32 sf;            // byte offset of row 16b + g + 8h's first scale word: + (16 b + 8 h) * 16
  u32 lane;
};
// Running place in the two rings.
struct Place {
  Raw raw;
  Ring<B16> b;
};

// Raw words of chunk Q (32 k): x[b][h] the first 16 k (fp8) or all 32 (E2M1) of row g + 8h of product b, y the second 16 of fp8.
FG_DEV void raw_words(u32 (&x)[2][2], u32 (&y)[2][2], const MathLane& l, u32 stage, int q) {
  if (IN == IN_E2M1) {
    ldsm4(stage + l.a_row + ((q ^ l.a_xor) << 4), x[0][0], x[0][1], x[1][0], x[1][1]);
  } else {
#pragma unroll
    for (int b = 0; b < 2; b++) ldsm4(stage + l.a_row + b * 16 * ROW + (((2 * q + (l.lane >> 4)) ^ l.a_xor) << 4), x[b][0], x[b][1], y[b][0], y[b][1]);
  }
}
template <int Q> FG_DEV void fragments(u32 (&f)[2][2][4], const u32 (&sf)[4 * SF_WORDS], const MathLane& l, u32 stage) {
  u32 x[2][2], y[2][2];
  raw_words(x, y, l, stage, Q);
  const u32 byte = scale_byte_of(l.lane, Q);
#pragma unroll
  for (int b = 0; b < 2; b++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const u32 m = multiplier(sf[scale_word_of(2 * b + h, Q)], byte);
      u32 first = x[b][h], second = y[b][h];
      if (IN == IN_E2M1) nibbles(x[b][h], first, second);
      dequant(first, m, f[b][0][h], f[b][0][h + 2]);
      dequant(second, m, f[b][1][h], f[b][1][h + 2]);
    }
}
FG_DEV void scale_words(u32 (&sf)[4 * SF_WORDS], const MathLane& l, u32 stage, const Tail& tail, bool last) {
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int w = 0; w < SF_WORDS; w++) sf[SF_WORDS * i + w] = lds_u32(stage + STAGE_SFA + l.sf + i * 128 + w * 512) & (last ? tail.word[w] : ~0u);
}
template <int BF16> FG_DEV void issue(float (&d0)[64], float (&d1)[64], const u32 (&f)[2][2][4], u64 desc) {
#pragma unroll
  for (int k = 0; k < 2; k++) {
    Wgmma<BF16, 128>::rs(d0, f[0][k][0], f[0][k][1], f[0][k][2], f[0][k][3], desc + 2 * k, 1);
    Wgmma<BF16, 128>::rs(d1, f[1][k][0], f[1][k][1], f[1][k][2], f[1][k][3], desc + 2 * k, 1);
  }
}

template <int Q>
FG_DEV void fast_step(float (&d0)[64], float (&d1)[64], u32 (&f)[2][2][2][4], u32 (&sf)[4 * SF_WORDS], const MathLane& l, Place& p, u64 desc, u32 stage, const Tail& tail,
                      bool last, bool more, bool release) {
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
  if (FIRST && release && l.lane == 0) mbar_arrive(bar + B_EMPTY + 8 * p.b.before());
  if (!FIRST) p.b.next();
  if (Q < 3) {
    fragments<(Q + 1) & 3>(f[(Q + 1) & 1], sf, l, stage);
  } else {
    p.raw.next();
    if (more) {
      const u32 at = l.sm + p.raw.slot() * STAGE;
      mbar_wait(bar + FULL + 8 * p.raw.slot(), p.raw.parity());
      scale_words(sf, l, at, tail, last);
      fragments<0>(f[0], sf, l, at);
    }
  }
}

// Leaves its last group under way: the caller waits for it and frees the last part of the ring of B.
FG_DEV void fast_loop(float (&d0)[64], float (&d1)[64], const MathLane& l, Place& p, u64 desc, i32 steps, const Tail& tail) {
  const u32 bar = l.sm + AT_BAR;
  u32 f[2][2][2][4], sf[4 * SF_WORDS];
  mbar_wait(bar + FULL + 8 * p.raw.slot(), p.raw.parity());
  // Multipliers come clean from prep up to the last atom; given scales end in whatever their padding holds.
  constexpr bool CLEAN = !SF_E4M3 && SF_WORDS == 1;
  scale_words(sf, l, l.sm + p.raw.slot() * STAGE, tail, !CLEAN && steps == 1);
  fragments<0>(f[0], sf, l, l.sm + p.raw.slot() * STAGE);
#pragma unroll 1
  for (i32 s = 0; s < steps; s++) {
    const u32 stage = l.sm + p.raw.slot() * STAGE;
    const bool last = !CLEAN && s + 2 == steps;
    fast_step<0>(d0, d1, f, sf, l, p, desc, stage, tail, last, true, s > 0);
    fast_step<1>(d0, d1, f, sf, l, p, desc, stage, tail, last, true, true);
    fast_step<2>(d0, d1, f, sf, l, p, desc, stage, tail, last, true, true);
    fast_step<3>(d0, d1, f, sf, l, p, desc, stage, tail, last, s + 1 < steps, true);
  }
}

// The rare tile whose scales leave f16's range: bf16, one step at a time.
FG_DEV void wide_loop(float (&d0)[64], float (&d1)[64], const MathLane& l, Place& p, u64 desc, i32 steps, const Tail& tail, const i32 (&most)[4]) {
  const u32 bar = l.sm + AT_BAR;
#pragma unroll 1
  for (i32 s = 0; s < steps; s++) {
    const u32 stage = l.sm + p.raw.slot() * STAGE;
    mbar_wait(bar + FULL + 8 * p.raw.slot(), p.raw.parity());
    u32 sf[4 * SF_WORDS];
    scale_words(sf, l, stage, tail, s + 1 == steps);
#pragma unroll
    for (int q = 0; q < 4; q++) {
      u32 f[2][2][4], x[2][2], y[2][2];
      raw_words(x, y, l, stage, q);
#pragma unroll
      for (int b = 0; b < 2; b++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const float m = wide_multiplier(sf[scale_word_of(2 * b + h, q)], (i32)scale_byte_of(l.lane, q), most[2 * b + h]);
          u32 first = x[b][h], second = y[b][h];
          if (IN == IN_E2M1) nibbles(x[b][h], first, second);
          dequant_wide(first, m, f[b][0][h], f[b][0][h + 2]);
          dequant_wide(second, m, f[b][1][h], f[b][1][h + 2]);
        }
      if (q % 2 == 0) mbar_wait(bar + B_FULL + 8 * p.b.slot(), p.b.parity());
      pin(d0);
      pin(d1);
      wgmma_fence();
      issue<1>(d0, d1, f, desc + (u64)(p.b.slot() * (B16_BYTES / 16) + (q & 1) * 4));
      wgmma_commit();
      wgmma_wait<0>();
      pin(d0);
      pin(d1);
      __syncwarp();
      if (l.lane == 0) {
        if (q % 2) mbar_arrive(bar + B_EMPTY + 8 * p.b.slot());
        if (q == 3) mbar_arrive(bar + EMPTY + 8 * p.raw.slot());
      }
      if (q % 2) p.b.next();
    }
    p.raw.next();
  }
}

}  // namespace fg
