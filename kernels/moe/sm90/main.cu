// main: the whole plain grouped product. Persistent: one CTA per SM, tiles blockIdx.x, + gridDim.x, ... as the offsets number them; the host knows none of them.
//
// grid (at most one CTA per SM), block 384, shared memory fg::SMEM. Parameters: map of tokens (k, tokens), box 64 x 128 (unused when gathering); map of weights
// (k, n, experts), box 64 x 256 x 1, or (n, k, experts), box 64 x 64 x 1, where n is contiguous; all with 128 bytes of swizzle; then pointers and sizes in order. Strides count elements.
#include "moe/sm90/config.cuh"

namespace fg {

FG_DEV void tma_load_2d(u32 dst, const TensorMap* m, u32 bar, i32 c0, i32 c1) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(dst), "l"(m), "r"(bar), "r"(c0), "r"(c1) : "memory");
}
FG_DEV u32 lds_u32(u32 a) {
  u32 v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(a));
  return v;
}
FG_DEV void stg_f32x2(float* p, float x, float y) { asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(p), "f"(x), "f"(y) : "memory"); }

// B of one stage: 256 columns with 64 of k each, or four times 64 of k with 64 columns each.
FG_DEV void copy_b(u32 to, const TensorMap* map_b, u32 full, i32 k, const Tile& t) {
  if (NMAJOR) {
#pragma unroll
    for (int i = 0; i < N_TILE / 64; i++) tma_load_3d(to + i * K_TILE * 128, map_b, full, t.col + 64 * i, k, t.expert);
  } else {
    tma_load_3d(to, map_b, full, k, t.col, t.expert);
  }
}

// Tells the math warps about tile `it`. Lane 0 of one warp.
FG_DEV void announce(u32 sm, u32 it, const Tile& t) {
  const u32 slot = it % HDRS, bar = sm + AT_BAR, at = sm + AT_HDR + slot * HDR;
  mbar_wait(bar + H_EMPTY + 8 * slot, ((it / HDRS) & 1) ^ 1);
  sts_v4(at, (u32)t.row, (u32)t.rows, (u32)t.col, (u32)t.expert);
  mbar_arrive(bar + H_FULL + 8 * slot);
}

// Both operands by TMA; one warp, whose first lane issues.
FG_DEV void copy_role(const TensorMap* map_a, const TensorMap* map_b, const Routing& p, u32 sm, i32 n_tiles, i32 steps, u32 lane) {
  const u32 bar = sm + AT_BAR;
  Walk walk;
  walk.start(p, n_tiles, lane);
  u32 stage = 0, parity = 1, it = 0;
#pragma unroll 1
  for (i32 number = blockIdx.x;; number += gridDim.x, it++) {
    const Tile t = walk.find(p, number, n_tiles, lane);
    if (lane == 0) {
      announce(sm, it, t);
      if (t.rows) {
#pragma unroll 1
        for (i32 s = 0; s < steps; s++) {
          const u32 at = sm + stage * STAGE, full = bar + FULL + 8 * stage;
          mbar_wait(bar + EMPTY + 8 * stage, parity);
          mbar_expect(full, STAGE);
          tma_load_2d(at, map_a, full, s * K_TILE, t.row);
          copy_b(at + A_BYTES, map_b, full, s * K_TILE, t);
          if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
          }
        }
      }
    }
    __syncwarp();
    if (!t.rows) return;
  }
}

// This warp's rows of stage number `count` are in shared memory.
FG_DEV void landed(u32 bar, u32 count, u32 lane) {
  fence_async_smem();
  __syncwarp();
  if (lane == 0) mbar_arrive(bar + FULL + 8 * (count % STAGES));
}

