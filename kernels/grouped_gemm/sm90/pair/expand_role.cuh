// One warpgroup makes this CTA's 128 columns of 16-bit B, for both CTAs. Not a form of the loop in sm90/expand_role.cuh: as one it was 2 % slower (the
// branch of the lane that sends became a block of its own).
#pragma once
#include "grouped_gemm/sm90/expand.cuh"
#include "grouped_gemm/sm90/pair/schedule.cuh"

namespace fg {

// E2M1 with E4M3 scales: a chunk of 32 k has two scales, `pair`.
FG_DEV void expand_pair(const u32 (&v)[4], u32 pair, u32 (&unit)[4][4]) {
#pragma unroll
  for (int x = 0; x < 4; x++) {
    u32 even, odd;
    nibbles(v[x], even, odd);
    const u32 m = both(pair, x / 2);
    dequant(even, m, unit[0][x], unit[1][x]);
    dequant(odd, m, unit[2][x], unit[3][x]);
  }
}

constexpr int CHUNKS = ROW / 32;  // 16-byte chunks of a raw row in a slot
constexpr int UNITS = 4;          // of 16 bytes that a chunk becomes

// A column's share of a slot: `half` of the stage.
template <bool WIDE_LOOP> FG_DEV void make_half(const u32 (&v)[CHUNKS][4], const u32 (&sf)[SF_WORDS], i32 most, int half, u32 slot, const u32 (&to)[UNITS * CHUNKS]) {
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    u32 unit[4][4];
    if constexpr (SF_E4M3)
      expand_pair(v[c], scale_pair(sf[(CHUNKS * half + c) / 2] >> 16 * ((CHUNKS * half + c) % 2)), unit);
    else
      expand_words<WIDE_LOOP>(v[c], sf, most, CHUNKS * half + c, unit);
#pragma unroll
    for (int i = 0; i < UNITS; i++) sts_v4(slot + to[UNITS * c + i], unit[i][0], unit[i][1], unit[i][2], unit[i][3]);
  }
}

// The column of a half that lane of warp w makes.
FG_DEV u32 column_of(u32 lane, u32 w) {
  const u32 i = (lane >> 1) & 3;
  return 32 * (i ^ (lane >> 3)) + 2 * (i + 4 * w) + (lane & 1);
}

FG_DEV void expand_role(const Params& p, u32 sm, u32 thread, u32 rank) {
  const Schedule plan(p);
  const u32 bar = sm + AT_BAR, lane = thread & 31, w = thread >> 5;
  const u32 peer_sm = at_rank(sm, rank ^ 1), peer_bar = peer_sm + AT_BAR;
  const Tail tail = tail_of(p.k);
  // Column n of the half and its row in the 16-bit tile: eight neighbouring lanes differ in the low three bits of both, so neither side conflicts.
  // A warp's 32 rows are consecutive: one copy to the peer.
  const u32 n = column_of(lane, w), row = 8 * (n % 32 / 2) + 2 * (n / 32) + n % 2;
  // This lane's part of the addresses: the rest is the same for all.
  u32 from[CHUNKS], to[UNITS * CHUNKS];
#pragma unroll
  for (int i = 0; i < CHUNKS; i++) from[i] = sm + STAGE_B + n * ROW + ((i ^ swizzle(n)) << 4);
#pragma unroll
  for (int i = 0; i < UNITS * CHUNKS; i++) to[i] = sm + AT_B16 + rank * B16_HALF + row * 128 + ((i ^ (row & 7)) << 4);
  const u32 half_at = AT_B16 + rank * B16_HALF;
  const u32 sf_at = sm + STAGE_SFB + (n & 31) * 16 + (n >> 5) * 4;
  Raw ring;
  Ring<B16> b;
  u32 it = 0;
#pragma unroll 1
  for (i32 item = Schedule::first(); item < plan.items; item += Schedule::stride(), it++) {
    const Work work = plan.at(item);
    const u32 hdr = wait_header(sm, it);
    const u32 wide = lds_u32(hdr + HDR_WORDS + WORD_WIDE);
    u32 here = lane;
    opaque(here);  // this address is made here, not kept in a register
    const i32 most = (i32)(wide ? lds_u8(hdr + HDR_COL + 128 * rank + column_of(here, w)) : lds_u32(hdr + HDR_WORDS + WORD_TOP + 4 * rank));
#pragma unroll 1
    for (i32 s = work.begin; s < work.end; s++) {
      const u32 at = ring.slot() * STAGE;
      mbar_wait(bar + FULL + 8 * ring.slot(), ring.parity());
      u32 sf[SF_WORDS], mult[SF_WORDS];
#pragma unroll
      for (int x = 0; x < SF_WORDS; x++) {
        sf[x] = lds_u32(at + sf_at + 512 * x) & (s + 1 == plan.steps ? tail.word[x] : ~0u);
        mult[x] = SF_E4M3 ? sf[x] : exponent_fields(sf[x], most);
      }
#pragma unroll
      for (int half = 0; half < 2; half++) {
        u32 v[CHUNKS][4];
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) lds_v4(at + (from[c] ^ (16 * CHUNKS * half)), v[c][0], v[c][1], v[c][2], v[c][3]);
        mbar_wait(bar + B_EMPTY + 8 * b.slot(), b.parity() ^ 1);
        const u32 slot = b.slot() * B16_BYTES;
        if (SF_E4M3 || !wide)
          make_half<false>(v, mult, most, half, slot, to);
        else
          make_half<true>(v, sf, most, half, slot, to);
        fence_async_smem();
        __syncwarp();
        if (lane == 0) {
          const u32 mine = half_at + slot + w * WARP_BYTES;
          bulk_to_peer(peer_sm + mine, sm + mine, WARP_BYTES, peer_bar + B_FULL + 8 * b.slot());
          mbar_expect(bar + B_FULL + 8 * b.slot(), WARP_BYTES);  // what the peer's warp sends here
          if (half) mbar_arrive(bar + EMPTY + 8 * ring.slot());
        }
        b.next();
      }
      ring.next();
    }
    pass_c<2 * C_SLOTS>(sm, ring, lane);
    free_header(sm, it, lane);
  }
}

}  // namespace fg
