// fg_qat_fwd_sm90_pv: O = fake_nvfp4(P) V with P = exp(scale Q K^T - LSE) on wgmma: the second walk over the keys of the QAT forward, as
// qat/fwd/mma/quantized_pv.cu. Tiles, loads, masks and stores are those of the plain wgmma forward.
//
// grid: 1-D, up to ceil(S_q, TQ) * H_q * B CTAs: with fewer, each takes several tiles in turn. Block 128 * (1 + FG_MATH_GROUPS).
// Dynamic smem: fg_qat_fwd_sm90_pv_smem bytes. Defines and the ordered parameter list: README.md in this folder.
// Writes fully: O columns < d_v of the rows < S_q (zeros where LSE is -inf and past the length). Bitwise reproducible.
#include "qat/fwd/sm90/walk.cuh"

extern "C" __device__ const int fg_qat_fwd_sm90_pv_smem = fg::SMEM_BYTES;

namespace fg {

struct QuantisedOutput {
  u16* o;
  const float* lse;
  i64 o_sb, o_sh, o_ss, lse_sb, lse_sh, lse_ss;
  i32 s_q, d_v;

  FG_DEV void begin(Quantised& soft, const Place& at, const Work& w) const {
    const float* row = lse + ((i64)w.b * lse_sb + (i64)w.h * lse_sh);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      // -inf, a row without keys or past the length, stays -inf here: its exponents are then -inf and its P is 0 whatever the scores are.
      const float x = at.tok[h] < w.len_q ? __ldg(row + (i64)at.tok[h] * lse_ss) : neg_inf();
      soft.neg_lse[h] = x == neg_inf() ? x : -x * LOG2E;
    }
  }
  template <class Row> FG_DEV void finish(const Quantised&, const Place& at, const Work& w, u32, bool, Row&& row) const {
    u16* base = o + ((i64)w.b * o_sb + (i64)w.h * o_sh);
#pragma unroll
    for (int h = 0; h < 2; h++) row(h, RowStore{base + (i64)at.tok[h] * o_ss, at.tok[h] < s_q, 1.f, false});
  }
};

struct Dense {
  FG_DEV Origin of(i32) const { return {0, 0, 0}; }
};

}  // namespace fg

extern "C" __global__ void __launch_bounds__(fg::THREADS, 1) fg_qat_fwd_sm90_pv(
    const __grid_constant__ TensorMap tm_q, const __grid_constant__ TensorMap tm_k, const __grid_constant__ TensorMap tm_v, u16* o,
    const float* lse, const i32* seq_q, const i32* seq_kv, i64 o_sb, i64 o_sh, i64 o_ss, i64 lse_sb, i64 lse_sh, i64 lse_ss, i32 batch,
    i32 heads_q, i32 group, i32 s_q, i32 s_kv, i32 d_v, i32 window_left, i32 window_right, i32 bottom_right, i32 section, i32 longest_first,
    float scale) {
  using namespace fg;
  const Form form((longest_first & 1) << 4);  // no select: the loading warp's 24 registers would spill
  const Problem pr{batch, heads_q, group, s_q, s_kv, section, seq_q, seq_kv, bottom_right, window_left, window_right};
  Quantised soft;
  soft.scale = scale * LOG2E;
  forward(&tm_q, &tm_k, &tm_v, form, pr, Dense(), BiasArgs{}, soft, QuantisedOutput{o, lse, o_sb, o_sh, o_ss, lse_sb, lse_sh, lse_ss, s_q, d_v});
}
