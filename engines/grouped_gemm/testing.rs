//! Grouped products for tests: facts and buffers from a few numbers.
#![allow(missing_docs, reason = "compiled for tests only")]

use super::scales::{extents, physical};
use super::{Formula, GemmPort, GroupedGemmFacts, GroupedGemmPorts, Weights};
use crate::codec::{e4m3, e8m0};
use crate::sdpa::testing::Random;
use crate::{DType, Facts, Feature, FeatureSet, HostBuffers, HostError, Knobs, Step, Target, Uid};
use std::collections::BTreeMap;

/// One problem.
#[derive(Debug, Clone)]
pub struct Case {
    pub m: i64,
    pub n: i64,
    pub k: i64,
    /// Cumulative ends; as many as there are experts.
    pub ends: Vec<i32>,
    pub ab: DType,
    pub sf: DType,
    pub sf_vec: i64,
    pub c: DType,
    pub d: DType,
    pub weights: Weights,
    pub b_n_major: bool,
    pub formula: Formula,
    pub clamp: Option<f32>,
    pub discrete_col_sfd: bool,
    pub deterministic: bool,
    pub double: bool,
    pub dbias: bool,
    pub amax: bool,
    pub d_srelu: bool,
    pub status: bool,
    /// norm_const where scales are generated.
    pub norm: f32,
}

impl Default for Case {
    fn default() -> Case {
        Case {
            m: 512,
            n: 160,
            k: 96,
            ends: vec![256, 256, 512],
            ab: DType::F8E4M3,
            sf: DType::F8E8M0,
            sf_vec: 32,
            c: DType::BF16,
            d: DType::F8E4M3,
            weights: Weights::Dense,
            b_n_major: false,
            formula: Formula::PreactivationG,
            clamp: None,
            discrete_col_sfd: false,
            deterministic: false,
            double: false,
            dbias: true,
            amax: false,
            d_srelu: false,
            status: false,
            norm: 0.5,
        }
    }
}

impl Case {
    /// NVFP4 inputs with bf16 results and amax.
    pub fn nvfp4() -> Case {
        Case { ab: DType::F4E2M1, sf: DType::F8E4M3, sf_vec: 16, d: DType::BF16, amax: true, ..Case::default() }
    }

    /// MXFP8 with an empty expert between unequal ones, without dbias.
    pub fn mxfp8_uneven() -> Case {
        Case { m: 1024, n: 512, k: 768, ends: vec![256, 256, 1024], dbias: false, ..Case::default() }
    }

    /// MXFP8 with every option at once that FP8 results and dense weights allow.
    pub fn mxfp8_everything() -> Case {
        Case {
            ab: DType::F8E5M2,
            d: DType::F8E5M2,
            c: DType::F32,
            deterministic: true,
            dbias: true,
            discrete_col_sfd: true,
            clamp: Some(3.0),
            formula: Formula::PreactivationC,
            status: true,
            ..Case::default()
        }
    }

    pub fn quantised(&self) -> bool {
        self.d.is_fp8()
    }

