// One thread feeds the ring of raw stages and the headers.
#pragma once
#include "grouped_gemm/sm90/pair/schedule.cuh"

namespace fg {

FG_DEV void copy_role(const TensorMap* map_a, const TensorMap* map_b, const TensorMap* map_c, const Params& p, u32 sm, u32 rank) {
  const u32 bar = sm + AT_BAR;
  const i32 blocks = p.head[0], atoms = ceil_div(ceil_div(p.k, SF_VEC), 4), n_tiles = ceil_div(p.n, 128), wide_tiles = ceil_div(p.n, COLS);
  const Schedule plan(p);
  Raw ring;
  u32 it = 0;
  i32 mapped = -1;
#pragma unroll 1
  for (i32 item = Schedule::first(); item < plan.items; item += Schedule::stride(), it++) {
    const Work work = plan.at(item);
    i32 mb, wb;
    locate(work.tile, blocks, wide_tiles, mb, wb);
    const Block blk = p.table[mb];
    // The second half of the last tile may lie behind N: it gets the scales of the first, and is thrown away.
    const i32 nb0 = 2 * wb, nb1 = min2(nb0 + 1, n_tiles - 1), nb = rank ? nb1 : nb0;
    const i32 first_col = blk.expert * n_tiles, col0 = first_col + nb0, col1 = first_col + nb1, row_block = 2 * mb + (i32)rank;
    const u32 hdr = sm + AT_HDR + (it & 1) * HDR;
    const i32 wide = SF_E4M3 ? 0 : p.row_flag[2 * mb] | p.row_flag[2 * mb + 1] | p.col_flag[col0] | p.col_flag[col1];
    const Header h{mb, nb0, blk.expert, blk.first, blk.count, wide, p.alpha[blk.expert], SF_E4M3 ? 0 : p.col_top[col0]};
    const i32 top1 = SF_E4M3 ? 0 : p.col_top[col1];
    mbar_wait(bar + H_EMPTY + 8 * (it & 1), ((it >> 1) & 1) ^ 1);
    write_header(hdr + HDR_WORDS, h);
    sts_u32(hdr + HDR_WORDS + WORD_TOP1, (u32)top1);
    const u32 hb = bar + H_FULL + 8 * (it & 1);
    mbar_expect(hb, HDR_BYTES);
    bulk_load(hdr + HDR_PROB, p.prob + (i64)row_block * ROWS, 4 * ROWS, hb);
    bulk_load(hdr + HDR_ROW, p.row_exp + (i64)row_block * ROWS, ROWS, hb);
    bulk_load(hdr + HDR_COL, p.col_exp + (i64)col0 * 128, 128, hb);
    bulk_load(hdr + HDR_COL + 128, p.col_exp + (i64)col1 * 128, 128, hb);
    const u8* sfa = (wide || SF_E4M3 ? p.sfa : p.fields) + (i64)row_block * atoms * 512;
    const u8* sfb = WEIGHT_LIST ? p.sfb_at[blk.expert] + (i64)nb * atoms * 512 : p.sfb + (i64)(first_col + nb) * atoms * 512;
    if (WEIGHT_LIST) map_b = listed_map(p, blk.expert, mapped);
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
    copy_c(map_c, sm, ring, nb0 * 128, row_block * ROWS);
  }
}

}  // namespace fg
