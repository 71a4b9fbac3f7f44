// A math warpgroup: 64 query rows against the kv tiles that they see. S of tile n and O of the tile before it go to the tensor core together, the softmax of
// tile n runs under the latter and under the other warpgroups' products. Warpgroups are bound to each other by the rings only: making them take
// turns at issuing was measured and gains nothing.
//
// `Soft` turns scores into P: begin-of-rows state, first(s, p), next(s, p, edge, alpha) (true: O so far is to be multiplied with alpha), CLEAN_V:
// whether V may hold NaN where P is 0.
#pragma once
#include "sdpa/fwd/sm90/bias.cuh"
#include "sdpa/fwd/sm90/load.cuh"
#include "sdpa/fwd/sm90/softmax.cuh"

namespace fg {

// Rows g and g + 8 of a lane's warp: token, query head, whether they are rows at all.
struct Place {
  i32 tok[2], head[2];
  bool row[2];
};

template <class Soft> struct Math {
  u32 smem, loaders, group, rows, lane, warp;  // rows: which 64 of the CTA's; warp of the warpgroup; loaders: shared memory of the CTA that this lane tells of free buffers
  u32 desc_q, desc_k, desc_v;         // low words of the descriptors: the high word never changes
  Soft soft;
  // Q is free a softmax earlier where the warpgroups have instructions to spare: three of them are bound by issue (1.5 % at d 64).
  static constexpr bool EARLY_Q = GROUPS == 2;
  Ring<1> q;
  Ring<STAGES> k;
  Ring<V_STAGES> v;
  i32 at[2];  // token + diag of this lane's rows
  Span keys;  // of this warpgroup's rows
  BiasRows bias;
  Ring<BIAS_TMA ? BIAS_STAGES : 1> bias_ring;
  u32 bias_at;  // this lane's place in the first buffer

  FG_DEV Math(u32 smem, u32 group, u32 warp, u32 lane) : smem(smem), group(group), rows(KEY_SPLIT ? 0 : group), lane(lane), warp(warp) {
    if (BIAS_TMA) bias_at = smem + OFF_B + group * (BIAS_STAGES * BIAS_BYTES) + bias_lane(warp, lane);
    if constexpr (CLUSTER == 2) loaders = at_rank(smem, lane & 1);
    desc_q = (u32)wgmma_desc(smem + OFF_Q + rows * Q_BYTES, 16);
    desc_k = (u32)wgmma_desc(smem + OFF_K, 16);
    desc_v = (u32)wgmma_desc(smem + OFF_V, TK * 128);
  }

  FG_DEV bool elected() const { return lane == 0; }
  static FG_DEV u64 whole(u32 low) { return (u64)(64u | 1u << 30) << 32 | low; }

  FG_DEV Place place(const Problem& pr, const Work& w) const {
    Place p;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const i32 r = 16 * (i32)warp + (i32)(lane >> 2) + 8 * h;
      if (PACK) {
        const i32 tokens = pr.tokens(), t = r / pr.group;
        p.tok[h] = w.row0 + tokens * (i32)rows + t;
        p.head[h] = w.h + (r - t * pr.group);
        p.row[h] = t < tokens;
      } else {
        p.tok[h] = w.row0 + 64 * (i32)rows + r;
        p.head[h] = w.h;
        p.row[h] = true;
      }
    }
    return p;
  }
  FG_DEV Span span(const Problem& pr, const Work& w) const {
    const i32 tokens = pr.tokens();
    return make_span(w.band, w.row0 + tokens * (i32)rows, tokens, w.len_q, w.len_kv);
  }
  // What of a row block its tiles need to know.
  FG_DEV void enter(const Problem& pr, const Work& w, const BiasArgs& ba) {
    const Place p = place(pr, w);
#pragma unroll
    for (int h = 0; h < 2; h++) at[h] = p.tok[h] + w.band.diag;
    keys = span(pr, w);
    bias.enter(ba, w, p.tok, p.head, p.row);
  }
  FG_DEV bool sees_keys() const { return keys.n_hi > keys.n_lo; }

