//! Reasons why a graph is malformed for every engine, in the order of facts §3.5; the first is reported.
//!
//! Facts §3.5 says nothing of element counts of lengths, offsets and Stats. They are checked here too, last in their group, because an
//! engine that reads them by B would leave the buffer.

use super::mask::Spelling;
use super::ports::{dtype, Operands};
use super::Request;
use crate::graph::{InPort, OutPort, Tensor};
use frostgraph_engines::sdpa::{Direction, Recipe};
use frostgraph_engines::DType;

pub(super) fn reason(operands: &Operands, request: &Request, spelling: &Spelling) -> Option<String> {
    let c = Check { o: operands, r: request, direction: request.direction };
    let text = c
        .ports()
        .or_else(|| c.paged())
        .or_else(|| c.shapes())
        .or_else(|| c.bias())
        .or_else(|| spelling.invalid())
        .or_else(|| c.lengths())
        .or_else(|| c.sink())
        .or_else(|| c.stats())
        .or_else(|| c.attributes())?;
    let prefix = match (request.direction, request.recipe) {
        (Direction::Forward, Recipe::Plain) => "sdpa",
        (Direction::Backward, Recipe::Plain) => "sdpa_backward",
        (Direction::Forward, Recipe::Nvfp4Qat) => "nvfp4_attention_qat_forward",
        (Direction::Backward, Recipe::Nvfp4Qat) => "nvfp4_attention_qat_backward",
    };
    Some(format!("{prefix}: {text}"))
}

struct Check<'a> {
    o: &'a Operands<'a>,
    r: &'a Request<'a>,
    direction: Direction,
}

/// Extents of a rank-4 tensor; `ports` has made sure of the rank.
fn dim(t: &Tensor) -> [i64; 4] {
    t.dim.as_slice().try_into().unwrap_or([0; 4])
}

fn count(t: &Tensor) -> i64 {
    t.dim.iter().fold(1, |n, &d| n.saturating_mul(d))
}

