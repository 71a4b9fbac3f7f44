// Where rows lie in dq_accum: the agreement of this folder's main and cvt_t.
#pragma once
#include "sdpa/bwd/mma/chain.cuh"

namespace fg {

// First row of (b, h). Packed sequences own whole tiles there: where tiles do not end on the 128-row blocks of `ws_row0`, blocks of a tile take their
// place. Starts are multiples of TQ at least len + 1 apart, so ceil(len, TQ) rows fit; ws_rows = ru(T + 128 B, 128) holds ru(T + TQ B, TQ).
template <int THD, int TQ> FG_DEV i64 dq_row0(i64 token0, i32 b, i32 h, i32 heads_q, i32 ws_rows) {
  if (THD && ROW_ROUND % TQ != 0) return (i64)h * ws_rows + (token0 + (i64)TQ * b) / TQ * TQ;
  return ws_row0<THD>(token0, b, h, heads_q, ws_rows);
}

}  // namespace fg