  // S = Q K^T, one group of products.
  FG_DEV void scores(float (&s)[S_REGS]) const {
    u32 qd = desc_q;
    opaque(qd);  // a dozen descriptors hoisted out of the loop cost spilled uniform registers from d 192 on
    const u32 kd = desc_k + k.at * (K_BYTES / 16);
    pin(s);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < DQK / 16; i++)
      Wgmma<BF16, TK>::ss(s, whole(qd + (i / 4) * (64 * 8) + (i % 4) * 2), whole(kd + (i / 4) * (TK * 8) + (i % 4) * 2), i != 0);
  }
  // O += P V, one committed group.
  FG_DEV void values(float (&o)[O_REGS], u32 (&p)[P_REGS]) const {
    const u32 vd = desc_v + v.at * (V_BYTES / 16);
    pin(o);
    pin(p);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < TK / 16; i++) Wgmma<BF16, DV, 1>::rs(o, p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3], whole(vd + i * 128), 1);
    wgmma_commit();
  }
  FG_DEV void wait_q() const { mbar_wait(smem + BAR_Q_FULL + 8 * rows, q.parity); }
  FG_DEV void wait_k() const { mbar_wait(smem + BAR_K_FULL + 8 * k.at, k.parity); }
  FG_DEV void wait_v() const { mbar_wait(smem + BAR_V_FULL + 8 * v.at, v.parity); }
  FG_DEV void free_q() {
    if (elected()) mbar_arrive(smem + BAR_Q_FREE + 8 * rows);
    q.next();
  }
  // Behind the last S of a row block, unless that freed Q itself.
  FG_DEV void end_q() {
    if (!EARLY_Q) free_q();
  }
  // Lane r tells the loader of the cluster's CTA of rank r.
  FG_DEV void free_buffer(u32 bar) const {
    if constexpr (CLUSTER == 2) {
      if (lane < 2) arrive_remote(loaders + bar);
    } else {
      if (elected()) mbar_arrive(smem + bar);
    }
  }
  FG_DEV void free_k() {
    free_buffer(BAR_K_FREE + 8 * k.at);
#pragma unroll
    for (int i = 0; i < STEP; i++) k.next();
  }
  FG_DEV void free_v() {
    free_buffer(BAR_V_FREE + 8 * v.at);
#pragma unroll
    for (int i = 0; i < STEP; i++) v.next();
  }
  // Tiles that only other warpgroups see. Their arrival is waited for, so that each phase of a barrier has one arrival a warp.
  FG_DEV void skip(i32 n) {
#pragma unroll 1
    for (; n > 0; n--) wait_k(), free_k(), wait_v(), free_v();
  }
  FG_DEV void skip_k(i32 n) {
#pragma unroll 1
    for (; n > 0; n--) wait_k(), free_k();
  }
  FG_DEV void skip_v(i32 n) {
#pragma unroll 1
    for (; n > 0; n--) wait_v(), free_v();
  }
  // Rows of V that no row of the CTA keeps: P is 0 there, but 0 times a caller's NaN is not. Every warpgroup writes the zeros itself before it reads.
  FG_DEV void clean_v(const Work& w, i32 n) const {
    if (!Soft::CLEAN_V) return;
    const i32 below = w.keys.k_lo - n * TK, above = w.keys.k_hi - n * TK;
    if (below <= 0 && above >= TK) return;
    wait_v();
    const u32 tile = smem + OFF_V + v.at * V_BYTES, unit = threadIdx.x % 8 * 16;
#pragma unroll 1
    for (i32 row = (i32)(threadIdx.x % 128 / 8); row < TK; row += 16)
      if (row < below || row >= above)
#pragma unroll
        for (int c = 0; c < DV / CH; c++) sts_v4(tile + c * (TK * 128) + row * 128 + unit, 0, 0, 0, 0);
    fence_async_smem();
    bar_sync_at<128>(NB_OWN + group);
  }

  FG_DEV bool is_edge(i32 n) const { return n >= keys.full_hi || (FG_WINDOW && n < keys.full_lo); }

  // S of tile n is there: K and, behind the last tile, Q are free.
  FG_DEV void taken(i32 n, float (&s)[S_REGS]) {
    pin(s);
    free_k();
    if (EARLY_Q && n - STEP < keys.n_lo) free_q();
  }
  // The buffer of a bias tile is free when every lane has what it read, which is later than its loads were issued: they wait behind what a product reads, and TMA
  // then writes under them. `seen` depends on all of them, and the arrival on all lanes' `seen`, whatever it is.
  FG_DEV void free_bias(u32 seen) {
    const u32 who = __any_sync(0xffffffffu, seen == 0) ? 1 : 0;
    if (lane == who) mbar_arrive(smem + BAR_B_FREE + 8 * (group * BIAS_STAGES + bias_ring.at));
    bias_ring.next();
  }
  FG_DEV void wait_bias() const { mbar_wait(smem + BAR_B_FULL + 8 * (group * BIAS_STAGES + bias_ring.at), bias_ring.parity); }
  FG_DEV u32 bias_tile() const { return bias_at + bias_ring.at * BIAS_BYTES; }
  // What of the bias is read while S is computed.
  struct Early {
    BiasTile direct;
    u32 words[BIAS_EARLY ? P_REGS : 1];
  };
  FG_DEV void load_bias(Early& b, const Work& w, i32 n) {
    if constexpr (BIAS_EARLY) {
      wait_bias();
      free_bias(read_bias(b.words, bias_tile()));
    } else {
      b.direct.load(bias, w, n, lane);
    }
  }
  // Scores are scaled and get their bias, where something has to be done with them before masks at all.
  FG_DEV void add_bias(const Early& b, float (&s)[S_REGS]) {
    const float scale = soft.pre();
    if constexpr (BIAS_EARLY) {
      add_words(s, b.words, scale);
    } else if constexpr (BIAS_TMA && BIAS_ITEM == 2) {
      u32 words[P_REGS];
      wait_bias();
      const u32 seen = read_bias(words, bias_tile());
      add_words(s, words, scale);
      free_bias(seen);
    } else if constexpr (BIAS_TMA) {
      wait_bias();
      free_bias(add_floats(s, bias_tile(), scale));
    } else {
      b.direct.apply(s, scale);
    }
  }
  FG_DEV void mask(const Work& w, i32 n, float (&s)[S_REGS]) const { mask_scores(s, at, w.band, w.len_kv, n * TK + 2 * (i32)(lane & 3)); }
  static FG_DEV void scale(float (&o)[O_REGS], const float (&alpha)[2]) {
#pragma unroll
    for (int j = 0; j < O_REGS; j++) o[j] *= alpha[j / 2 % 2];
  }
};

}  // namespace fg