impl Check<'_> {
    /// The four-dimensional operands with their keys in a graph file.
    fn main(&self) -> impl Iterator<Item = (&'static str, Option<&Tensor>)> {
        let backward = self.direction == Direction::Backward;
        let input = |p: InPort| (p.json(), self.o.input(p));
        let output = |p: OutPort| (p.json(), self.o.output(p));
        let qat = self.r.recipe == Recipe::Nvfp4Qat;
        let forward = [input(InPort::Q), input(InPort::K), input(InPort::V), (self.o_name(), self.o.o(self.r))];
        let high = output(OutPort::HighPrecisionO);
        let grads = [input(InPort::DO), output(OutPort::DQ), output(OutPort::DK), output(OutPort::DV)];
        forward.into_iter().chain((qat && !backward).then_some(high)).chain(grads.into_iter().filter(move |_| backward))
    }

    /// What the graph file calls O.
    fn o_name(&self) -> &'static str {
        match (self.direction, self.r.recipe) {
            (Direction::Forward, _) | (Direction::Backward, Recipe::Plain) => InPort::O.json(),
            (Direction::Backward, Recipe::Nvfp4Qat) => InPort::HighPrecisionO.json(),
        }
    }

    fn get(&self, port: InPort) -> [i64; 4] {
        self.o.input(port).map_or([0; 4], dim)
    }

    fn ports(&self) -> Option<String> {
        if let Some((port, _)) = self.main().find(|(_, t)| t.is_none()) {
            return Some(format!("{port} is missing"));
        }
        self.main().find_map(|(port, t)| {
            let t = t.filter(|t| t.dim.len() != 4 || t.stride.len() != 4)?;
            Some(format!("{port} has extents {:?} and strides {:?}, not rank 4", t.dim, t.stride))
        })
    }

    fn paged(&self) -> Option<String> {
        if !self.o.paged() {
            return None;
        }
        if self.direction == Direction::Backward {
            return Some("paged K/V on a backward".into());
        }
        let (q, k, v) = (self.get(InPort::Q), self.get(InPort::K), self.get(InPort::V));
        if k[3] != q[3] {
            return Some(format!("K pool {k:?} has another head dim than Q {q:?}"));
        }
        if k[..3] != v[..3] {
            return Some(format!("K pool {k:?} and V pool {v:?} differ in pages, heads or page size"));
        }
        let tables = [("Page_table_K", self.o.input(InPort::PageTableK)), ("Page_table_V", self.o.input(InPort::PageTableV))];
        for (name, table) in tables {
            let Some(t) = table else { return Some(format!("{name} is missing while the other page table is given")) };
            if t.dim.len() != 4 || t.dim[0] != q[0] || t.dim[1] != 1 || t.dim[3] != 1 {
                return Some(format!("{name} has extents {:?}, expected ({}, 1, pages, 1)", t.dim, q[0]));
            }
            if dtype(t) != DType::I32 {
                return Some(format!("{name} has type {}, expected INT32", dtype(t).json()));
            }
            if t.ragged.is_some() {
                return Some(format!("{name} is ragged"));
            }
        }
        let pages = |t: Option<&Tensor>| t.map_or(0, |t| dim(t)[2]);
        let (pages_k, pages_v) = (pages(tables[0].1), pages(tables[1].1));
        if pages_k != pages_v {
            return Some(format!("Page_table_K holds {pages_k} pages a sequence and Page_table_V {pages_v}"));
        }
        let Some(capacity) = pages_k.checked_mul(k[2]) else {
            return Some(format!("{pages_k} pages of {} rows exceed 64 bits", k[2]));
        };
        let max = self.r.forward.and_then(|a| a.max_seq_len_kv).filter(|&max| max > capacity)?;
        Some(format!("paged_attention_max_seq_len_kv {max} exceeds {pages_k} pages of {} rows", k[2]))
    }

    fn shapes(&self) -> Option<String> {
        let (q, k, v) = (self.get(InPort::Q), self.get(InPort::K), self.get(InPort::V));
        let differs = |name: &str, given: [i64; 4], expected: [i64; 4]| {
            (given != expected).then(|| format!("{name} has extents {given:?}, expected {expected:?}"))
        };
        let k_batch = if self.o.paged() { k[0] } else { q[0] };
        let first = differs("K", k, [k_batch, k[1], k[2], q[3]])
            .or_else(|| differs("V", v, [k[0], k[1], k[2], v[3]]))
            .or_else(|| differs(self.o_name(), self.o.o(self.r).map_or([0; 4], dim), [q[0], q[1], q[2], v[3]]));
        if first.is_some() {
            return first;
        }
        if self.r.recipe == Recipe::Nvfp4Qat && self.direction == Direction::Forward {
            let high = self.o.output(OutPort::HighPrecisionO).map_or([0; 4], dim);
            if let Some(text) = differs("High_precision_O", high, [q[0], q[1], q[2], v[3]]) {
                return Some(text);
            }
        }
        if self.direction == Direction::Backward {
            let o = self.o.o(self.r).map_or([0; 4], dim);
            let out = |port: OutPort| self.o.output(port).map_or([0; 4], dim);
            let grads = differs("dO", self.get(InPort::DO), o)
                .or_else(|| differs("dQ", out(OutPort::DQ), q))
                .or_else(|| differs("dK", out(OutPort::DK), k))
                .or_else(|| differs("dV", out(OutPort::DV), v));
            if grads.is_some() {
                return grads;
            }
        }
        if let Some((port, t)) = self.main().find_map(|(p, t)| t.filter(|t| t.dim.iter().any(|&d| d <= 0)).map(|t| (p, t))) {
            return Some(format!("{port} has extents {:?}, not all above 0", t.dim));
        }
        if q[1] % k[1] != 0 {
            return Some(format!("{} query heads are no multiple of {} key/value heads", q[1], k[1]));
        }
        let blocks = self.r.recipe == Recipe::Nvfp4Qat && (q[3] % 16 != 0 || v[3] % 16 != 0);
        blocks.then(|| format!("head dims {} and {} are not whole NVFP4 blocks of 16 values", q[3], v[3]))
    }

    /// Facts §3.5 asks this of the forward; a backward with such a bias is just as malformed, and dBias must be shaped as the bias.
    fn bias(&self) -> Option<String> {
        let q = self.get(InPort::Q);
        let s_kv = self.o.s_kv();
        if let Some(t) = self.o.input(InPort::Bias) {
            if t.dim.len() != 4 {
                return Some(format!("bias has extents {:?}, not rank 4", t.dim));
            }
            let [b, h, s, k] = dim(t);
            if (b != 1 && b != q[0]) || (h != 1 && h != q[1]) || s != q[2] || k != s_kv {
                let expected = format!("(1|{}, 1|{}, {}, {s_kv})", q[0], q[1], q[2]);
                return Some(format!("bias has extents {:?}, expected {expected}", t.dim));
            }
        }
        if let Some(t) = self.o.output(OutPort::DBias) {
            let Some(bias) = self.o.input(InPort::Bias) else { return Some("dBias without a bias".into()) };
            if t.dim != bias.dim {
                return Some(format!("dBias has extents {:?}, expected those of the bias {:?}", t.dim, bias.dim));
            }
        }
        let t = self.o.input(InPort::KvMask)?;
        let fits = t.dim.len() == 4 && (t.dim[0] == 1 || t.dim[0] == q[0]) && t.dim[1] == 1 && t.dim[2] == 1 && t.dim[3] == s_kv;
        (!fits).then(|| format!("kv mask has extents {:?}, expected (1|{}, 1, 1, {s_kv})", t.dim, q[0]))
    }

    fn lengths(&self) -> Option<String> {
        let has = |p| self.o.input(p).is_some();
        let len_q = has(InPort::SeqLenQ) || has(InPort::CuSeqLenQ);
        let len_kv = has(InPort::SeqLenKv) || has(InPort::CuSeqLenKv);
        if self.o.thd() {
            let ragged = |p| self.o.input(p).is_some_and(|t| t.ragged.is_some());
            if !(self.o.paged() || ragged(InPort::K) && ragged(InPort::V)) {
                return Some("Q is ragged but K or V is not".into());
            }
            if !len_q || !len_kv {
                return Some("ragged operands without lengths on both sides".into());
            }
        }
        if self.r.mask.padding && !len_kv {
            return Some("a padding mask without key lengths".into());
        }
        let b = self.get(InPort::Q)[0];
        let lists = [
            (InPort::SeqLenQ, b),
            (InPort::SeqLenKv, b),
            (InPort::CuSeqLenQ, b.saturating_add(1)),
            (InPort::CuSeqLenKv, b.saturating_add(1)),
        ];
        for (port, _) in lists {
            if let Some(t) = self.o.input(port).filter(|t| dtype(t) != DType::I32) {
                return Some(format!("{} has type {}, expected INT32", port.json(), dtype(t).json()));
            }
        }
        for (port, n) in lists {
            if let Some(text) = self.o.input(port).and_then(|t| list(port.json(), t, n)) {
                return Some(text);
            }
        }
        self.offsets(b.saturating_add(1))
    }

    /// Ragged offsets: B + 1 integers, one after another.
    fn offsets(&self, n: i64) -> Option<String> {
        let stats = [("Stats", self.o.stats(self.direction))];
        for (port, t) in self.main().chain(stats) {
            let Some(r) = t.and_then(|t| t.ragged) else { continue };
            let offset = self.o.graph.tensor(r.offset);
            let dtype = dtype(offset);
            if dtype != DType::I32 && dtype != DType::I64 {
                return Some(format!("the ragged offset of {port} has type {}, expected INT32 or INT64", dtype.json()));
            }
            if let Some(text) = list(&format!("the ragged offset of {port}"), offset, n) {
                return Some(text);
            }
        }
        None
    }

    fn sink(&self) -> Option<String> {
        let h = self.get(InPort::Q)[1];
        let t = self.o.input(InPort::Sink)?;
        if t.dim != [1, h, 1, 1] {
            return Some(format!("sink has extents {:?}, expected [1, {h}, 1, 1]", t.dim));
        }
        if dtype(t) != DType::F32 {
            return Some(format!("sink has type {}, expected FLOAT", dtype(t).json()));
        }
        let d = self.o.output(OutPort::DSink).filter(|d| d.dim != t.dim)?;
        Some(format!("dSink has extents {:?}, expected those of the sink {:?}", d.dim, t.dim))
    }

    fn stats(&self) -> Option<String> {
        let q = self.get(InPort::Q);
        let Some(t) = self.o.stats(self.direction) else {
            return match self.direction {
                Direction::Backward => Some("Stats is missing".into()),
                Direction::Forward if self.r.wants_stats => Some("Stats are requested but the node has no Stats output".into()),
                Direction::Forward => None,
            };
        };
        let per_row = [("Stats", Some(t)), ("Max", self.o.output(OutPort::Max)), ("Sum_exp", self.o.output(OutPort::SumExp))];
        per_row.into_iter().find_map(|(name, t)| {
            let t = t.filter(|t| t.dim.get(..3) != Some(&q[..3]) || t.dim[3..].iter().any(|&d| d != 1))?;
            Some(format!("{name} has extents {:?}, expected [{}, {}, {}, 1]", t.dim, q[0], q[1], q[2]))
        })
    }

    fn attributes(&self) -> Option<String> {
        let a = self.r.forward?;
        if let Some(d) = a.softmax_precision.filter(|d| !matches!(d, DType::F32 | DType::F16)) {
            return Some(format!("softmax precision {}, expected FLOAT or HALF", d.json()));
        }
        let scale = a.attn_scale.is_some() || self.o.input(InPort::AttnScale).is_some();
        (a.attn_scale_prefolded && scale).then(|| "attn_scale together with a prefolded attn_scale".into())
    }
}

/// `n` elements, one after another.
fn list(name: &str, t: &Tensor, n: i64) -> Option<String> {
    if count(t) != n {
        return Some(format!("{name} has extents {:?}, expected {n} elements", t.dim));
    }
    let scattered = t.dim.iter().zip(&t.stride).any(|(&d, &s)| d > 1 && s != 1);
    scattered.then(|| format!("{name} has strides {:?}, expected {n} elements one after another", t.stride))
}
