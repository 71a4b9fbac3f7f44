//! Builds attention nodes with buffers, runs the CPU engines on them and compares with the f64 oracle.
//!
//! Buffers are laid out and read back by code of this module alone, so that a fault in the engines' element access shows.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use frostgraph_engines::qat::oracle as qat;
use frostgraph_engines::sdpa::oracle::{OracleBackward, OracleForward, Problem};
use frostgraph_engines::sdpa::{Direction, Lengths, Mask, Recipe, Scale, SdpaFacts, SdpaPorts};
use frostgraph_engines::{
    DType, Facts, Feature, FeatureSet, HostBuffers, HostError, Knobs, LaunchPlan, Port, Ragged, Target, Uid,
};
use half::{bf16, f16};
use std::collections::BTreeMap;

/// Order of the axes in memory, outermost first, and padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    Bhsd,
    Bshd,
    Sbhd,
    /// BSHD with 3 spare elements after every head and 5 after every row.
    Padded,
    /// BHSD with every second element of the head dim used.
    SpreadD,
    /// Head dim outside the sequence: BHDS.
    Bhds,
}

/// How packed operands are declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packed {
    /// Offsets are i64.
    pub wide: bool,
    /// Offsets count tokens and the multiplier is the token stride; otherwise they count elements.
    pub multiplier: bool,
    /// Stats are (H, T) instead of (T, H).
    pub head_major: bool,
    /// Unused token slots after each sequence.
    pub slack: i64,
}

pub const PACKED: Packed = Packed { wide: false, multiplier: true, head_major: false, slack: 0 };

/// One attention problem and how it is declared.
#[derive(Debug, Clone)]
pub struct Spec {
    pub b: usize,
    pub hq: usize,
    pub hkv: usize,
    pub sq: usize,
    pub skv: usize,
    pub dqk: usize,
    pub dv: usize,
    pub dtype: DType,
    pub mask: Mask,
    pub scale: f32,
    pub dynamic_scale: bool,
    pub lens: Option<(Vec<i32>, Vec<i32>)>,
    /// Lengths are declared as prefix sums.
    pub cu: bool,
    pub packed: Option<Packed>,
    /// Rows of a K/V page.
    pub page: Option<usize>,
    /// (batch extent, head extent, type).
    pub bias: Option<(usize, usize, DType)>,
    pub sink: Option<Vec<f32>>,
    pub layout: Layout,
    pub out_layout: Layout,
    pub stats_layout: Layout,
    pub log2: bool,
    /// Element type of O when it is not `dtype`.
    pub o_dtype: Option<DType>,
    /// Magnitude of Q and K values.
    pub size: f64,
    pub recipe: Recipe,
    pub seed: u64,
}

impl Spec {
    pub fn new(b: usize, hq: usize, hkv: usize, sq: usize, skv: usize, d: usize) -> Spec {
        Spec {
            b,
            hq,
            hkv,
            sq,
            skv,
            dqk: d,
            dv: d,
            dtype: DType::F32,
            mask: Mask::default(),
            scale: 1.0 / (d as f32).sqrt(),
            dynamic_scale: false,
            lens: None,
            cu: false,
            packed: None,
            page: None,
            bias: None,
            sink: None,
            layout: Layout::Bhsd,
            out_layout: Layout::Bhsd,
            stats_layout: Layout::Bhsd,
            log2: false,
            o_dtype: None,
            size: 1.0,
            recipe: Recipe::Plain,
            seed: 7,
        }
    }
}

/// SplitMix64: values repeat for a seed on every machine.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [-1.7, 1.7]: variance about 1.
    pub fn value(&mut self) -> f64 {
        ((self.next() >> 11) as f64 / (1u64 << 53) as f64 - 0.5) * 3.46
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

pub fn round(x: f64, dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => bf16::from_f32(x as f32).to_f64(),
        DType::F16 => f16::from_f32(x as f32).to_f64(),
        _ => x as f32 as f64,
    }
}

fn put(bytes: &mut [u8], at: usize, x: f64, dtype: DType) {
    match dtype {
        DType::BF16 => bytes[at * 2..at * 2 + 2].copy_from_slice(&bf16::from_f32(x as f32).to_ne_bytes()),
        DType::F16 => bytes[at * 2..at * 2 + 2].copy_from_slice(&f16::from_f32(x as f32).to_ne_bytes()),
        _ => bytes[at * 4..at * 4 + 4].copy_from_slice(&(x as f32).to_ne_bytes()),
    }
}

fn take(bytes: &[u8], at: usize, dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => bf16::from_ne_bytes([bytes[at * 2], bytes[at * 2 + 1]]).to_f64(),
        DType::F16 => f16::from_ne_bytes([bytes[at * 2], bytes[at * 2 + 1]]).to_f64(),
        _ => f32::from_ne_bytes(bytes[at * 4..at * 4 + 4].try_into().unwrap()) as f64,
    }
}

