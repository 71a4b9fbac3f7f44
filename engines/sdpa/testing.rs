//! Facts for tests, built from a short description the way the analyzer builds them.
#![allow(missing_docs, reason = "compiled for tests only")]

use super::layout::{aligned_16_ok, bshd_layout_ok, dense_layout_ok, packed_layout_ok};
use super::{thd_stats_packing, Direction, Mask, Recipe, Scale, SdpaFacts, SdpaPorts};
use crate::{DType, Facts, Feature, FeatureSet, Port, Ragged};

/// Axis order in memory, outermost first; the head dim is innermost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Bshd,
    Bhsd,
    Sbhd,
}

/// A description of one attention node.
#[derive(Debug, Clone)]
pub struct Case {
    pub direction: Direction,
    pub recipe: Recipe,
    pub b: i64,
    pub h_q: i64,
    pub h_kv: i64,
    pub s_q: i64,
    pub s_kv: i64,
    pub d_qk: i64,
    pub d_v: i64,
    pub dtype: DType,
    pub order: Order,
    pub left: Option<i64>,
    pub right: Option<i64>,
    pub bottom_right: bool,
    pub padded: bool,
    /// Packed, with this width of offsets.
    pub thd: Option<DType>,
    /// Packed Stats as (T, H) rather than (H, T).
    pub token_major_stats: bool,
    pub totals: Option<(i64, i64)>,
    /// Element type and batch extent of the bias.
    pub bias: Option<(DType, i64)>,
    pub dbias: Option<DType>,
    pub sink: bool,
    pub dsink: bool,
    pub deterministic: bool,
    pub scale: f32,
    pub stats: bool,
    pub stats_log2: bool,
    /// Elements between rows of Stats beyond the packed ones.
    pub stats_gap: i64,
    pub paged: bool,
    pub dropout: bool,
    pub alibi: bool,
}

impl Default for Case {
    fn default() -> Case {
        Case {
            direction: Direction::Backward,
            recipe: Recipe::Plain,
            b: 2,
            h_q: 8,
            h_kv: 8,
            s_q: 200,
            s_kv: 300,
            d_qk: 128,
            d_v: 128,
            dtype: DType::BF16,
            order: Order::Bshd,
            left: None,
            right: None,
            bottom_right: false,
            padded: false,
            thd: None,
            token_major_stats: false,
            totals: None,
            bias: None,
            dbias: None,
            sink: false,
            dsink: false,
            deterministic: false,
            scale: 0.125,
            stats: true,
            stats_log2: false,
            stats_gap: 0,
            paged: false,
            dropout: false,
            alibi: false,
        }
    }
}

fn strides(order: Order, [b, h, s, d]: [i64; 4]) -> [i64; 4] {
    match order {
        Order::Bshd => [s * h * d, d, h * d, 1],
        Order::Bhsd => [h * s * d, s * d, d, 1],
        Order::Sbhd => [h * d, d, b * h * d, 1],
    }
}

/// A row-major port.
pub fn port(uid: i64, name: &str, dim: [i64; 4], dtype: DType) -> Port {
    let stride = [dim[1] * dim[2] * dim[3], dim[2] * dim[3], dim[3], 1];
    Port { uid, name: name.into(), dim, stride, dtype, alignment: 16, is_virtual: false, ragged: None }
}

impl Case {
    fn operand(&self, uid: i64, name: &str, dim: [i64; 4], offsets: i64) -> Option<Port> {
        let mut p = port(uid, name, dim, self.dtype);
        p.stride = strides(self.order, dim);
        p.ragged = self.thd.map(|dtype| Ragged { uid: offsets, dtype, multiplier: dim[1] * dim[3] });
        Some(p)
    }

    /// The facts.
    pub fn facts(&self) -> Facts {
        Facts::Sdpa(Box::new(self.sdpa()))
    }

