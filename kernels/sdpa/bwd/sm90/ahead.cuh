// Work for heads whose turn comes later, done beside the products by two warps that have nothing else to do: the row sums of dO * O, and the zeros that
// dQ is added to. The grid is cut into sections of `interleave` head groups (config.cuh). A block of section s prepares a share of section s + ahead;
// `dot` prepares the first `ahead` sections.
//
// A block waits for its section's counter. Only blocks with a lower blockIdx.x (order 6: lower items) add to it, and they wait for nothing before they do.
#pragma once
#include "common/cp_async.cuh"
#include "sdpa/bwd/sm90/config.cuh"

namespace fg {

// Where a block stands among the sections.
struct Section {
  u32 fit, groups, index, place, helpers;  // groups of a section and in all; its number, the block's place in it, how many of its blocks prepare
};
FG_DEV Section section_of(const Shape& s, u32 block, u32 items) {
  const u32 tiles = CLUSTER * (u32)ceil_div(s.s_kv, CLUSTER * TK), blocks = tiles * (u32)s.interleave;
  opaque(block);  // shared with make_tile, these numbers would have to live in the 24 registers of the helper roles
  // The first half of a section has the most tiles to compute, so the most time.
  return {(u32)s.interleave, items / tiles, block / blocks, block % blocks, (blocks + 1) / 2};
}

FG_DEV void add_release(i32* p, i32 v) { asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }

// One warp, until the heads of this block are prepared. What it then tells the math warps through an mbarrier orders their additions as well.
FG_DEV void await_section(const Shape& s, u32 item, u32 items, const i32* ready, i32 ahead, u32 lane) {
  const Section x = section_of(s, item, items);
  if (x.index < (u32)ahead) return;
  if (lane == 0)
    while (ld_acquire(ready + x.index) < (i32)(2 * x.helpers)) {
    }
  __syncwarp();
}

// O or dO as the kernel's caller strides it.
struct Rows {
  const u16* base;
  i64 sb, sh, ss;
};

// A row takes LANES lanes of 16 bytes, a copy of the warp PASS rows; a step has AHEAD_ROWS rows.
constexpr u32 LANES = DV / 8, PASS = 32 / LANES, PASSES = AHEAD_ROWS / PASS;

// This lane's 16 bytes of every PASS-th row, 1024 bytes of shared memory apart; zeros past the tensor.
FG_DEV void copy_rows(u32 to, const Rows& x, i32 b, i32 h, i32 row, i32 rows, i32 col, i32 d) {
  const u16* p = x.base + ((i64)b * x.sb + (i64)h * x.sh + (i64)row * x.ss + col);
  i32 left = col < d ? rows - row : 0;
#pragma unroll 2
  for (u32 i = 0; i < PASSES; i++, left -= PASS, p += PASS * x.ss) cp_async16(to + i * 1024, p, left > 0);
}

FG_DEV void lds_v2(u32 a, u32& x, u32& y) { asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(x), "=r"(y) : "r"(a)); }
FG_DEV float dot_pair(u32 a, u32 b, float s) {
  s = fmaf(unpack1<BF16>((u16)a), unpack1<BF16>((u16)b), s);
  return fmaf(unpack1<BF16>((u16)(a >> 16)), unpack1<BF16>((u16)(b >> 16)), s);
}

// One of two warps, w = 0, 1. A lane reads back what it copied itself, so nothing but its own wait stands between.
FG_DEV void prepare(const Shape& s, u32 item, u32 items, const Rows& o, const Rows& d_o, float* delta, float* dq, i32* ready, i32 ahead,
                    i32 ws_rows, i32 d_v, u32 smem, u32 w, u32 lane) {
  const Section x = section_of(s, item, items);
  const u32 target = x.index + (u32)ahead;
  if (target * x.fit >= x.groups || x.place >= x.helpers) return;
  const u32 steps = (u32)ws_rows / AHEAD_ROWS, head0 = target * x.fit * (u32)s.heads_item;
  const u32 all = min2(x.fit, x.groups - target * x.fit) * (u32)s.heads_item * steps;
  const u32 stage = smem + OFF_AHEAD + w * (PASSES * 1024) + lane * 16;
  const i32 sub = (i32)(lane / LANES), col = (i32)(lane % LANES) * 8;
#pragma unroll 1
  for (u32 u = 2 * x.place + w; u < all; u += 2 * x.helpers) {
    const u32 bh = head0 + u / steps;
    const i32 row0 = (i32)(u % steps) * AHEAD_ROWS;
    const i32 b = (i32)(bh / (u32)s.heads_q), h = (i32)(bh - (u32)b * (u32)s.heads_q);
    copy_rows(stage, o, b, h, row0 + sub, s.s_q, col, d_v);
    copy_rows(stage + 512, d_o, b, h, row0 + sub, s.s_q, col, d_v);
    cp_commit();
    const i64 first = (i64)bh * ws_rows + row0;
    float* z = dq + (first * DQK + (i32)lane * 4);
#pragma unroll 4
    for (int i = 0; i < AHEAD_ROWS * DQK / 128; i++) stg_v4(z + i * 128, 0, 0, 0, 0);
    cp_wait<0>();
    float mine = 0.f;
#pragma unroll 1
    for (u32 i = 0; i < PASSES; i++) {
      float a = 0.f;
#pragma unroll
      for (int e = 0; e < 2; e++) {
        u32 p[2], q[2];
        lds_v2(stage + i * 1024 + e * 8, p[0], p[1]);
        lds_v2(stage + i * 1024 + 512 + e * 8, q[0], q[1]);
        a = dot_pair(p[1], q[1], dot_pair(p[0], q[0], a));
      }
#pragma unroll
      for (u32 m = LANES / 2; m > 0; m /= 2) a += __shfl_xor_sync(0xffffffffu, a, m);
      if (lane % LANES == i) mine = a;
    }
    // Lane i of a row's lanes has kept row i * PASS + sub.
    const i32 row = row0 + (i32)(lane % LANES) * (i32)PASS + sub;
    if (lane % LANES < PASSES && row < s.s_q) delta[first + (row - row0)] = mine;
  }
  __syncwarp();
  if (lane == 0) add_release(ready + target, 1);
}

}  // namespace fg
