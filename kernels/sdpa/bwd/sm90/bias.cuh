// Additive bias and dBias. A bias is read where the fragment of S^T holds its score: its rows keep no alignment that wider accesses could use (S_kv is any
// number). dS in fp32 goes through shared memory to a warp of its own, which adds whole rows to dBias: 64 addresses in the math warps spilled.
// Compiled only with FG_BIAS.
#pragma once
#include "sdpa/bwd/sm90/pieces.cuh"

namespace fg {

// FG_BIAS 1: io type, 2: fp32. dBias (FG_DBIAS) is an fp32 sum. Strides in elements; sb is 0 where the batch is broadcast.
struct Bias {
  const void* from;
  i64 sb, sh, ss;
  i32 b, kv0, len_q;
};

// A row pointer that steps instead of being derived anew for every element: the derived ones all lived at once.
template <class T> FG_DEV void step(T*& p, i64 elements) {
  p += elements;
  asm volatile("" : "+l"(p));
}
template <class T> FG_DEV float bias_value(const T* p) {
  if constexpr (sizeof(T) == 4) return __ldg(p);
  else return unpack1<BF16>(__ldg(p));
}

// S becomes scale log2e S + log2e bias, which exp2 takes as it is. first: first row; key: this lane's
// first in the kv tile. Before the masks: what lies under a
// mask may be NaN. Rows and keys past the lengths are not read.
template <class T, int N> FG_DEV void add_bias_of(float (&s)[N], const T* at, const Walk& w, const Bias& a, i32 q0, i32 key, float sl2) {
  const bool key0 = key < w.keys, key8 = key + 8 < w.keys;
  const i32 rows = a.len_q - q0;
#pragma unroll
  for (int i = 0; i < N; i++) s[i] *= sl2;
#pragma unroll
  for (int j = 0; j < N / 4; j++) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const bool in = 8 * j + e < rows;
      if (in && key0) s[4 * j + e] = fmaf(bias_value(at), LOG2E, s[4 * j + e]);
      if (in && key8) s[4 * j + 2 + e] = fmaf(bias_value(at + 8), LOG2E, s[4 * j + 2 + e]);
      step(at, e ? 7 * a.ss : a.ss);
    }
  }
}
template <int N> FG_DEV void add_bias(float (&s)[N], const Walk& w, const Bias& a, i32 first, u32 key, u32 lane, float sl2) {
  const i32 q0 = first + 2 * (i32)(lane & 3);
  const i64 at = (i64)a.b * a.sb + (i64)w.h * a.sh + (i64)q0 * a.ss + (a.kv0 + (i32)key);
#if FG_BIAS == 2
  add_bias_of(s, (const float*)a.from + at, w, a, q0, (i32)key, sl2);
#else
  add_bias_of(s, (const u16*)a.from + at, w, a, q0, (i32)key, sl2);
#endif
}

// dBias += dS, straight from a fragment of dS^T. One 8-row block: v = (row 0, key), (1, key), (0, key + 8), (1, key + 8). `at`: this lane's element of the
// block's first row; left on the next block's.
FG_DEV void add_dbias_block(float*& at, i64 ss, i32 rows, bool key0, bool key8, const float (&v)[4]) {
#pragma unroll
  for (int e = 0; e < 2; e++) {
    if (e < rows && key0) red_f32(at, v[e]);
    if (e < rows && key8) red_f32(at + 8, v[2 + e]);
    step(at, e ? 7 * ss : ss);
  }
}

// ---- dS on its way to dBias: [q][128 keys] fp32, bits 3 and 4 of the key XOR bits 1 and 2 of the row (no bank conflicts on either side) ----
// Shared address of (row 2 (lane & 3), key): rows 8 j + e on are (8 j + e) * 512 bytes further, the key 8 further has bit 5 of the address flipped.
FG_DEV u32 ds32_lane(u32 smem, u32 key, u32 lane) { return smem + OFF_DS32 + (lane & 3) * 1024 + (key ^ ((lane & 3) << 3)) * 4; }
FG_DEV void put_ds32(u32 at, int j, const float (&v)[4]) {
#pragma unroll
  for (int e = 0; e < 2; e++) {
    sts_f32(at + (8 * j + e) * 512, v[e]);
    sts_f32((at ^ 32) + (8 * j + e) * 512, v[2 + e]);
  }
}
// One warp: dbias += dS of every tile, a row of keys at a time. `to`: dBias of the first head; dsh, dss its strides.
FG_DEV void dbias_role(u32 smem, const Tile& t, i32 heads, float* to, i64 dsh, i64 dss, u32 lane) {
  u32 ph = 0;
#pragma unroll 1
  for (i32 h = 0; h < heads; h++, to += dsh)
#pragma unroll 1
    for (i32 k = 0; k < t.hi - t.lo; k++) {
      const i32 qb = t.q_tile(k);
      const i32 rows = min2(TQ, t.len_q - qb * TQ);
      float* row = to + ((i64)(qb * TQ) * dss + (t.kv0 + (i32)lane));
      mbar_wait(smem + BAR_DS32_FULL, ph);
      ph ^= 1;
#pragma unroll 1
      for (i32 q = 0; q < rows; q++, row += dss) {
        const u32 from = smem + OFF_DS32 + q * 512 + (lane ^ (((u32)q >> 1 & 3) << 3)) * 4;
#pragma unroll
        for (int c = 0; c < TK / 32; c++)
          if (t.kv0 + 32 * c + (i32)lane < t.len_kv) red_f32(row + 32 * c, lds_f32(from + c * 128));
      }
      __syncwarp();
      if (lane == 0) mbar_arrive(smem + BAR_DS32_FREE);
    }
}

}  // namespace fg
