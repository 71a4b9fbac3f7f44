// One thread feeds the ring of raw stages and the headers.
#pragma once
#include "grouped_gemm/sm90/expert_map.cuh"
#include "grouped_gemm/sm90/pair/schedule.cuh"

namespace fg {

FG_DEV void tma_load_2d(u32 dst, const TensorMap* m, u32 bar, i32 c0, i32 c1) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(dst), "l"(m), "r"(bar), "r"(c0), "r"(c1) : "memory");
}

FG_DEV void copy_role(const TensorMap* map_a, const TensorMap* map_b, const TensorMap* map_c, const Params& p, u32 sm, u32 rank) {
  const u32 bar = sm + AT_BAR;
  const i32 blocks = p.head[0], atoms = ceil_div(ceil_div(p.k, SF_VEC), 4), n_tiles = ceil_div(p.n, 128), wide_tiles = ceil_div(p.n, COLS);
  const Schedule plan(p);
  Ring<STAGES> ring;
  u32 it = 0;
  i32 mapped = -1;  // the expert whose map of B was acquired last
#pragma unroll 1
  for (i32 item = blockIdx.x >> 1; item < plan.items; item += gridDim.x >> 1, it++) {
    const Work work = plan.at(item);
    i32 mb, wb;
    locate(work.tile, blocks, wide_tiles, mb, wb);
    const Block blk = p.table[mb];
    // The second half of the last tile may lie behind N: it gets the scales of the first, and is thrown away.
    const i32 nb0 = 2 * wb, nb1 = min2(nb0 + 1, n_tiles - 1), nb = rank ? nb1 : nb0;
    const i32 first_col = blk.expert * n_tiles, col0 = first_col + nb0, col1 = first_col + nb1, row_block = 2 * mb + (i32)rank;
    const u32 hdr = sm + AT_HDR + (it & 1) * HDR;
    const i32 wide = SF_E4M3 ? 0 : p.row_flag[2 * mb] | p.row_flag[2 * mb + 1] | p.col_flag[col0] | p.col_flag[col1];
    const float alpha = p.alpha[blk.expert];
    const i32 top0 = SF_E4M3 ? 0 : p.col_top[col0], top1 = SF_E4M3 ? 0 : p.col_top[col1];
    mbar_wait(bar + H_EMPTY + 8 * (it & 1), ((it >> 1) & 1) ^ 1);
    sts_u32(hdr + HDR_WORDS, (u32)mb);
    sts_u32(hdr + HDR_WORDS + 4, (u32)nb0);
    sts_u32(hdr + HDR_WORDS + 8, (u32)blk.expert);
    sts_u32(hdr + HDR_WORDS + 12, (u32)blk.first);
    sts_u32(hdr + HDR_WORDS + 16, (u32)blk.count);
    sts_u32(hdr + HDR_WORDS + 20, (u32)wide);
    sts_f32(hdr + HDR_WORDS + 24, alpha);
    sts_u32(hdr + HDR_WORDS + 28, (u32)top0);
    sts_u32(hdr + HDR_WORDS + 32, (u32)top1);
    const u32 hb = bar + H_FULL + 8 * (it & 1);
    mbar_expect(hb, HDR_BYTES);
    bulk_load(hdr + HDR_PROB, p.prob + (i64)row_block * ROWS, 4 * ROWS, hb);
    bulk_load(hdr + HDR_ROW, p.row_exp + (i64)row_block * ROWS, ROWS, hb);
    bulk_load(hdr + HDR_COL, p.col_exp + (i64)col0 * 128, 128, hb);
    bulk_load(hdr + HDR_COL + 128, p.col_exp + (i64)col1 * 128, 128, hb);
    const u8* sfa = (wide || SF_E4M3 ? p.sfa : p.fields) + (i64)row_block * atoms * 512;
    const u8* sfb = WEIGHT_LIST ? p.sfb_at[blk.expert] + (i64)nb * atoms * 512 : p.sfb + (i64)(first_col + nb) * atoms * 512;
    if (WEIGHT_LIST) {
      map_b = p.maps + blk.expert;
      if (blk.expert != mapped) acquire_map(map_b);
      mapped = blk.expert;
    }
    const i32 slice = WEIGHT_LIST ? 0 : blk.expert, col = (nb0 + (i32)rank) * 128;
#pragma unroll 1
    for (i32 s = work.begin; s < work.end; s++) {
      const u32 at = sm + ring.slot() * STAGE, full = bar + FULL + 8 * ring.slot();
      // The last step of 16-wide scales may have one atom only; its readers mask what lies behind.
      const u32 part = min2(SF_BYTES, (u32)(atoms - s * SF_WORDS) * 512);
      mbar_wait(bar + EMPTY + 8 * ring.slot(), ring.parity() ^ 1);
      mbar_expect(full, A_BYTES + B_BYTES + 2 * part);
      tma_load_2d(at + STAGE_A, map_a, full, s * (i32)ROW, row_block * ROWS);
      tma_load_3d(at + STAGE_B, map_b, full, s * (i32)ROW, col, slice);
      bulk_load(at + STAGE_SFA, sfa + (i64)s * SF_BYTES, part, full);
      bulk_load(at + STAGE_SFB, sfb + (i64)s * SF_BYTES, part, full);
      ring.next();
    }
#pragma unroll 1
    for (u32 i = 0; i < 2 * C_SLOTS; i++) {
      const u32 at = sm + ring.slot() * STAGE, full = bar + FULL + 8 * ring.slot();
      mbar_wait(bar + EMPTY + 8 * ring.slot(), ring.parity() ^ 1);
      mbar_expect(full, C_PER_SLOT * C_BOX);
#pragma unroll
      for (u32 x = 0; x < C_PER_SLOT; x++) {
        const i32 box = (i32)(i % C_SLOTS * C_PER_SLOT + x);
        tma_load_2d(at + x * C_BOX, map_c, full, nb0 * 128 + box * (128 / width(C_TYPE)), row_block * ROWS + (i32)(i / C_SLOTS * C_ROWS));
      }
      ring.next();
    }
  }
}

}  // namespace fg
