//! From a spec to declared operands with their input buffers.

use super::memory::put;
use super::uid::*;
use super::{round, strides, Buffer, Layout, Rng, Spec, Spot};
use frostgraph_engines::sdpa::oracle::Problem;
use frostgraph_engines::sdpa::{Lengths, Recipe, SdpaPorts};
use frostgraph_engines::{DType, Port, Ragged, Uid};
use std::collections::BTreeMap;

/// A problem with its operands in buffers.
pub struct Case {
    pub spec: Spec,
    pub problem: Problem,
    pub d_o: Vec<f64>,
    pub spots: BTreeMap<Uid, Spot>,
    pub inputs: BTreeMap<Uid, Buffer>,
    pub ports: SdpaPorts,
    pub fill: u8,
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
}
