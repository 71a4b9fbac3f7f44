// The wgmma kernel's side of the epilogue: C from the ring of raw stages, factors from the exponents, then the shared epilogue.
#pragma once
#include "grouped_gemm/epilogue/columns.cuh"
#include "grouped_gemm/epilogue/rows.cuh"
#include "grouped_gemm/epilogue/srelu.cuh"
#include "grouped_gemm/sm90/math.cuh"

namespace fg {

// Rows of a tile for the shared epilogue.
struct TileRows {
  const i32 (&most)[4];  // exponents of the rows
  i32 wide, top;
  float alpha;
  u32 alpha_at, c_base, c_unit, c_xor, probs;
  // D_srelu and D both activate G: with factors that ptxas knows to be equal it keeps the activations of all rows from one to the other (700 bytes of spills).
  FG_DEV float factor(int r) const {
    float a = alpha;
    if (FG_SRELU) asm volatile("{\n\t.reg .f32 t;\n\tld.volatile.shared.f32 t, [%1];\n\tabs.f32 %0, t;\n\t}" : "=f"(a) : "r"(alpha_at));
    return (wide ? 1.f : power_back(most[r], top)) * a;
  }
  FG_DEV float prob(int r) const { return lds_f32(probs + 32 * r); }
  FG_DEV void c(int r, int unit, u32 (&w)[4]) const {
    const u32 at = c_base + 1024 * r + (((c_unit + unit) ^ c_xor) << 4);
    if (FG_SRELU)
      asm volatile("ld.volatile.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(at));
    else
      lds_v4(at, w[0], w[1], w[2], w[3]);
  }
};

// `most`: the rows' exponents; `warp` of warpgroup `c`. `place` stands at the first slot of C.
FG_DEV void epilogue(float (&d0)[64], float (&d1)[64], const Outputs& p, const Header& h, const Out& o, u32 c, u32 warp, u32 hdr, const i32 (&most)[4], const MathLane& l, Place& place) {
  float alpha = h.alpha;
  if (alpha < 0.f) {
    alpha = -alpha;
#pragma unroll
    for (int i = 0; i < 64; i++) {
      d0[i] = -d0[i];
      d1[i] = -d1[i];
    }
  }
  // This thread's 32 columns of a row of C: in one box, from unit c_unit on.
  const u32 bytes = 32 * width(C_TYPE) * o.t, box = bytes / 128, c_unit = bytes % 128 / 16, bar = l.sm + AT_BAR;
  // The other warpgroup's slots pass by in ring order. Together they may exceed the ring, so warpgroup 0 first frees its own.
  if (c) pass_c<C_SLOTS>(l.sm, place.raw, l.lane);
  const u32 mine = place.raw.slot();
  u32 c_base = 0;
#pragma unroll
  for (u32 i = 0; i < C_SLOTS; i++) {
    mbar_wait(bar + FULL + 8 * place.raw.slot(), place.raw.parity());
    if (i == box / C_PER_SLOT) c_base = l.sm + place.raw.slot() * STAGE + box % C_PER_SLOT * C_BOX + (32 * warp + o.g) * 128;
    place.raw.next();
  }
  const TileRows rows{most, h.wide, h.top, alpha, hdr + HDR_WORDS + 24, c_base, c_unit, o.g, hdr + HDR_PROB + 4 * (128 * c + 32 * warp + o.g)};
  float peak = 0.f;
  if constexpr (FG_SRELU) do_srelu(d0, d1, rows, p, o);
  do_rows(d0, d1, rows, p, o, peak);
  // dprob needed every value of C, and the store of it stands in a basic block of its own: the loads of C are complete here.
  __syncwarp();
  if (l.lane == 0)
#pragma unroll
    for (u32 i = 0; i < C_SLOTS; i++) mbar_arrive(bar + EMPTY + 8 * ((mine + i) % STAGES));
  if (!c) pass_c<C_SLOTS>(l.sm, place.raw, l.lane);
  do_columns(d0, d1, p, o, peak);
}

}  // namespace fg