/// Bytes of guard on either side of every buffer.
pub const GUARD: usize = 256;
const GUARD_BYTE: u8 = 0xa5;

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.len)
    }
}

/// A buffer between guards, 128-byte aligned.
#[derive(Clone)]
pub struct Buffer {
    store: Vec<u8>,
    from: usize,
    len: usize,
}

impl Buffer {
    pub fn filled(len: usize, fill: u8) -> Buffer {
        let mut store = vec![GUARD_BYTE; len + 2 * GUARD + 128];
        let from = GUARD + store[GUARD..].as_ptr().align_offset(128);
        store[from..from + len].fill(fill);
        Buffer { store, from, len }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.store[self.from..self.from + self.len]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.store[self.from..self.from + self.len]
    }

    pub fn check_guards(&self, name: &str) {
        let intact = self.store[..self.from].iter().chain(&self.store[self.from + self.len..]).all(|&x| x == GUARD_BYTE);
        assert!(intact, "{name}: a guard byte changed");
    }
}

/// Where the elements of one operand lie: test-side twin of the engines' access.
#[derive(Debug, Clone)]
pub struct Spot {
    pub port: Port,
    /// First element of each batch entry.
    base: Vec<i64>,
    /// Rows that exist for each batch entry.
    rows: Vec<usize>,
    /// (page rows, table) of a paged pool.
    pages: Option<(usize, Vec<Vec<i64>>)>,
    heads: usize,
    cols: usize,
    /// Elements of the whole buffer.
    pub span: usize,
}

impl Spot {
    fn at(&self, b: usize, h: usize, s: usize, d: usize) -> usize {
        let t = self.port.stride;
        let head_and_col = h as i64 * t[1] + d as i64 * t[3];
        let at = match &self.pages {
            Some((page, table)) => table[b][s / page] * t[0] + (s % page) as i64 * t[2] + head_and_col,
            None => self.base[b] + s as i64 * t[2] + head_and_col,
        };
        at as usize
    }

    /// (index in the dense array, element in the buffer) of everything that exists.
    pub fn elements(&self, rows: usize) -> Vec<(usize, usize)> {
        let mut out = Vec::new();
        for b in 0..self.rows.len() {
            for h in 0..self.heads {
                for s in 0..self.rows[b] {
                    for d in 0..self.cols {
                        out.push((((b * self.heads + h) * rows + s) * self.cols + d, self.at(b, h, s, d)));
                    }
                }
            }
        }
        out
    }

    pub fn read(&self, bytes: &[u8], rows: usize) -> Vec<f64> {
        let mut out = vec![0.0; self.rows.len() * self.heads * rows * self.cols];
        for (i, at) in self.elements(rows) {
            out[i] = take(bytes, at, self.port.dtype);
        }
        out
    }
}

pub fn strides(layout: Layout, [b, h, s, d]: [usize; 4]) -> [i64; 4] {
    let [b, h, s, d] = [b as i64, h as i64, s as i64, d as i64];
    match layout {
        Layout::Bhsd => [h * s * d, s * d, d, 1],
        Layout::Bshd => [h * s * d, d, h * d, 1],
        Layout::Sbhd => [h * d, d, b * h * d, 1],
        Layout::Padded => [s * (h * (d + 3) + 5) + 7, d + 3, h * (d + 3) + 5, 1],
        Layout::SpreadD => [h * s * d * 2, s * d * 2, d * 2, 2],
        Layout::Bhds => [h * s * d, s * d, 1, s],
    }
}

pub mod uid {
    pub const Q: i64 = 1;
    pub const K: i64 = 2;
    pub const V: i64 = 3;
    pub const O: i64 = 4;
    pub const STATS: i64 = 5;
    pub const DO: i64 = 6;
    pub const DQ: i64 = 7;
    pub const DK: i64 = 8;
    pub const DV: i64 = 9;
    pub const BIAS: i64 = 10;
    pub const DBIAS: i64 = 11;
    pub const SINK: i64 = 12;
    pub const DSINK: i64 = 13;
    pub const LEN_Q: i64 = 14;
    pub const LEN_KV: i64 = 15;
    pub const TABLE_K: i64 = 16;
    pub const TABLE_V: i64 = 17;
    pub const MAX: i64 = 18;
    pub const SUM: i64 = 19;
    pub const SCALE: i64 = 20;
    /// The high-precision O of an NVFP4 QAT forward; its backward reads it as uid [`O`].
    pub const HIGH: i64 = 21;
    /// Offsets of the tensor with uid `n` are `OFFSETS + n`.
    pub const OFFSETS: i64 = 100;
}
use uid::*;

