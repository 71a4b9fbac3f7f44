// B with k contiguous: a thread makes one column of a tile.
#pragma once
#include "grouped_gemm/sm90/expand.cuh"
#include "grouped_gemm/sm90/main_config.cuh"

namespace fg {

constexpr int CHUNKS = ROW / 32;  // 16-byte chunks of a raw row in 64 k

struct KMajor {
  struct Scales {
    u32 sf[SF_WORDS], mult[SF_WORDS];
  };
  using Words = u32[CHUNKS][4];
  u32 sm, n, src, src_x, dst, dst_x, sf_at, wide;
  i32 most;

  // Column n of the tile and its row in the 16-bit tile: eight neighbouring lanes differ in the low three bits of both, so neither side conflicts.
  FG_DEV KMajor(u32 sm, u32 lane, u32 w) : sm(sm) {
    const u32 e = lane & 1, i = (lane >> 1) & 3, t = i ^ (lane >> 3), j = i + 4 * w, row = 8 * j + 2 * t + e;
    n = 32 * t + 2 * j + e;
    src = STAGE_B + n * ROW;
    src_x = swizzle(n);
    dst = AT_B16 + row * 128;
    dst_x = row & 7;
    sf_at = STAGE_SFB + (n & 31) * 16 + (n >> 5) * 4;
  }
  FG_DEV void tile(u32 hdr, u32 wide_tile) {
    wide = wide_tile;
    most = (i32)(wide ? lds_u8(hdr + HDR_COL + n) : lds_u32(hdr + HDR_WORDS + WORD_TOP));
  }
  FG_DEV void scales(Scales& s, u32 at, const Tail& tail, bool last) {
#pragma unroll
    for (int x = 0; x < SF_WORDS; x++) {
      s.sf[x] = lds_u32(at + sf_at + 512 * x) & (last ? tail.word[x] : ~0u);
      s.mult[x] = SF_E4M3 ? s.sf[x] : exponent_fields(s.sf[x], most);
    }
  }
  FG_DEV void load(Words& v, u32 at, int half) {
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) lds_v4(at + src + (((CHUNKS * half + c) ^ src_x) << 4), v[c][0], v[c][1], v[c][2], v[c][3]);
  }
  FG_DEV void store(const Words& v, const Scales& s, u32 slot, int half) {
    const u32 to = sm + dst + slot;
    if (SF_E4M3 || !wide) {
#pragma unroll
      for (int c = 0; c < CHUNKS; c++) expand<false>(v[c], s.mult, most, CHUNKS * half + c, to, dst_x, 8 / CHUNKS * c);
    } else {
#pragma unroll
      for (int c = 0; c < CHUNKS; c++) expand<true>(v[c], s.sf, most, CHUNKS * half + c, to, dst_x, 8 / CHUNKS * c);
    }
  }
};

}  // namespace fg
