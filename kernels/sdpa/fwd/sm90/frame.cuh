// The frame of the wgmma forward kernels: barriers, roles, and each role's walk over the CTA's tiles. `Soft`: math.cuh. `Out`: begin(soft, place, w) sets a
// row block's state, finish(soft, place, w, lane, first, row) calls row(h, RowStore) for both rows of a lane and writes what a row has once, by one caller of two, `first`;
// d_v.
#pragma once
#include "sdpa/fwd/sm90/math.cuh"
#include "sdpa/fwd/sm90/split.cuh"
#include "sdpa/fwd/sm90/store.cuh"

namespace fg {

FG_DEV void init_barriers(u32 smem) {
  const u32 readers = CLUSTER * (KEY_SPLIT ? 4 : 4 * GROUPS);  // warps that read a kv tile
  for (u32 g = 0; g < ROW_GROUPS; g++) {
    mbar_init(smem + BAR_Q_FULL + 8 * g, 1);
    mbar_init(smem + BAR_Q_FREE + 8 * g, KEY_SPLIT ? 4 * GROUPS : 4);
  }
  for (u32 s = 0; s < STAGES; s++) {
    mbar_init(smem + BAR_K_FULL + 8 * s, 1);
    mbar_init(smem + BAR_K_FREE + 8 * s, readers);
  }
  for (u32 s = 0; s < V_STAGES; s++) {
    mbar_init(smem + BAR_V_FULL + 8 * s, 1);
    mbar_init(smem + BAR_V_FREE + 8 * s, readers);
  }
  for (int s = 0; s < GROUPS * BIAS_STAGES; s++) {
    mbar_init(smem + BAR_B_FULL + 8 * s, 1);
    mbar_init(smem + BAR_B_FREE + 8 * s, 4);
  }
  mbar_init_fence();
}
// Packed rows may leave the end of a block of 64 idle. No load writes there, and what shared memory held must not choose a warp's path.
FG_DEV void clear_idle_rows(u32 smem, i32 rows) {
  if (rows == 64) return;
  for (u32 i = threadIdx.x; i < ROW_GROUPS * Q_BYTES / 16; i += THREADS) sts_v4(smem + OFF_Q + 16 * i, 0, 0, 0, 0);
  fence_async_smem();
}
template <int N> FG_DEV void zero(float (&x)[N]) {
#pragma unroll
  for (int j = 0; j < N; j++) x[j] = 0.f;
  pin(x);
}

// S of a row block's first tile alone, and its P.
template <class Soft> FG_DEV void start(Math<Soft>& m, const Work& w, i32 n, u32 (&p)[P_REGS]) {
  float s[S_REGS];
  typename Math<Soft>::Early b;
  m.wait_k();
  m.scores(s);
  wgmma_commit();
  m.load_bias(b, w, n);
  wgmma_wait<0>();
  m.taken(n, s);
  m.add_bias(b, s);
  if (m.is_edge(n)) {
    m.mask(w, n, s);
    m.clean_v(w, n);
  }
  m.soft.first(s, p);
}

// S of tile n and O of the one before it, which is this warpgroup's last but one or earlier.
template <class Soft> FG_DEV void step(Math<Soft>& m, const Work& w, i32 n, float (&o)[O_REGS], u32 (&p)[P_REGS], u32 (&p_new)[P_REGS]) {
  float s[S_REGS], alpha[2];
  typename Math<Soft>::Early b;
  m.wait_k();
  m.scores(s);
  wgmma_commit();
  m.wait_v();
  m.values(o, p);
  m.load_bias(b, w, n);
  wgmma_wait<1>();
  m.taken(n, s);
  m.add_bias(b, s);
  const bool edge = m.is_edge(n);
  if (edge) m.mask(w, n, s);
  const bool scale_o = (Soft::EDGES && edge) || !m.soft.lazy(s, p_new);
  if (scale_o) m.soft.exact(s, p_new, alpha);
  wgmma_wait<0>();
  pin(o);
  m.free_v();
  if (scale_o) m.scale(o, alpha);
  if (edge) m.clean_v(w, n);
}
// All tiles of a warpgroup but its first, whose P is in p, two a turn: P of one is read by the tensor core while P of the next is
// written, and ptxas takes a copy between the two for a write under way. Ends with O of the last one issued.
template <class Soft> FG_DEV void visible(Math<Soft>& m, const Work& w, i32 n, float (&o)[O_REGS], u32 (&p)[P_REGS], u32 (&p2)[P_REGS]) {
#pragma unroll 1
  while (true) {
    n -= STEP;
    if (n < m.keys.n_lo) {
      m.end_q();
      m.wait_v();
      m.values(o, p);
      break;
    }
    step(m, w, n, o, p, p2);
    n -= STEP;
    if (n < m.keys.n_lo) {
      m.end_q();
      m.wait_v();
      m.values(o, p2);
      break;
    }
    step(m, w, n, o, p2, p);
  }
}

// Under a row block's last product two warpgroups find out how O is stored. Three are bound by issue (2 % at d 64).
constexpr bool EARLY_END = GROUPS == 2;

// Each warpgroup has rows of its own.
template <class Soft, class Out> FG_DEV void walk_rows(Math<Soft>& m, const Form& form, const Problem& pr, const BiasArgs& ba, const Out& out) {
  Tiles tiles;
  Work w;
#pragma unroll 1
  while (tiles.next(form, pr, w)) {
    float o[O_REGS];
    u32 p[P_REGS], p2[P_REGS];
    m.enter(pr, w, ba);
    out.begin(m.soft, m.place(pr, w), w);
    zero(o);
    i32 rest = w.keys.n_hi - w.keys.n_lo;  // tiles at either end are only seen by other warpgroups
    if (rest > 0) m.wait_q();
    const bool sees = m.sees_keys();
    if (sees) {
      m.skip(w.keys.n_hi - m.keys.n_hi);
      start(m, w, m.keys.n_hi - 1, p);
      visible(m, w, m.keys.n_hi - 1, o, p, p2);
      if (!EARLY_END) {
        wgmma_wait<0>();
        pin(o);
        m.free_v();
      }
      rest = m.keys.n_lo - w.keys.n_lo;
    } else if (rest > 0) {
      m.free_q();
    }
    if constexpr (EARLY_END) {
      RowStore ends[2];
      out.finish(m.soft, m.place(pr, w), w, m.lane, true, [&](int h, const RowStore& e) { ends[h] = e; });
      wgmma_wait<0>();
      pin(o);
      if (sees) m.free_v();
      m.skip(rest);
#pragma unroll
      for (int h = 0; h < 2; h++) store_row(o, h, ends[h], m.lane & 3, 0, out.d_v);
    } else {
      m.skip(rest);
      out.finish(m.soft, m.place(pr, w), w, m.lane, true, [&](int h, const RowStore& e) { store_row(o, h, e, m.lane & 3, 0, out.d_v); });
    }
  }
}

// Both warpgroups have the CTA's rows and take its kv tiles in turn.
template <class Soft, class Out> FG_DEV void walk_keys(Math<Soft>& m, const Form& form, const Problem& pr, const BiasArgs& ba, const Out& out) {
  Tiles tiles;
  Work w;
#pragma unroll 1
  while (tiles.next(form, pr, w)) {
    float o[O_REGS], half[O_REGS / 2];
    u32 p[P_REGS], p2[P_REGS];
    m.enter(pr, w, ba);
    const Place place = m.place(pr, w);
    out.begin(m.soft, place, w);
    zero(o);
    const i32 count = w.keys.n_hi - w.keys.n_lo, n = w.keys.n_hi - 1 - (i32)m.group;
    if (count > 0) {
      const Ring<STAGES> k = m.k;
      const Ring<V_STAGES> v = m.v;
      m.k.skip(m.group);
      m.v.skip(m.group);
      m.wait_q();
      if (n >= w.keys.n_lo) {
        start(m, w, n, p);
        visible(m, w, n, o, p, p2);
        wgmma_wait<0>();
        pin(o);
        m.free_v();
      } else {
        m.free_q();
      }
      m.k = k;
      m.v = v;
      m.k.skip((u32)count);
      m.v.skip((u32)count);
      merge_halves(m.smem, m.group, o, m.soft.r, half);
    } else {
      zero(half);
    }
    RowStore ends[2];
    out.finish(m.soft, place, w, m.lane, m.group == 0, [&](int h, const RowStore& e) { ends[h] = e; });
#pragma unroll
    for (int h = 0; h < 2; h++) store_row(half, h, ends[h], m.lane & 3, (i32)m.group * (DV / 2), out.d_v);
  }
}

template <class Soft, class Out, class Tokens>
FG_DEV void forward(const TensorMap* tm_q, const TensorMap* tm_k, const TensorMap* tm_v, const Form& form, const Problem& pr, const Tokens& tokens,
                    const BiasArgs& bias, const Soft& soft, const Out& out) {
  extern __shared__ __align__(1024) u8 smem_raw[];
  const u32 smem = smem_addr(smem_raw), warp = uniform(threadIdx.x / 32), role = warp / 4, lane = lane_id();
  if (threadIdx.x == 0) {
    init_barriers(smem);
    tma_prefetch_map(tm_q);
    tma_prefetch_map(tm_k);
    tma_prefetch_map(tm_v);
    if (BIAS_TMA) tma_prefetch_map(bias.map);
  }
  if (PACK) clear_idle_rows(smem, pr.tokens() * pr.group);
  if constexpr (CLUSTER == 2)
    cluster_enter();
  else
    __syncthreads();
  if (role == 0) {
    regs_dec<LOAD_REGS>();
    if (warp > (BIAS_TMA ? GROUPS : 0) || lane != 0) {
      if constexpr (CLUSTER == 2) cluster_leave();
      return;
    }
    if (BIAS_TMA && warp != 0) {
      BiasLoader l{smem, warp - 1, bias};
      Tiles tiles;
      Work w;
#pragma unroll 1
      while (tiles.next(form, pr, w)) l.run(w);
      return;
    }
    Loader l{smem, form.thd, pr.tokens(), pr.group, tm_q, tm_k, tm_v};
    Tiles tiles;
    Work w;
#pragma unroll 1
    while (tiles.next(form, pr, w)) l.run(w, tokens.of(w.b));
    if constexpr (CLUSTER == 2) cluster_leave();
    return;
  }
  regs_inc<MATH_REGS>();
  Math<Soft> m(smem, role - 1, warp & 3, lane);
  m.soft = soft;
  if constexpr (KEY_SPLIT)
    walk_keys(m, form, pr, bias, out);
  else
    walk_rows(m, form, pr, bias, out);
  if constexpr (CLUSTER == 2) cluster_leave();
}

}  // namespace fg