    /// The facts that the analyzer would find; uids 1 to 11 are inputs, from 21 outputs.
    pub fn grouped(&self) -> GroupedGemmFacts {
        let (m, n, k, l) = (self.m, self.n, self.k, self.ends.len() as i64);
        let port = |uid: Uid, name: &str, dtype: DType, dim: &[i64], order: &[usize]| {
            let (mut stride, mut span) = (vec![0; dim.len()], 1);
            for &axis in order.iter().rev() {
                stride[axis] = span;
                span *= dim[axis];
            }
            Some(GemmPort { uid, name: name.into(), dtype, dim: dim.to_vec(), stride, alignment: 16, is_virtual: false })
        };
        let scales = |uid, name: &str, rows, columns, vec, slices| {
            let dim = physical(&extents(rows, columns, vec, slices).expect("extents"));
            port(uid, name, self.sf, &dim, &[0, 1, 2, 3, 4, 5])
        };
        let when = |yes: bool, port: Option<GemmPort>| port.filter(|_| yes);
        let (q, pool) = (self.quantised(), self.weights != Weights::Dense);
        let wide: &[usize] = if self.b_n_major { &[2, 1, 0] } else { &[2, 0, 1] };
        let ports = GroupedGemmPorts {
            a: port(1, "A", self.ab, &[m, k, 1], &[2, 0, 1]),
            b: when(self.weights != Weights::Addresses, port(2, "B", self.ab, &[n, k, l], wide)),
            c: port(3, "C", self.c, &[m, n, 1], &[2, 0, 1]),
            sfa: scales(4, "SFA", m, k, self.sf_vec, 1),
            sfb: when(self.weights != Weights::Addresses, scales(5, "SFB", n, k, self.sf_vec, l)),
            b_ptrs: when(pool, port(6, "B_ptrs", DType::I64, &[l], &[0])),
            sfb_ptrs: when(pool, port(7, "SFB_ptrs", DType::I64, &[l], &[0])),
            padded_offsets: port(8, "padded_offsets", DType::I32, &[l], &[0]),
            alpha: port(9, "alpha", DType::F32, &[l], &[0]),
            prob: port(10, "prob", DType::F32, &[m, 1, 1], &[0, 1, 2]),
            norm_const: when(q, port(11, "norm_const", DType::F32, &[1], &[0])),
            d_row: port(21, "D_row", self.d, &[m, n, 1], &[2, 0, 1]),
            d_col: port(22, "D_col", self.d, &[m, n, 1], &[2, 0, 1]),
            d_srelu: when(self.d_srelu, port(23, "D_srelu", self.d, &[m, n, 1], &[2, 0, 1])),
            dprob: port(24, "dprob", DType::F32, &[m, 1, 1], &[0, 1, 2]),
            dbias: when(self.dbias, port(25, "dbias", DType::BF16, &[l, n, 1], &[0, 1, 2])),
            amax: when(self.amax, port(26, "amax", DType::F32, &[l, 1], &[0, 1])),
            sfd_row: when(q, scales(27, "SFD_row", m, n, 32, 1)),
            sfd_col: when(q, scales(28, "SFD_col", n, m, 32, 1)),
            sfd_col_d_srelu: when(q && self.d_srelu, scales(29, "SFD_col_d_srelu", n, m, 32, 1)),
            status: when(self.status, port(30, "status", DType::I32, &[1], &[0])),
        };
        let mut features = FeatureSet::EMPTY;
        features.set_if(Feature::Deterministic, self.deterministic);
        features.set_if(Feature::DBias, self.dbias);
        features.set_if(Feature::OutputScales, q);
        features.set_if(Feature::DiscreteColSfd, q && self.discrete_col_sfd);
        features.set_if(Feature::Amax, self.amax);
        features.set_if(Feature::DSrelu, self.d_srelu);
        features.set_if(Feature::TanhClamp, self.clamp.is_some());
        features.set_if(Feature::PreactivationC, self.formula == Formula::PreactivationC);
        features.set_if(Feature::PooledWeights, self.weights == Weights::Pool);
        features.set_if(Feature::WeightAddresses, self.weights == Weights::Addresses);
        features.set_if(Feature::NMajorB, self.b_n_major);
        features.set_if(Feature::F64Accumulate, self.double);
        features.set_if(Feature::StatusWord, self.status);
        GroupedGemmFacts {
            m,
            n,
            k,
            experts: l,
            ab: self.ab,
            sf: self.sf,
            sf_vec: self.sf_vec,
            c: self.c,
            d: self.d,
            weights: self.weights,
            b_n_major: self.b_n_major,
            formula: self.formula,
            tanh_clamp_scale: self.clamp,
            discrete_col_sfd: q && self.discrete_col_sfd,
            quantised: q,
            deterministic: self.deterministic,
            features,
            ports,
        }
    }

    pub fn facts(&self) -> Facts {
        Facts::GroupedGemm(Box::new(self.grouped()))
    }