/// A problem with its operands in buffers.
pub struct Case {
    pub spec: Spec,
    pub problem: Problem,
    pub d_o: Vec<f64>,
    pub spots: BTreeMap<Uid, Spot>,
    pub inputs: BTreeMap<Uid, Buffer>,
    ports: SdpaPorts,
    fill: u8,
}

fn port(uid: Uid, name: &str, dim: [usize; 4], stride: [i64; 4], dtype: DType) -> Port {
    Port { uid, name: name.into(), dim: dim.map(|x| x as i64), stride, dtype, alignment: 16, is_virtual: false, ragged: None }
}

impl Case {
    pub fn new(spec: Spec) -> Case {
        Case::filled(spec, 0xff)
    }

    /// `fill` is what every byte of every buffer that holds no value is set to: padding, slack, outputs, workspace.
    pub fn filled(spec: Spec, fill: u8) -> Case {
        let s = &spec;
        let mut rng = Rng(s.seed);
        let all = |n: usize, len: usize| vec![len as i64; n];
        let lens = match &s.lens {
            Some((q, kv)) => Lengths { q: q.iter().map(|&x| x as i64).collect(), kv: kv.iter().map(|&x| x as i64).collect() },
            None => Lengths { q: all(s.b, s.sq), kv: all(s.b, s.skv) },
        };
        let mut dense =
            |n: usize, size: f64, dtype: DType| -> Vec<f64> { (0..n).map(|_| round(rng.value() * size, dtype)).collect() };
        let problem = Problem {
            b: s.b,
            h_q: s.hq,
            h_kv: s.hkv,
            s_q: s.sq,
            s_kv: s.skv,
            d_qk: s.dqk,
            d_v: s.dv,
            left: s.mask.left,
            right: s.mask.right,
            bottom_right: s.mask.bottom_right,
            scale: s.scale as f64,
            q: dense(s.b * s.hq * s.sq * s.dqk, s.size, s.dtype),
            k: dense(s.b * s.hkv * s.skv * s.dqk, s.size, s.dtype),
            v: dense(s.b * s.hkv * s.skv * s.dv, 1.0, s.dtype),
            bias: s.bias.map(|(b, h, dtype)| (dense(b * h * s.sq * s.skv, 1.0, dtype), [b, h])),
            sink: s.sink.as_ref().map(|x| x.iter().map(|&x| x as f64).collect()),
            lens,
        };
        let d_o = dense(s.b * s.hq * s.sq * s.dv, 1.0, s.dtype);
        let mut case =
            Case { problem, d_o, spots: BTreeMap::new(), inputs: BTreeMap::new(), ports: SdpaPorts::default(), fill, spec };
        case.declare();
        case
    }