// Tokens row by row through their index, by the four warps of the warpgroup: thread t copies 16-byte unit t % 8 of rows t / 8, + 16, ... .
FG_DEV void gather_role(const u8* token, i64 row_bytes, const TensorMap* map_b, const Routing& p, u32 sm, i32 n_tiles, i32 k, u32 thread) {
  constexpr int ROWS = M_TILE / 16;
  const u32 bar = sm + AT_BAR, lane = thread & 31, unit = thread & 7, line = thread >> 3;
  const u32 dst = line * 128 + ((unit ^ (line & 7)) << 4);
  const i32 steps = ceil_div(k, K_TILE), units = k / 8;
  Walk walk;
  walk.start(p, n_tiles, lane);
  u32 stage = 0, parity = 1, it = 0, issued = 0;
#pragma unroll 1
  for (i32 number = blockIdx.x;; number += gridDim.x, it++) {
    const Tile t = walk.find(p, number, n_tiles, lane);
    if (!t.rows) break;
    if (thread == 0) announce(sm, it, t);
    const u8* src[ROWS];
    u32 live = 0;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      const i32 r = (i32)line + 16 * i, from = r < t.rows ? source(p, t.row + r) : -1;
      live |= (from >= 0 ? 1u : 0u) << i;
      src[i] = token + (i64)max2(from, 0) * row_bytes + unit * 16;
    }
#pragma unroll 1
    for (i32 s = 0; s < steps; s++) {
      const u32 at = sm + stage * STAGE, full = bar + FULL + 8 * stage;
      mbar_wait(bar + EMPTY + 8 * stage, parity);
      if (thread == 0) {
        mbar_expect(full, B_BYTES);
        copy_b(at + A_BYTES, map_b, full, s * K_TILE, t);
      }
      const bool inside = s * 8 + (i32)unit < units;
#pragma unroll
      for (int i = 0; i < ROWS; i++) cp_async16(at + dst + i * 16 * 128, src[i] + (i64)s * 128, inside && ((live >> i) & 1));
      cp_commit();
      if (issued >= LAG) {
        cp_wait<LAG>();
        landed(bar, issued - LAG, lane);
      }
      issued++;
      if (++stage == STAGES) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
  cp_wait<0>();
#pragma unroll
  for (u32 late = LAG; late > 0; late--)
    if (issued >= late) landed(bar, issued - late, lane);
  if (thread == 0) announce(sm, it, Tile{0, 0, 0, 0});
}

FG_DEV void math_role(u8* out, i64 out_stride, const Routing& p, u32 sm, i32 n, i32 steps, u32 c, u32 thread) {
  const u32 bar = sm + AT_BAR, lane = thread & 31, w = uniform(thread >> 5);
  const u32 own = c * 64 + w * 16;  // this warp's first row of the tile
  const u64 desc_a = wgmma_desc(sm + c * 64 * 128, 16), desc_b = wgmma_desc(sm + A_BYTES, NMAJOR ? K_TILE * 128 : 16);
  const u32 staging = sm + AT_STAGING + (c * 4 + w) * 2 * STAGING;
  float d[N_TILE / 2];
  u32 stage = 0, parity = 0, it = 0;
#pragma unroll 1
  for (;; it++) {
    const u32 slot = it % HDRS;
    mbar_wait(bar + H_FULL + 8 * slot, (it / HDRS) & 1);
    u32 row, rows, col, expert;
    lds_v4(sm + AT_HDR + slot * HDR, row, rows, col, expert);
    if (!uniform(rows)) return;
    // Where this lane's rows go: as 16-bit results are stored, rows lane / 8 + 4 i of the warp; as f32 results are, rows lane / 4 + 8 i.
    constexpr int LINES = OUT == T_F32 ? 2 : 4;
    i32 to[LINES];
#pragma unroll
    for (int i = 0; i < LINES; i++) {
      const i32 r = (i32)own + (OUT == T_F32 ? (i32)(lane >> 2) + 8 * i : (i32)(lane >> 3) + 4 * i);
      to[i] = r < (i32)rows ? target(p, (i32)row + r) : -1;
    }
    __syncwarp();
    if (lane == 0) mbar_arrive(bar + H_EMPTY + 8 * slot);
#pragma unroll 1
    for (i32 s = 0; s < steps; s++) {
      mbar_wait(bar + FULL + 8 * stage, parity);
      const u64 at = (u64)(stage * STAGE >> 4);
      pin(d);
      wgmma_fence();
#pragma unroll
      for (int kk = 0; kk < K_TILE / 16; kk++) Wgmma<BF16, N_TILE, NMAJOR>::ss(d, desc_a + at + 2 * kk, desc_b + at + (NMAJOR ? 128 : 2) * kk, s | kk);
      wgmma_commit();
      wgmma_wait<1>();
      // The stage before this one has been read.
      if (lane == 0 && s > 0) mbar_arrive(bar + EMPTY + 8 * (stage == 0 ? STAGES - 1 : stage - 1));
      if (++stage == STAGES) {
        stage = 0;
        parity ^= 1;
      }
    }
    wgmma_wait<0>();
    pin(d);
    if (lane == 0) mbar_arrive(bar + EMPTY + 8 * (stage == 0 ? STAGES - 1 : stage - 1));
    if (OUT == T_F32) {
#pragma unroll
      for (int i = 0; i < LINES; i++) {
        float* line = reinterpret_cast<float*>(out) + (i64)to[i] * out_stride + col + 2 * (lane & 3);
        const i32 left = to[i] < 0 ? 0 : n - (i32)col - 2 * (i32)(lane & 3);
#pragma unroll
        for (int j = 0; j < N_TILE / 8; j++)
          if (8 * j < left) stg_f32x2(line + 8 * j, d[4 * j + 2 * i], d[4 * j + 2 * i + 1]);
      }
    } else {
      const u32 r = (lane & 7) + ((lane >> 3) & 1) * 8, unit = lane >> 4, back = lane & 7, first = lane >> 3;
#pragma unroll
      for (int part = 0; part < N_TILE / 64; part++) {
        const u32 tile = staging + (part & 1) * STAGING;
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
          const float* v = d + 4 * (8 * part + j);
          stsm4(tile + r * 128 + (((j + unit) ^ (r & 7)) << 4), pack2<OUT == T_BF16>(v[0], v[1]), pack2<OUT == T_BF16>(v[2], v[3]), pack2<OUT == T_BF16>(v[4], v[5]),
                pack2<OUT == T_BF16>(v[6], v[7]));
        }
        __syncwarp();
        const bool inside = (i32)col + part * 64 + (i32)back * 8 < n;
#pragma unroll
        for (int i = 0; i < LINES; i++) {
          const u32 line = first + 4 * i;
          u32 x0, x1, x2, x3;
          lds_v4(tile + line * 128 + ((back ^ (line & 7)) << 4), x0, x1, x2, x3);
          if (inside && to[i] >= 0) stg_v4(reinterpret_cast<u16*>(out) + (i64)to[i] * out_stride + col + part * 64 + back * 8, x0, x1, x2, x3);
        }
      }
    }
  }
}

}  // namespace fg

