// Geometry that every kernel of the backward chain must agree on: row rounding, the dq_accum layout, where a batch's rows
// start (dense, padded, THD), and which (q tile, kv tile) pairs the masks leave alive. One definition, used by all of them.
#pragma once
#include "common/ptx.cuh"

namespace fg {

constexpr i32 ROW_ROUND = 128;   // delta and dq_accum rows, dS columns are padded to this
constexpr i32 BAND_MAX = 1 << 29;  // window bounds are clamped here so that q + diag + band never leaves int32 (S < 2^29)
constexpr float LOG2E = 1.44269504088896340736f;

// ---- dq_accum: fragment order -----------------------------------------------------------------------------------------
// A 16x8 tile of dQ is 128 consecutive floats; inside it lane l = 4*g + t of an mma accumulator owns four consecutive ones:
// (row g, col 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1). A warp therefore adds one tile with one red.v4 over 512 contiguous bytes.
// Tiles run along the head dim first, so 16 rows x d_pad are contiguous and the q tile size does not appear in the layout.
template <int D_PAD> FG_DEV constexpr i32 dq_tile_offset(i32 row16, i32 col8) { return (row16 * (D_PAD / 8) + col8) * 128; }
FG_DEV constexpr i32 dq_in_tile(i32 row, i32 col) { return ((row & 7) * 4 + (col >> 1)) * 4 + (row >> 3) * 2 + (col & 1); }

// ---- lengths and origins ----------------------------------------------------------------------------------------------
// Lengths come from the device and are clamped to the planned extent: a wrong length may give wrong numbers, never a wrong address.
FG_DEV i32 seq_len(const i32* lens, i32 b, i32 s_max) {
  if (lens == nullptr) return s_max;
  return max2(0, min2(__ldg(lens + b), s_max));
}
// Element offset of sequence b on a ragged port.
template <int I64> FG_DEV i64 ragged_offset(const void* offs, i32 b, i64 multiplier) {
  i64 v = I64 ? __ldg((const i64*)offs + b) : (i64)__ldg((const i32*)offs + b);
  return v * multiplier;
}
// First row of (b, h) in the chain's own row-blocked workspaces (delta, dq_accum).
// Dense: ws_rows = ru(S_q, 128) rows for each (b, h).
// THD: ws_rows rows for each head, shared by all sequences. Sequence b starts at ru_down(token0 + 128 b, 128), which leaves every
// sequence its own 128-row blocks as long as token origins do not overlap; ws_rows = ru(total_tokens + 128 B, 128), linear in tokens.
template <int THD> FG_DEV i64 ws_row0(i64 token0, i32 b, i32 h, i32 heads_q, i32 ws_rows) {
  if (THD) return (i64)h * ws_rows + ((token0 + (i64)ROW_ROUND * b) & ~(i64)(ROW_ROUND - 1));
  return ((i64)b * heads_q + h) * ws_rows;
}

// ---- masks ------------------------------------------------------------------------------------------------------------
// Key k of query q is kept iff  q + diag - W <= k <= q + diag + R,  k < len_kv,  q < len_q.
// diag = 0 (top left) or len_kv - len_q (bottom right), with the batch's actual lengths.
struct Band {
  i32 diag, left, right;  // left = W, right = R, both clamped to +-BAND_MAX
};
FG_DEV Band make_band(i32 bottom_right, i32 len_q, i32 len_kv, i32 w, i32 r) {
  return {bottom_right ? len_kv - len_q : 0, max2(-BAND_MAX, min2(w, BAND_MAX)), max2(-BAND_MAX, min2(r, BAND_MAX))};
}
// First query row that keeps any key >= kv0.
template <int CAUSAL> FG_DEV i32 q_first(const Band& m, i32 kv0) { return CAUSAL ? max2(0, kv0 - m.diag - m.right) : 0; }
// One past the last query row that keeps any key <= kv_last.
template <int WINDOW> FG_DEV i32 q_end(const Band& m, i32 kv_last, i32 len_q) {
  return WINDOW ? max2(0, min2(len_q, kv_last - m.diag + m.left + 1)) : len_q;
}
// Mirror of the two above, seen from a q tile starting at row q0: first kv tile whose CTA visits it. It must stay the exact inverse,
// because the relay counts turns from it and dq2k reads dS only where the main kernel stored it.
template <int WINDOW, int KV_TILE> FG_DEV i32 kv_tile_first(const Band& m, i32 q0) {
  return WINDOW ? max2(0, q0 + m.diag - m.left) / KV_TILE : 0;
}
// One past the last kv tile whose CTA visits the q tile that ends before row q1 (q1 = q0 + tile, not clipped to the length).
template <int CAUSAL, int KV_TILE> FG_DEV i32 kv_tile_end(const Band& m, i32 q1, i32 len_kv) {
  i32 k = CAUSAL ? min2(len_kv, q1 + m.diag + m.right) : len_kv;
  return k <= 0 ? 0 : (k + KV_TILE - 1) / KV_TILE;
}

// No key reaches back to the window of any row of a q tile that starts at row q0: no CTA visits it.
template <int WINDOW> FG_DEV bool q_tile_dead(const Band& m, i32 q0, i32 len_kv) { return WINDOW && q0 + m.diag - m.left >= len_kv; }

}  // namespace fg