    /// Declares every operand of both directions and fills the input buffers.
    fn declare(&mut self) {
        let s = self.spec.clone();
        let q_dim = |d| [s.b, s.hq, s.sq, d];
        let k_dim = |d| [s.b, s.hkv, s.skv, d];
        let (l, ol, t) = (s.layout, s.out_layout, s.dtype);
        self.ports.q = Some(self.sequence(Q, "Q", q_dim(s.dqk), l, t, true));
        self.ports.k = Some(self.pool(K, "K", k_dim(s.dqk), l, t));
        self.ports.v = Some(self.pool(V, "V", k_dim(s.dv), l, t));
        self.ports.o = Some(self.sequence(O, "O", q_dim(s.dv), ol, s.o_dtype.unwrap_or(t), true));
        if s.recipe == Recipe::Nvfp4Qat {
            self.ports.high_precision_o = Some(self.sequence(HIGH, "high-precision O", q_dim(s.dv), Layout::Sbhd, t, true));
        }
        self.ports.stats = Some(self.sequence(STATS, "Stats", q_dim(1), s.stats_layout, DType::F32, true));
        self.ports.score_max = Some(self.sequence(MAX, "Max", q_dim(1), s.stats_layout, DType::F32, true));
        self.ports.score_sum_exp = Some(self.sequence(SUM, "Sum_exp", q_dim(1), Layout::Bhsd, DType::F32, true));
        // dO and dQ in other layouts than O and Q (field report 33).
        self.ports.d_o = Some(self.sequence(DO, "dO", q_dim(s.dv), if ol == Layout::Bhsd { Layout::Bshd } else { ol }, t, true));
        self.ports.dq = Some(self.sequence(DQ, "dQ", q_dim(s.dqk), if ol == Layout::Bhsd { Layout::Sbhd } else { ol }, t, true));
        self.ports.dk = Some(self.sequence(DK, "dK", k_dim(s.dqk), ol, t, false));
        self.ports.dv = Some(self.sequence(DV, "dV", k_dim(s.dv), ol, t, false));
        if let Some((b, h, dtype)) = s.bias {
            let dim = [b, h, s.sq, s.skv];
            self.ports.bias = Some(self.plain(BIAS, "bias", dim, dtype));
            self.ports.dbias = Some(self.plain(DBIAS, "dBias", dim, dtype));
        }
        if s.sink.is_some() {
            self.ports.sink = Some(self.plain(SINK, "sink", [1, s.hq, 1, 1], DType::F32));
            self.ports.dsink = Some(self.plain(DSINK, "dSink", [1, s.hq, 1, 1], DType::F32));
        }
        if let Some((q, kv)) = &s.lens {
            for (uid, name, lens) in [(LEN_Q, "lengths of Q", q), (LEN_KV, "lengths of K", kv)] {
                let values: Vec<i32> = if s.cu {
                    std::iter::once(0)
                        .chain(lens.iter().scan(0, |sum, x| {
                            *sum += x;
                            Some(*sum)
                        }))
                        .collect()
                } else {
                    lens.clone()
                };
                let p = port(uid, name, [values.len(), 1, 1, 1], [1; 4], DType::I32);
                self.ints(uid, &values);
                match (uid, s.cu) {
                    (LEN_Q, false) => self.ports.seq_len_q = Some(p),
                    (LEN_Q, true) => self.ports.cu_seq_len_q = Some(p),
                    (_, false) => self.ports.seq_len_kv = Some(p),
                    (_, true) => self.ports.cu_seq_len_kv = Some(p),
                }
            }
        }
        if s.dynamic_scale {
            self.ports.attn_scale = Some(port(SCALE, "attn_scale", [1; 4], [1; 4], DType::F32));
            self.inputs.insert(SCALE, Buffer::filled(4, 0));
            self.inputs.get_mut(&SCALE).unwrap().bytes_mut().copy_from_slice(&s.scale.to_ne_bytes());
        }
        for (uid, rows, data) in [
            (Q, s.sq, self.problem.q.clone()),
            (K, s.skv, self.problem.k.clone()),
            (V, s.skv, self.problem.v.clone()),
            (DO, s.sq, self.d_o.clone()),
        ] {
            self.store(uid, rows, &data);
        }
        if let Some((bias, _)) = self.problem.bias.clone() {
            self.store(BIAS, s.sq, &bias);
        }
        if let Some(sink) = self.problem.sink.clone() {
            self.store(SINK, 1, &sink);
        }
    }

    fn ints(&mut self, uid: Uid, values: &[i32]) {
        let mut buffer = Buffer::filled(values.len() * 4, 0);
        for (b, x) in buffer.bytes_mut().chunks_exact_mut(4).zip(values) {
            b.copy_from_slice(&x.to_ne_bytes());
        }
        self.inputs.insert(uid, buffer);
    }

    /// Writes a dense array into the operand's buffer.
    pub fn store(&mut self, uid: Uid, rows: usize, dense: &[f64]) {
        let spot = &self.spots[&uid];
        let size = spot.port.dtype.bytes().unwrap() as usize;
        let mut buffer = Buffer::filled(spot.span * size, self.fill);
        for (i, at) in spot.elements(rows) {
            put(buffer.bytes_mut(), at, dense[i], spot.port.dtype);
        }
        self.inputs.insert(uid, buffer);
    }

    fn plain(&mut self, uid: Uid, name: &str, dim: [usize; 4], dtype: DType) -> Port {
        self.dense(uid, name, dim, Layout::Bhsd, dtype)
    }

    fn dense(&mut self, uid: Uid, name: &str, dim: [usize; 4], layout: Layout, dtype: DType) -> Port {
        let p = port(uid, name, dim, strides(layout, dim), dtype);
        let span = p.span().unwrap() as usize;
        let base = (0..dim[0] as i64).map(|b| b * p.stride[0]).collect();
        let spot = Spot { port: p.clone(), base, rows: vec![dim[2]; dim[0]], pages: None, heads: dim[1], cols: dim[3], span };
        self.spots.insert(uid, spot);
        p
    }

