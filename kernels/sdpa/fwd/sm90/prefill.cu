// fg_sdpa_fwd_sm90: attention forward on wgmma. One warpgroup loads with TMA, FG_MATH_GROUPS warpgroups own 64 query rows each (FG_KEY_SPLIT: 64 together) and
// walk the kv tiles that the CTA's rows can see from the last to the first.
//
//   S = Q K^T;  m = reference of the row;  P = exp2(log2e (scale S + bias) - m);  O = P V / sum P;  Stats = m + ln sum P
//
// grid: 1-D, up to ceil(S_q, tokens of a CTA) * heads * B CTAs: with fewer, each takes several tiles in turn. Block 128 * (1 + FG_MATH_GROUPS).
// Dynamic smem: fg_sdpa_fwd_sm90_smem bytes. Defines and the ordered parameter list: README.md in this folder.
// Writes fully: O (columns < d_v), Stats, score max and sum of the rows < S_q (dense; zeros, -inf, -inf, 0 past a length) or < len_q (THD).
// A CTA's result does not depend on any other CTA, so runs are bitwise equal.
#include "sdpa/fwd/sm90/frame.cuh"

extern "C" __device__ const int fg_sdpa_fwd_sm90_smem = fg::SMEM_BYTES;

namespace fg {

// One fp32 value a row: Stats, score maximum, score sum. p may be null.
struct RowOut {
  float* p;
  const void* rag;
  i64 mul, sb, sh, ss;
  FG_DEV void put(const Form& form, const Work& w, i32 tok, i32 head, float x) const {
    if (p != nullptr) p[form.origin(rag, mul, w.b, sb) + (i64)head * sh + (i64)tok * ss] = x;
  }
};

struct Output {
  const Form& form;
  u16* o;
  const void* rag_o;
  i64 mul_o, o_sb, o_sh, o_ss;
  RowOut stats, max, sum;
  const float* sink;
  i32 s_q, d_v;

  FG_DEV void begin(Online& soft, const Place&, const Work&) const { soft.begin(); }
  template <class Row> FG_DEV void finish(const Online& soft, const Place& at, const Work& w, u32 lane, bool first, Row&& row) const {
    u16* base = o + form.origin(rag_o, mul_o, w.b, o_sb);
    const i32 end = form.thd ? w.len_q : s_q;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const i32 tok = at.tok[h], head = at.head[h];
      const bool past = tok >= w.len_q, live = at.row[h] && tok < end;
      const float m = soft.r.m[h], l = quad_sum(soft.r.l[h]);
      const RowEnd e = sink != nullptr ? finish_row<1>(m, l, __ldg(sink + head)) : finish_row<0>(m, l, 0.f);
      if (first && live && (lane & 3) == 0) {
        stats.put(form, w, tok, head, past ? neg_inf() : form.stats_log2 ? e.stats * LOG2E : e.stats);
        if (FG_MAX_SUM) {
          const bool none = past || m == neg_inf();
          max.put(form, w, tok, head, none ? neg_inf() : m * LN2);
          sum.put(form, w, tok, head, none ? 0.f : l);
        }
      }
      row(h, RowStore{base + ((i64)head * o_sh + (i64)tok * o_ss), live, e.mul, e.dead || past});
    }
  }
};

// Where packed sequences begin, in tokens, as tensor maps address them.
struct Tokens {
  const Form& form;
  const void *rag_q, *rag_k, *rag_v;
  i64 mul_q, mul_k, mul_v, q_ss, k_ss, v_ss;
  FG_DEV Origin of(i32 b) const { return {form.token(rag_q, mul_q, b, q_ss), form.token(rag_k, mul_k, b, k_ss), form.token(rag_v, mul_v, b, v_ss)}; }
};

}  // namespace fg

#if FG_CLUSTER == 2
#define FG_CLUSTER_DIMS __cluster_dims__(2, 1, 1)
#else
#define FG_CLUSTER_DIMS
#endif
extern "C" __global__ void FG_CLUSTER_DIMS __launch_bounds__(fg::THREADS, 1) fg_sdpa_fwd_sm90(
    const __grid_constant__ TensorMap tm_q, const __grid_constant__ TensorMap tm_k, const __grid_constant__ TensorMap tm_v, u16* o, float* stats,
    const float* sink, const i32* seq_q, const i32* seq_kv, const void* rag_q, const void* rag_k, const void* rag_v, const void* rag_o,
    const void* rag_stats, i64 mul_q, i64 mul_k, i64 mul_v, i64 mul_o, i64 mul_stats, i64 q_ss, i64 k_ss, i64 v_ss, i64 o_sb, i64 o_sh, i64 o_ss,
    i64 stats_sb, i64 stats_sh, i64 stats_ss, i32 batch, i32 heads_q, i32 group, i32 s_q, i32 s_kv, i32 d_v, i32 window_left, i32 window_right,
    i32 bottom_right, i32 section, i32 form_bits, float scale, const float* scale_at, const void* bias, i64 bias_sb, i64 bias_sh, i64 bias_sq,
    i64 bias_sk, float* score_max, float* score_sum, const void* rag_max, const void* rag_sum, i64 mul_max, i64 mul_sum, i64 max_sb, i64 max_sh,
    i64 max_ss, i64 sum_sb, i64 sum_sh, i64 sum_ss, const __grid_constant__ TensorMap tm_bias) {
  using namespace fg;
  const Form form(form_bits);
  const Problem pr{batch, heads_q, group, s_q, s_kv, section, seq_q, seq_kv, bottom_right, window_left, window_right};
  const Output out{form,
                   o,
                   rag_o,
                   mul_o,
                   o_sb,
                   o_sh,
                   o_ss,
                   {stats, rag_stats, mul_stats, stats_sb, stats_sh, stats_ss},
                   {score_max, rag_max, mul_max, max_sb, max_sh, max_ss},
                   {score_sum, rag_sum, mul_sum, sum_sb, sum_sh, sum_ss},
                   sink,
                   s_q,
                   d_v};
  const Tokens tokens{form, rag_q, rag_k, rag_v, mul_q, mul_k, mul_v, q_ss, k_ss, v_ss};
  Online soft;
  soft.scale = (FG_PRESCALE && scale_at != nullptr ? __ldg(scale_at) : scale) * (FG_BIAS ? 1.f : LOG2E);
  forward(&tm_q, &tm_k, &tm_v, form, pr, tokens, BiasArgs{&tm_bias, bias, bias_sb, bias_sh, bias_sq, bias_sk}, soft, out);
}
