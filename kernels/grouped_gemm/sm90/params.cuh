// What main is given, the order of its tiles, and small things its roles share.
#pragma once
#include "grouped_gemm/epilogue/config.cuh"
#include "grouped_gemm/sm90/dequant.cuh"
#include "grouped_gemm/sm90/expert_map.cuh"
#include "grouped_gemm/sm90/ring.cuh"

namespace fg {

struct Params {
  const u8 *sfa, *sfb, *fields;           // scales as given; A's normalised multipliers
  const TensorMap* maps;                  // FG_LIST: a map of B for each expert,
  const u8* const* sfb_at;                // and where its scales are
  const u8 *row_exp, *col_exp;            // largest scale of each row, column
  const i32 *col_top;                     // largest scale of 128 columns
  const i32 *row_flag, *col_flag, *head;  // wide-loop flags per 128 rows / columns
  const Block* table;
  const float *alpha, *prob;
  i32 n, k;
  Outputs out;
};

// Which bytes of a row's scale words are scales in the last step of k.
struct Tail {
  u32 word[SF_WORDS];
};
FG_DEV Tail tail_of(i32 k) {
  const i32 left = ceil_div(k, SF_VEC) - 4 * SF_WORDS * (ceil_div(k, 128) - 1);
  Tail t;
#pragma unroll
  for (int w = 0; w < SF_WORDS; w++) t.word[w] = left >= 4 * w + 4 ? ~0u : left <= 4 * w ? 0u : (1u << (8 * (left - 4 * w))) - 1u;
#pragma unroll
  for (int w = 0; w < SF_WORDS; w++) opaque(t.word[w]);  // kept, not made again in every step
  return t;
}

// Tiles run in bands of 8 row blocks, row block fastest: the CTAs at work share about as many rows of A as columns of B.
constexpr i32 BAND = 8;
FG_DEV void locate(i32 tile, i32 blocks, i32 n_tiles, i32& mb, i32& nb) {
  const i32 band = tile / (BAND * n_tiles), in = tile - band * BAND * n_tiles, high = min2(BAND, blocks - band * BAND);
  nb = in / high;
  mb = band * BAND + in - nb * high;
}

FG_DEV u32 lds_u32(u32 a) {
  u32 v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(a));
  return v;
}
FG_DEV u32 lds_u8(u32 a) {
  u32 v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(a));
  return v;
}
FG_DEV void sts_u32(u32 a, u32 v) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(a), "r"(v) : "memory"); }
FG_DEV void tma_load_2d(u32 dst, const TensorMap* m, u32 bar, i32 c0, i32 c1) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(dst), "l"(m), "r"(bar), "r"(c0), "r"(c1) : "memory");
}

// The words of a tile's header, from HDR_WORDS on.
struct Header {
  i32 mb, nb, expert, first, count, wide;
  float alpha;
  i32 top;
};
constexpr u32 WORD_WIDE = 20, WORD_TOP = 28;
// The cluster form's: the top of the second 128 columns, and the parts that have arrived, by warpgroup.
constexpr u32 WORD_TOP1 = 32, WORD_ARRIVED = 40;
FG_DEV void write_header(u32 at, const Header& h) {
  sts_u32(at, (u32)h.mb);
  sts_u32(at + 4, (u32)h.nb);
  sts_u32(at + 8, (u32)h.expert);
  sts_u32(at + 12, (u32)h.first);
  sts_u32(at + 16, (u32)h.count);
  sts_u32(at + WORD_WIDE, (u32)h.wide);
  sts_f32(at + 24, h.alpha);
  sts_u32(at + WORD_TOP, (u32)h.top);
}
FG_DEV Header read_header(u32 at, i32 wide) {
  Header h;
  h.mb = (i32)lds_u32(at);
  h.nb = (i32)lds_u32(at + 4);
  h.expert = (i32)lds_u32(at + 8);
  h.first = (i32)lds_u32(at + 12);
  h.count = (i32)lds_u32(at + 16);
  h.wide = wide;
  h.top = (i32)lds_u32(at + WORD_TOP);
  h.alpha = lds_f32(at + 24);
  return h;
}

// FG_LIST: an expert's map of B, acquired when the expert changes; `mapped`: whose was acquired last.
FG_DEV const TensorMap* listed_map(const Params& p, i32 expert, i32& mapped) {
  const TensorMap* m = p.maps + expert;
  if (expert != mapped) acquire_map(m);
  mapped = expert;
  return m;
}

}  // namespace fg