    /// A query- or key-side operand: dense, or packed when the case is.
    fn sequence(&mut self, uid: Uid, name: &str, dim: [usize; 4], layout: Layout, dtype: DType, query: bool) -> Port {
        let Some(packed) = self.spec.packed else { return self.dense(uid, name, dim, layout, dtype) };
        let [b, h, _, d] = dim;
        let lens = if query { &self.problem.lens.q } else { &self.problem.lens.kv };
        let mut starts = vec![0i64];
        for len in lens {
            starts.push(starts.last().unwrap() + len + packed.slack);
        }
        let tokens = *starts.last().unwrap();
        let rows: Vec<usize> = lens.iter().map(|&x| x as usize).collect();
        let head_major = packed.head_major && d == 1;
        // Token-major rows keep 3 spare elements when the layout is a padded one.
        let spare = if layout == Layout::Padded && d > 1 { 3 } else { 0 };
        let (stride_h, stride_s) = if head_major { (tokens.max(1), 1) } else { ((d + spare) as i64, (h * (d + spare)) as i64) };
        let unit = if packed.multiplier { stride_s } else { 1 };
        let mut p = port(uid, name, dim, [stride_s * dim[2] as i64, stride_h, stride_s, 1], dtype);
        let kind = if packed.wide { DType::I64 } else { DType::I32 };
        p.ragged = Some(Ragged { uid: OFFSETS + uid, dtype: kind, multiplier: unit });
        let offsets: Vec<i64> = starts.iter().map(|t| t * stride_s / unit).collect();
        if packed.wide {
            let mut buffer = Buffer::filled(offsets.len() * 8, 0);
            for (b, x) in buffer.bytes_mut().chunks_exact_mut(8).zip(&offsets) {
                b.copy_from_slice(&x.to_ne_bytes());
            }
            self.inputs.insert(OFFSETS + uid, buffer);
        } else {
            self.ints(OFFSETS + uid, &offsets.iter().map(|&x| x as i32).collect::<Vec<_>>());
        }
        let span = (tokens.max(1) * stride_s * if head_major { h as i64 } else { 1 }) as usize;
        let base = starts[..b].iter().map(|t| t * stride_s).collect();
        self.spots.insert(uid, Spot { port: p.clone(), base, rows, pages: None, heads: h, cols: d, span });
        p
    }

    /// K or V: as `sequence`, or a paged pool whose pages are shuffled and whose unused table entries are wild.
    fn pool(&mut self, uid: Uid, name: &str, dim: [usize; 4], layout: Layout, dtype: DType) -> Port {
        let Some(page) = self.spec.page else { return self.sequence(uid, name, dim, layout, dtype, false) };
        let [b, h, s, d] = dim;
        let per = s.div_ceil(page);
        let pages = b * per + 2;
        let p = port(uid, name, [pages, h, page, d], strides(layout, [pages, h, page, d]), dtype);
        let lens = self.problem.lens.kv.clone();
        let mut table = vec![vec![0i64; per]; b];
        let mut entries = vec![0i32; b * per];
        for (b, row) in table.iter_mut().enumerate() {
            for (i, x) in row.iter_mut().enumerate() {
                // A permutation that never uses page 0 and the last one.
                *x = ((b * per + i) * 7 % (pages - 2) + 1) as i64;
                let used = i < (lens[b] as usize).div_ceil(page);
                // Unused entries must not be dereferenced (field report 13).
                entries[b * per + i] = if used {
                    *x as i32
                } else if i % 2 == 0 {
                    0x7fff_ffff
                } else {
                    -1
                };
            }
        }
        let (at, what) = if uid == K { (TABLE_K, "page table of K") } else { (TABLE_V, "page table of V") };
        let table_port = port(at, what, [b, 1, per, 1], [per as i64, per as i64, 1, 1], DType::I32);
        *(if uid == K { &mut self.ports.page_table_k } else { &mut self.ports.page_table_v }) = Some(table_port);
        self.ints(at, &entries);
        let rows = lens.iter().map(|&x| x as usize).collect();
        let span = p.span().unwrap() as usize;
        self.spots.insert(uid, Spot { port: p.clone(), base: vec![], rows, pages: Some((page, table)), heads: h, cols: d, span });
        p
    }

    /// Facts of the forward or backward node, as the analyzer would state them for these operands.
    pub fn facts(&self, direction: Direction) -> SdpaFacts {
        let s = &self.spec;
        let mut features = FeatureSet::EMPTY;
        features.set_if(Feature::StatsLog2, s.log2);
        features.set_if(Feature::Thd, s.packed.is_some());
        features.set_if(Feature::Causal, s.mask.right == Some(0));
        let mut ports = self.ports.clone();
        match direction {
            Direction::Forward => {
                (ports.d_o, ports.dq, ports.dk, ports.dv) = (None, None, None, None);
                (ports.dbias, ports.dsink) = (None, None);
            }
            Direction::Backward => (ports.score_max, ports.score_sum_exp, ports.high_precision_o) = (None, None, None),
        }
        if s.recipe == Recipe::Nvfp4Qat {
            (ports.score_max, ports.score_sum_exp) = (None, None);
        }
        SdpaFacts {
            direction,
            recipe: s.recipe,
            invalid: None,
            b: s.b as i64,
            h_q: s.hq as i64,
            h_kv: s.hkv as i64,
            s_q: s.sq as i64,
            s_kv: s.skv as i64,
            d_qk: s.dqk as i64,
            d_v: s.dv as i64,
            page_size: s.page.map(|x| x as i64),
            dtype: s.dtype,
            uniform_dtype: true,
            dtype_o: s.dtype,
            bshd_layout: s.layout == Layout::Bshd,
            packed_layout: s.packed.is_some(),
            dense_layout: true,
            aligned_16: true,
            mask: s.mask,
            scale: if s.dynamic_scale { Scale::Dynamic(SCALE) } else { Scale::Static(s.scale) },
            features,
            wants_stats: true,
            stats_packing: None,
            max_total_seq_len_q: None,
            max_total_seq_len_kv: None,
            ports,
        }
    }

