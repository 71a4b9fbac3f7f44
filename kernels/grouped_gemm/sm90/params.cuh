// What main is given, the order of its tiles, and small things its roles share.
#pragma once
#include "grouped_gemm/epilogue/config.cuh"
#include "grouped_gemm/sm90/dequant.cuh"

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

struct Header {
  i32 mb, nb, expert, first, count, wide, top;
  float alpha;
};
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

}  // namespace fg
