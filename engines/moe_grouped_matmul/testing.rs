//! Plain grouped products for tests: facts and buffers from a few numbers.
#![allow(missing_docs, reason = "compiled for tests only")]

use super::{BlockScales, MoeFacts, MoeMode, MoePorts, ScalePlace};
use crate::codec::{e4m3, e5m2, e8m0};
use crate::grouped_gemm::GemmPort;
use crate::sdpa::testing::Random;
use crate::{DType, Facts, Feature, FeatureSet, HostBuffers, HostError, Knobs, Step, Target, Uid};
use std::collections::BTreeMap;

/// One problem.
#[derive(Debug, Clone)]
pub struct Case {
    pub tokens: i64,
    pub routed: i64,
    pub n: i64,
    pub k: i64,
    pub experts: i64,
    /// As stored: one for each group, and the end where `explicit_end`.
    pub offsets: Vec<i64>,
    pub explicit_end: bool,
    pub wide_offsets: bool,
    pub mode: MoeMode,
    pub top_k: i64,
    pub input: DType,
    pub scales: Option<(DType, i64)>,
    pub place: ScalePlace,
    pub output: DType,
    pub n_major: bool,
    pub double: bool,
    pub status: bool,
    /// Elements between rows of the token and of the output beyond the row.
    pub gap: i64,
}

impl Default for Case {
    fn default() -> Case {
        Case {
            tokens: 300,
            routed: 300,
            n: 136,
            k: 72,
            experts: 3,
            offsets: vec![0, 141, 141],
            explicit_end: false,
            wide_offsets: false,
            mode: MoeMode::None,
            top_k: 2,
            input: DType::BF16,
            scales: None,
            place: ScalePlace::Atoms,
            output: DType::BF16,
            n_major: false,
            double: false,
            status: false,
            gap: 0,
        }
    }
}

impl Case {
    pub fn mxfp8() -> Case {
        Case { input: DType::F8E4M3, scales: Some((DType::F8E8M0, 32)), ..Case::default() }
    }

    pub fn nvfp4() -> Case {
        Case { input: DType::F4E2M1, scales: Some((DType::F8E4M3, 16)), ..Case::default() }
    }

    /// The facts that the analyzer would find; uids 1 to 7 are inputs, 21 and 22 outputs.
    pub fn moe(&self) -> MoeFacts {
        let (t, r, n, k, e) = (self.tokens, self.routed, self.n, self.k, self.experts);
        let port = |uid: Uid, name: &str, dtype: DType, dim: [i64; 3], stride: [i64; 3]| {
            let (dim, stride) = (dim.to_vec(), stride.to_vec());
            Some(GemmPort { uid, name: name.into(), dtype, dim, stride, alignment: 16, is_virtual: false })
        };
        let (token_row, out_row) = (k + self.gap, n + self.gap);
        let weight = if self.n_major { [n * k, n, 1] } else { [n * k, 1, k] };
        let (sf, vec) = self.scales.unwrap_or((DType::F8E8M0, 32));
        let up = |x: i64, by: i64| x.unsigned_abs().next_multiple_of(by as u64) as i64;
        let blocks = up(k, vec) / vec;
        let (rows, cols, b) = match self.place {
            ScalePlace::Atoms => (up(t, 128), up(n, 128), up(blocks, 4)),
            ScalePlace::Strided => (t, n, blocks),
        };
        let scaled = |p: Option<GemmPort>| p.filter(|_| self.scales.is_some());
        let list = self.offsets.len() as i64;
        let offset_type = if self.wide_offsets { DType::I64 } else { DType::I32 };
        let indexed = |yes: bool, p: Option<GemmPort>| p.filter(|_| yes);
        let ports = MoePorts {
            token: port(1, "token", self.input, [1, t, k], [t * token_row, token_row, 1]),
            weight: port(2, "weight", self.input, [e, k, n], weight),
            token_scale: scaled(port(3, "token_scale", sf, [1, rows, b], [rows * b, b, 1])),
            weight_scale: scaled(port(4, "weight_scale", sf, [e, b, cols], [b * cols, 1, b])),
            first_token_offset: port(5, "first_token_offset", offset_type, [list, 1, 1], [1, 1, 1]),
            token_index: indexed(self.mode != MoeMode::None, port(6, "token_index", DType::I32, [1, r, 1], [r, 1, 1])),
            token_ks: indexed(self.mode == MoeMode::Scatter, port(7, "token_ks", DType::I32, [1, r, 1], [r, 1, 1])),
            output: port(21, "output", self.output, [1, r, n], [r * out_row, out_row, 1]),
            status: port(22, "status", DType::I32, [1, 1, 1], [1, 1, 1]).filter(|_| self.status),
        };
        let mut features = FeatureSet::EMPTY;
        features.set_if(Feature::NMajorB, self.n_major);
        features.set_if(Feature::F64Accumulate, self.double);
        features.set_if(Feature::StatusWord, self.status);
        features.set_if(Feature::GatherTokens, self.mode == MoeMode::Gather);
        features.set_if(Feature::ScatterTokens, self.mode == MoeMode::Scatter);
        MoeFacts {
            tokens: t,
            routed: r,
            n,
            k,
            experts: e,
            groups: list - i64::from(self.explicit_end),
            explicit_end: self.explicit_end,
            mode: self.mode,
            top_k: self.top_k,
            input: self.input,
            scales: self.scales.map(|(dtype, vec)| BlockScales { dtype, vec, token: self.place, weight: self.place }),
            output: self.output,
            features,
            ports,
        }
    }