    fn outputs(&self, uids: &[Uid]) -> BTreeMap<Uid, Buffer> {
        let uids = uids.iter().filter(|u| self.spots.contains_key(u));
        uids.map(|u| (*u, Buffer::filled(self.spots[u].span * self.spots[u].port.dtype.bytes().unwrap() as usize, self.fill)))
            .collect()
    }

    /// Runs a CPU engine with a workspace of exactly the planned size; checks guards, and that only elements were written.
    pub fn execute(&self, facts: SdpaFacts, uids: &[Uid]) -> Result<BTreeMap<Uid, Buffer>, HostError> {
        let facts = Facts::Sdpa(Box::new(facts));
        let plan = plan(&facts);
        let mut workspace = Buffer::filled(plan.workspace_bytes as usize, self.fill);
        let mut outputs = self.outputs(uids);
        let mut buffers = HostBuffers {
            inputs: self.inputs.iter().map(|(u, b)| (*u, b.bytes())).collect(),
            outputs: outputs.iter_mut().map(|(u, b)| (*u, b.bytes_mut())).collect(),
            workspace: workspace.bytes_mut(),
        };
        let [frostgraph_engines::Step::Host(call)] = &plan.steps[..] else { panic!("one host step") };
        (call.run)(&facts, &Knobs::NONE, &mut buffers)?;
        workspace.check_guards("workspace");
        for (uid, buffer) in &outputs {
            self.check_untouched(*uid, buffer);
        }
        Ok(outputs)
    }

    /// Guards, stride gaps and packed slack keep their fill (rule S5, invariant I6).
    fn check_untouched(&self, uid: Uid, buffer: &Buffer) {
        let spot = &self.spots[&uid];
        buffer.check_guards(&spot.port.name);
        let size = spot.port.dtype.bytes().unwrap() as usize;
        let mut written = vec![false; spot.span];
        for (_, at) in spot.elements(1 << 20) {
            written[at] = true;
        }
        for (at, cell) in buffer.bytes().chunks_exact(size).enumerate() {
            assert!(written[at] || cell.iter().all(|&x| x == self.fill), "{}: a gap at element {at} was written", spot.port.name);
        }
    }

    pub fn forward(&self) -> Result<BTreeMap<Uid, Buffer>, HostError> {
        let uids: &[Uid] = match self.spec.recipe {
            Recipe::Plain => &[O, STATS, MAX, SUM],
            Recipe::Nvfp4Qat => &[O, HIGH, STATS],
        };
        self.execute(self.facts(Direction::Forward), uids)
    }

    /// Replaces the values of Q, K, V, dO or the bias, in the problem and in the buffer.
    pub fn set(&mut self, uid: Uid, values: Vec<f64>) {
        let rows = self.rows_of(uid);
        self.store(uid, rows, &values);
        match uid {
            Q => self.problem.q = values,
            K => self.problem.k = values,
            V => self.problem.v = values,
            DO => self.d_o = values,
            BIAS => self.problem.bias.as_mut().unwrap().0 = values,
            other => panic!("uid {other} is no value operand"),
        }
    }

    /// Puts `value` wherever no kept pair looks: rows past the lengths, keys that no query keeps, queries that keep no key.
    pub fn spoil(&mut self, value: f64) {
        let s = self.spec.clone();
        let p = self.problem.clone();
        let query_dead = |b: usize, i: usize| !(0..s.skv).any(|j| p.keeps(b, i, j));
        let key_dead = |b: usize, j: usize| !(0..s.sq).any(|i| p.keeps(b, i, j));
        for uid in [Q, DO, K, V, O] {
            let (heads, rows, key) = if uid == K || uid == V { (s.hkv, s.skv, true) } else { (s.hq, s.sq, false) };
            let Some(buffer) = self.inputs.get(&uid) else { continue };
            let mut dense = self.spots[&uid].read(buffer.bytes(), rows);
            let cols = dense.len() / (s.b * heads * rows);
            for (i, x) in dense.iter_mut().enumerate() {
                let (b, row) = (i / (heads * rows * cols), i / cols % rows);
                if if key { key_dead(b, row) } else { query_dead(b, row) } {
                    *x = value;
                }
            }
            self.store(uid, rows, &dense);
        }
    }