extern "C" __device__ const int fg_moe_main_smem = fg::SMEM;

extern "C" __global__ void __launch_bounds__(fg::THREADS, 1)
    fg_moe_main(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, const u8* token, const void* offsets, const i32* index, const i32* ks, u8* output,
                i64 token_stride, i64 output_stride, i32 tokens, i32 routed, i32 n, i32 k, i32 groups, i32 experts, i32 top_k) {
  using namespace fg;
  extern __shared__ u8 raw[];
  const u32 sm = (smem_addr(raw) + 1023) & ~1023u, bar = sm + AT_BAR;
  const Routing p{offsets, index, ks, tokens, routed, groups, experts, top_k};
  if (threadIdx.x == 0) {
    for (u32 s = 0; s < STAGES; s++) {
      mbar_init(bar + FULL + 8 * s, MODE == GATHER ? 5 : 1);
      mbar_init(bar + EMPTY + 8 * s, MATH_WARPS);
    }
    for (u32 s = 0; s < HDRS; s++) {
      mbar_init(bar + H_FULL + 8 * s, 1);
      mbar_init(bar + H_EMPTY + 8 * s, MATH_WARPS);
    }
    mbar_init_fence();
    if (MODE != GATHER) tma_prefetch_map(&map_a);
    tma_prefetch_map(&map_b);
  }
  __syncthreads();
  pdl_wait();
  pdl_launch();
  const i32 n_tiles = ceil_div(n, N_TILE), steps = ceil_div(k, K_TILE);
  const u32 role = uniform(threadIdx.x >> 7);
  if (role == 0) {
    regs_dec<COPY_REGS>();
    if (MODE == GATHER)
      gather_role(token, token_stride * 2, &map_b, p, sm, n_tiles, k, threadIdx.x);
    else if (threadIdx.x < 32)
      copy_role(&map_a, &map_b, p, sm, n_tiles, steps, threadIdx.x);
  } else {
    regs_inc<MATH_REGS>();
    math_role(output, output_stride, p, sm, n, steps, role - 1, threadIdx.x & 127);
  }
}