    /// Random inputs by uid: payloads of moderate size, scales around 1, offsets in reverse order of the experts for a pool.
    pub fn inputs(&self, seed: u64) -> BTreeMap<Uid, Vec<u8>> {
        let f = self.grouped();
        let mut r = Random::new(seed);
        let mut uniform = move || r.below(1 << 20) as f32 / (1 << 19) as f32 - 1.0;
        let mut out = BTreeMap::new();
        for (label, port, written) in f.ports.all() {
            if written {
                continue;
            }
            let count: i64 = port.dim.iter().product();
            let bytes: Vec<u8> = match label {
                "A" | "B" if self.ab == DType::F4E2M1 => (0..count / 2).map(|_| (uniform() * 128.0) as i8 as u8).collect(),
                "A" | "B" if self.ab == DType::F8E5M2 => {
                    (0..count).map(|_| crate::codec::e5m2::encode(uniform() * 2.0)).collect()
                }
                "A" | "B" => (0..count).map(|_| e4m3::encode(uniform() * 2.0)).collect(),
                "SFA" | "SFB" if self.sf == DType::F8E4M3 => (0..count).map(|_| e4m3::encode(1.5 + uniform())).collect(),
                "SFA" | "SFB" => (0..count).map(|_| e8m0::ONE.wrapping_add((uniform() * 2.0) as i8 as u8)).collect(),
                "C" => (0..count).flat_map(|_| bytes_of(self.c, uniform())).collect(),
                "padded_offsets" => self.ends.iter().flat_map(|e| e.to_ne_bytes()).collect(),
                "norm_const" => self.norm.to_ne_bytes().to_vec(),
                "B_ptrs" | "SFB_ptrs" => {
                    let (experts, sfb) = (self.ends.len() as i64, f.ports.sfb.as_ref());
                    let each = match label {
                        "B_ptrs" => self.n * self.k * i64::from(self.ab.bits()) / 8,
                        _ => sfb.map_or(0, |p| p.dim.iter().product::<i64>() / experts),
                    };
                    (0..experts).rev().flat_map(|e| (e * each).to_ne_bytes()).collect()
                }
                _ => (0..count).flat_map(|_| (1.0 + 0.5 * uniform()).to_ne_bytes()).collect(),
            };
            out.insert(port.uid, bytes);
        }
        out
    }

    /// Runs the CPU row on poisoned outputs; the results by uid.
    pub fn run(&self, inputs: &BTreeMap<Uid, Vec<u8>>) -> Result<BTreeMap<Uid, Vec<u8>>, HostError> {
        let facts = self.facts();
        let plan = crate::grouped_gemm_dsrelu::cpu::lower(&facts, &Knobs::NONE, &Target::Cpu).expect("a plan");
        let f = facts.expect_grouped_gemm();
        let mut results: BTreeMap<Uid, Vec<u8>> = BTreeMap::new();
        for (_, port, _) in f.ports.all().filter(|p| p.2) {
            let count: i64 = port.dim.iter().product();
            results.insert(port.uid, vec![0xa5; (count * i64::from(port.dtype.bits()) / 8) as usize]);
        }
        let mut workspace = vec![[0xa5a5_a5a5u32; 32]; plan.workspace_bytes as usize / 128];
        let mut buffers = HostBuffers {
            inputs: inputs.iter().map(|(u, b)| (*u, &b[..])).collect(),
            outputs: results.iter_mut().map(|(u, b)| (*u, &mut b[..])).collect(),
            workspace: bytemuck::cast_slice_mut(&mut workspace),
        };
        for step in &plan.steps {
            let Step::Host(call) = step else { panic!("a host plan") };
            (call.run)(&facts, &Knobs::NONE, &mut buffers)?;
        }
        Ok(results)
    }
}

fn bytes_of(dtype: DType, x: f32) -> Vec<u8> {
    match dtype {
        DType::F16 => half::f16::from_f32(x).to_ne_bytes().to_vec(),
        DType::BF16 => half::bf16::from_f32(x).to_ne_bytes().to_vec(),
        DType::F8E4M3 => vec![e4m3::encode(x)],
        DType::F8E5M2 => vec![crate::codec::e5m2::encode(x)],
        _ => x.to_ne_bytes().to_vec(),
    }
}