    /// Binds O and Stats of the oracle's forward as a caller would hold them: rounded to their types.
    pub fn bind_forward(&mut self) -> OracleForward {
        let want = self.problem.forward();
        self.store(O, self.spec.sq, &want.o);
        self.store(STATS, self.spec.sq, &want.stats);
        want
    }

    /// Backward with the oracle's O and Stats bound.
    pub fn backward(&mut self) -> Result<BTreeMap<Uid, Buffer>, HostError> {
        self.bind_forward();
        self.run_backward()
    }

    pub fn run_backward(&self) -> Result<BTreeMap<Uid, Buffer>, HostError> {
        self.execute(self.facts(Direction::Backward), &[DQ, DK, DV, DBIAS, DSINK])
    }

    /// Gradients of the oracle on the rounded O and Stats.
    pub fn expect_backward(&self) -> OracleBackward {
        let read = |u: Uid| self.spots[&u].read(self.inputs[&u].bytes(), self.spec.sq);
        self.problem.backward(&read(O), &read(STATS), &self.d_o)
    }

    pub fn rows_of(&self, uid: Uid) -> usize {
        match uid {
            DK | DV | K | V => self.spec.skv,
            SINK | DSINK => 1,
            _ => self.spec.sq,
        }
    }

    /// As a caller of NVFP4 QAT: the inputs of a node as the oracle takes them.
    pub fn view(&self) -> BTreeMap<Uid, &[u8]> {
        self.inputs.iter().map(|(u, b)| (*u, b.bytes())).collect()
    }

    /// NVFP4 QAT forward against the oracle; returns the results, and how wrong O would be if P had not been quantised.
    pub fn check_qat_forward(&self) -> (BTreeMap<Uid, Buffer>, f64) {
        let got = self.forward().unwrap_or_else(|e| panic!("{e}\n{:?}", self.spec));
        let want = qat::forward(&self.facts(Direction::Forward), &self.view()).unwrap();
        let t = self.tolerance();
        for (uid, want, reach, tolerance) in
            [(O, &want.o, &want.o_reach[..], t), (HIGH, &want.plain.o, &[], t), (STATS, &want.plain.stats, &[], 1e-5)]
        {
            let error = self.error_beyond(uid, &got, want, reach);
            assert!(error <= tolerance, "{}: error {error:.2e}\n{:?}", self.spots[&uid].port.name, self.spec);
        }
        let unquantised = beyond(&want.plain.o, &want.o, &want.o_reach);
        (got, unquantised)
    }

    /// NVFP4 QAT backward on the oracle's auxiliaries, against the oracle; and how wrong dV would be if P had not been quantised.
    pub fn check_qat_backward(&mut self) -> (BTreeMap<Uid, Buffer>, f64) {
        let made = qat::forward(&self.facts(Direction::Forward), &self.view()).unwrap();
        self.store(O, self.spec.sq, &made.plain.o);
        self.store(STATS, self.spec.sq, &made.plain.stats);
        let got = self.run_backward().unwrap_or_else(|e| panic!("{e}\n{:?}", self.spec));
        let want = qat::backward(&self.facts(Direction::Backward), &self.view()).unwrap();
        for (uid, want, reach) in [(DQ, &want.plain.dq, &[][..]), (DK, &want.plain.dk, &[]), (DV, &want.dv, &want.dv_reach)] {
            let error = self.error_beyond(uid, &got, want, reach);
            assert!(error <= self.tolerance(), "{}: error {error:.2e}\n{:?}", self.spots[&uid].port.name, self.spec);
        }
        (got, beyond(&want.plain.dv, &want.dv, &want.dv_reach))
    }

    /// Relative Frobenius distance of an output over its elements; equal infinities agree, a NaN never does.
    pub fn error(&self, uid: Uid, outputs: &BTreeMap<Uid, Buffer>, want: &[f64]) -> f64 {
        self.error_beyond(uid, outputs, want, &[])
    }

    /// The distance beyond `reach` around every element; an empty one is all zero.
    pub fn error_beyond(&self, uid: Uid, outputs: &BTreeMap<Uid, Buffer>, want: &[f64], reach: &[f64]) -> f64 {
        let spot = &self.spots[&uid];
        let (mut diff, mut norm) = (0.0f64, 0.0f64);
        for (i, at) in spot.elements(self.rows_of(uid)) {
            let got = take(outputs[&uid].bytes(), at, spot.port.dtype);
            if got.is_infinite() && got == want[i] {
                continue;
            }
            if !got.is_finite() {
                return f64::INFINITY;
            }
            diff += ((got - want[i]).abs() - reach.get(i).copied().unwrap_or(0.0)).max(0.0).powi(2);
            norm += want[i].powi(2);
        }
        if norm > 0.0 {
            (diff / norm).sqrt()
        } else {
            diff.sqrt()
        }
    }