    /// The facts, unwrapped, for tests that bend one of them.
    pub fn sdpa(&self) -> SdpaFacts {
        let backward = self.direction == Direction::Backward;
        let q = [self.b, self.h_q, self.s_q, self.d_qk];
        let (k, v) = ([self.b, self.h_kv, self.s_kv, self.d_qk], [self.b, self.h_kv, self.s_kv, self.d_v]);
        let o = [self.b, self.h_q, self.s_q, self.d_v];
        let mut ports = SdpaPorts {
            q: self.operand(1, "Q", q, 31),
            k: self.operand(2, "K", k, 32),
            v: self.operand(3, "V", v, 33),
            o: self.operand(4, "O", o, 34),
            ..SdpaPorts::default()
        };
        if !backward && self.recipe == Recipe::Nvfp4Qat {
            ports.high_precision_o = self.operand(16, "high-precision O", o, 34);
        }
        if backward {
            ports.d_o = self.operand(5, "dO", o, 34);
            ports.dq = self.operand(6, "dQ", q, 31);
            ports.dk = self.operand(7, "dK", k, 32);
            ports.dv = self.operand(8, "dV", v, 33);
        }
        if backward || self.stats {
            let mut s = port(9, "Stats", [self.b, self.h_q, self.s_q, 1], DType::F32);
            if let Some(dtype) = self.thd {
                s.ragged = Some(Ragged { uid: 35, dtype, multiplier: if self.token_major_stats { self.h_q } else { 1 } });
                s.stride = if self.token_major_stats {
                    [self.s_q * self.h_q, 1, self.h_q, 1]
                } else {
                    [self.s_q, self.b * self.s_q, 1, 1]
                };
            } else if self.stats_gap > 0 {
                let row = self.s_q + self.stats_gap;
                s.stride = [self.h_q * row, row, 1, 1];
            }
            ports.stats = Some(s);
        }
        ports.bias = self.bias.map(|(dtype, b)| port(10, "bias", [b, self.h_q, self.s_q, self.s_kv], dtype));
        ports.dbias =
            self.dbias.map(|dtype| port(11, "dBias", [self.bias.map_or(1, |b| b.1), self.h_q, self.s_q, self.s_kv], dtype));
        ports.sink = self.sink.then(|| port(12, "sink", [1, self.h_q, 1, 1], DType::F32));
        ports.dsink = self.dsink.then(|| port(13, "dSink", [1, self.h_q, 1, 1], DType::F32));
        let lengths = self.padded || self.thd.is_some();
        ports.seq_len_q = lengths.then(|| port(14, "SEQ_LEN_Q", [self.b, 1, 1, 1], DType::I32));
        ports.seq_len_kv = lengths.then(|| port(15, "SEQ_LEN_KV", [self.b, 1, 1, 1], DType::I32));
        let all: Vec<Port> = ports.operands(self.direction).map(|(_, p, _)| p.clone()).collect();
        let bounded = self.left.is_some() || self.right.is_some();
        SdpaFacts {
            direction: self.direction,
            recipe: self.recipe,
            invalid: None,
            b: self.b,
            h_q: self.h_q,
            h_kv: self.h_kv,
            s_q: self.s_q,
            s_kv: self.s_kv,
            d_qk: self.d_qk,
            d_v: self.d_v,
            page_size: None,
            dtype: self.dtype,
            uniform_dtype: true,
            dtype_o: self.dtype,
            bshd_layout: all.iter().all(bshd_layout_ok),
            packed_layout: all.iter().all(packed_layout_ok),
            dense_layout: all.iter().all(dense_layout_ok),
            aligned_16: all.iter().all(aligned_16_ok),
            mask: Mask { left: self.left, right: self.right, bottom_right: self.bottom_right && bounded },
            scale: Scale::Static(self.scale),
            features: self.features(bounded),
            wants_stats: backward || self.stats,
            stats_packing: ports
                .stats
                .as_ref()
                .filter(|p| p.ragged.is_some())
                .and_then(|p| thd_stats_packing(p.stride[1], p.stride[2], self.h_q)),
            max_total_seq_len_q: self.totals.map(|t| t.0),
            max_total_seq_len_kv: self.totals.map(|t| t.1),
            ports,
        }
    }

    fn features(&self, bounded: bool) -> FeatureSet {
        let thd = self.thd.is_some();
        let mut f = FeatureSet::EMPTY;
        f.set_if(Feature::Deterministic, self.deterministic);
        f.set_if(Feature::DBias, self.dbias.is_some());
        f.set_if(Feature::DSink, self.dsink);
        f.set_if(Feature::Bias, self.bias.is_some());
        f.set_if(Feature::BroadcastBias, self.b > 1 && self.bias.is_some_and(|b| b.1 == 1));
        f.set_if(Feature::Dropout, self.dropout);
        f.set_if(Feature::PagedKv, self.paged);
        f.set_if(Feature::Alibi, self.alibi);
        f.set_if(Feature::ZeroScale, self.scale == 0.0);
        f.set_if(Feature::StatsLog2, self.stats_log2);
        f.set_if(Feature::Causal, self.right == Some(0));
        f.set_if(Feature::RightBand, self.right.is_some_and(|r| r > 0));
        f.set_if(Feature::BottomRight, self.bottom_right && bounded);
        f.set_if(Feature::Window, self.left.is_some());
        f.set_if(Feature::Padding, self.padded && !thd);
        f.set_if(Feature::Sink, self.sink);
        f.set_if(Feature::Stats, self.direction == Direction::Forward && self.stats);
        f.set_if(Feature::Thd, thd);
        f.set_if(Feature::StridedStats, self.stats_gap > 0 && !thd);
        f.set_if(Feature::Gqa, self.h_q != self.h_kv);
        f.set_if(Feature::Decode, self.s_q == 1);
        f.set_if(Feature::UnequalHeadDims, self.d_qk != self.d_v);
        f
    }
}

/// A small fixed generator, so that a failing case is the same everywhere.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Uniform below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 33) as usize) % n
    }
}