    pub fn facts(&self) -> Facts {
        Facts::Moe(Box::new(self.moe()))
    }

    /// Random inputs by uid: values of order one, scales around 1, a shuffled routing without collisions.
    pub fn inputs(&self, seed: u64) -> BTreeMap<Uid, Vec<u8>> {
        let f = self.moe();
        let mut r = Random::new(seed);
        // Destinations of scatter: a permutation of the rows.
        let mut order: Vec<i64> = (0..self.routed).collect();
        (1..order.len()).rev().for_each(|i| order.swap(i, r.below(i + 1)));
        let sources: Vec<i64> = (0..self.routed).map(|_| r.below(self.tokens as usize) as i64).collect();
        let mut uniform = move || r.below(1 << 20) as f32 / (1 << 19) as f32 - 1.0;
        let mut out = BTreeMap::new();
        for (label, port, written) in f.ports.all() {
            if written {
                continue;
            }
            let span = port.dim.iter().zip(&port.stride).map(|(d, s)| (d - 1) * s).sum::<i64>() + 1;
            let index = |x: &dyn Fn(i64) -> i64| order.iter().flat_map(|p| (x(*p) as i32).to_ne_bytes()).collect();
            let bytes: Vec<u8> = match label {
                "FirstTokenOffset" if self.wide_offsets => self.offsets.iter().flat_map(|o| o.to_ne_bytes()).collect(),
                "FirstTokenOffset" => self.offsets.iter().flat_map(|o| (*o as i32).to_ne_bytes()).collect(),
                "TokenIndex" if self.mode == MoeMode::Gather => sources.iter().flat_map(|s| (*s as i32).to_ne_bytes()).collect(),
                "TokenIndex" => index(&|p| p / self.top_k),
                "TokenKs" => index(&|p| p % self.top_k),
                "Token scale" | "Weight scale" if port.dtype == DType::F8E4M3 => {
                    (0..span).map(|_| e4m3::encode(1.5 + uniform())).collect()
                }
                "Token scale" | "Weight scale" => {
                    (0..span).map(|_| e8m0::ONE.wrapping_add((uniform() * 2.0) as i8 as u8)).collect()
                }
                _ => match self.input {
                    DType::F4E2M1 => (0..(span + 1) / 2).map(|_| (uniform() * 128.0) as i8 as u8).collect(),
                    DType::F8E5M2 => (0..span).map(|_| e5m2::encode(uniform() * 2.0)).collect(),
                    DType::F8E4M3 => (0..span).map(|_| e4m3::encode(uniform() * 2.0)).collect(),
                    DType::F16 => (0..span).flat_map(|_| half::f16::from_f32(uniform()).to_ne_bytes()).collect(),
                    DType::F32 => (0..span).flat_map(|_| uniform().to_ne_bytes()).collect(),
                    _ => (0..span).flat_map(|_| half::bf16::from_f32(uniform()).to_ne_bytes()).collect(),
                },
            };
            out.insert(port.uid, bytes);
        }
        out
    }

    /// Runs the CPU row on poisoned outputs; the results by uid.
    pub fn run(&self, inputs: &BTreeMap<Uid, Vec<u8>>) -> Result<BTreeMap<Uid, Vec<u8>>, HostError> {
        let facts = self.facts();
        let plan = super::cpu::lower(&facts, &Knobs::NONE, &Target::Cpu).expect("a plan");
        let mut results: BTreeMap<Uid, Vec<u8>> = BTreeMap::new();
        for (_, port, _) in facts.expect_moe().ports.all().filter(|p| p.2) {
            let span = port.dim.iter().zip(&port.stride).map(|(d, s)| (d - 1) * s).sum::<i64>() + 1;
            results.insert(port.uid, vec![0xa5; (span * i64::from(port.dtype.bits()) / 8) as usize]);
        }
        let mut buffers = HostBuffers {
            inputs: inputs.iter().map(|(u, b)| (*u, &b[..])).collect(),
            outputs: results.iter_mut().map(|(u, b)| (*u, &mut b[..])).collect(),
            workspace: &mut [],
        };
        for step in &plan.steps {
            let Step::Host(call) = step else { panic!("a host plan") };
            (call.run)(&facts, &Knobs::NONE, &mut buffers)?;
        }
        Ok(results)
    }
}