    pub fn tolerance(&self) -> f64 {
        self.tolerance_of(self.spec.dtype)
    }

    fn tolerance_of(&self, dtype: DType) -> f64 {
        match dtype {
            DType::F32 => 1e-5,
            DType::F16 => 2e-3,
            _ => 1e-2,
        }
    }

    /// Forward against the oracle: O, Stats, maximum, sum.
    pub fn check_forward(&self) -> BTreeMap<Uid, Buffer> {
        let got = self.forward().unwrap_or_else(|e| panic!("{e}\n{:?}", self.spec));
        let want = self.problem.forward();
        let stats = if self.spec.log2 { want.stats_log2() } else { want.stats.clone() };
        for (uid, want, tolerance) in [
            (O, &want.o, self.tolerance()),
            (STATS, &stats, 1e-5),
            (MAX, &want.score_max, 1e-5),
            (SUM, &want.score_sum_exp, self.tolerance()),
        ] {
            let error = self.error(uid, &got, want);
            assert!(error <= tolerance, "{}: error {error:.2e}\n{:?}", self.spots[&uid].port.name, self.spec);
        }
        got
    }

    /// Backward against the oracle: every gradient.
    pub fn check_backward(&mut self) -> BTreeMap<Uid, Buffer> {
        let got = self.backward().unwrap_or_else(|e| panic!("{e}\n{:?}", self.spec));
        let want = self.expect_backward();
        for (uid, want) in [(DQ, &want.dq), (DK, &want.dk), (DV, &want.dv), (DBIAS, &want.dbias), (DSINK, &want.dsink)] {
            if !self.spots.contains_key(&uid) {
                continue;
            }
            let dtype = self.spots[&uid].port.dtype;
            let tolerance = self.tolerance().max(self.tolerance_of(dtype));
            let error = self.error(uid, &got, want);
            assert!(error <= tolerance, "{}: error {error:.2e}\n{:?}", self.spots[&uid].port.name, self.spec);
        }
        got
    }
}

/// Relative distance of `got` from `want` beyond `reach`.
fn beyond(got: &[f64], want: &[f64], reach: &[f64]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let off = norm(&mut got.iter().zip(want).zip(reach).map(|((g, w), r)| ((g - w).abs() - r).max(0.0)));
    off / norm(&mut want.iter().copied()).max(1e-30)
}

/// The plan of the CPU row that serves these facts.
pub fn plan(facts: &Facts) -> LaunchPlan {
    let f = facts.expect_sdpa();
    let lower = match (f.direction, f.recipe) {
        (Direction::Forward, Recipe::Plain) => frostgraph_engines::sdpa_fwd::cpu::lower,
        (Direction::Forward, Recipe::Nvfp4Qat) => frostgraph_engines::qat_fwd::cpu::lower,
        (Direction::Backward, _) => frostgraph_engines::sdpa_bwd::cpu::lower,
    };
    lower(facts, &Knobs::NONE, &Target::Cpu).unwrap_or_else(|d| panic!("{d}"))
}

/// Bytes of every output, for bitwise comparison.
pub fn bits(outputs: &BTreeMap<Uid, Buffer>) -> Vec<(Uid, Vec<u8>)> {
    outputs.iter().map(|(u, b)| (*u, b.bytes().to_vec())).collect()
}

/// Bytes of the elements only, for comparison between runs with different fill.
pub fn element_bits(case: &Case, outputs: &BTreeMap<Uid, Buffer>) -> Vec<(Uid, Vec<u64>)> {
    let of = |u: &Uid, b: &Buffer| case.spots[u].read(b.bytes(), case.rows_of(*u)).iter().map(|x| x.to_bits()).collect();
    outputs.iter().map(|(u, b)| (*u, of(u, b))).collect()
}

/// Every mask kind and alignment that the engines serve.
pub fn masks() -> Vec<Mask> {
    let m = |left, right, bottom_right| Mask { left, right, bottom_right };
    vec![
        m(None, None, false),
        m(None, Some(0), false),
        m(None, Some(0), true),
        m(None, Some(5), false),
        m(None, Some(5), true),
        m(Some(9), None, false),
        m(Some(9), None, true),
        m(Some(9), Some(0), false),
        m(Some(9), Some(0), true),
        m(Some(3), Some(4), false),
        m(Some(0), Some(0), true),
    ]
}
