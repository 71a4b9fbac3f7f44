//! Facts of a case, as the analyzer would find them.

use super::{Case, Data};
use frostgraph::engines::grouped_gemm::{Formula, GemmPort, GroupedGemmFacts, GroupedGemmPorts, Weights};
use frostgraph::engines::{DType, Feature, FeatureSet, Uid};

impl Case {
    /// Whether the node writes a status word.
    pub fn has_status(&self) -> bool {
        let faulty =
            matches!(self.data, Data::Unaligned | Data::Decreasing | Data::Beyond | Data::BadEntry | Data::MisalignedEntry);
        faulty || self.k == 96
    }

    /// Bytes between two experts in a pool: offsets are multiples of 16 and nothing more.
    pub const GAP: i64 = 48;

    /// Bytes of one expert's payload and scales of B.
    pub fn expert_bytes(&self) -> [i64; 2] {
        let up = |x: i64, by: i64| x.div_euclid(by) + i64::from(x % by != 0);
        let atoms = up(self.n, 128) * up(up(self.k, self.sf_vec), 4);
        [self.n * self.k * i64::from(self.ab.bits()) / 8, atoms * 512]
    }

    /// Bytes of the pools.
    pub fn pool_bytes(&self) -> [i64; 2] {
        self.expert_bytes().map(|b| (b + Case::GAP) * self.ends.len() as i64)
    }

    /// What the oracle is asked: weights in a pool where the device has them at addresses.
    pub fn oracle_facts(&self) -> GroupedGemmFacts {
        let pool = if self.weights == Weights::Addresses { Weights::Pool } else { self.weights };
        Case { weights: pool, ..self.clone() }.facts()
    }

    /// What the graph is.
    pub fn facts(&self) -> GroupedGemmFacts {
        let (m, n, k, l) = (self.m, self.n, self.k, self.ends.len() as i64);
        let port = |uid: Uid, name: &str, dtype: DType, dim: Vec<i64>| {
            // Innermost second of the operands' three extents; the kernels take layouts as checked.
            let stride = vec![1; dim.len()];
            Some(GemmPort { uid, name: name.into(), dtype, dim, stride, alignment: 16, is_virtual: false })
        };
        let up = |x: i64, by: i64| x.div_euclid(by) + i64::from(x % by != 0);
        let scales = |uid, name: &str, rows, columns, vec, slices| {
            port(uid, name, self.sf, vec![slices, up(rows, 128), up(up(columns, vec), 4), 32, 4, 4])
        };
        let when = |yes: bool, port: Option<GemmPort>| port.filter(|_| yes);
        let q = self.quantised();
        let ports = GroupedGemmPorts {
            a: port(1, "A", self.ab, vec![m, k, 1]),
            b: match self.weights {
                Weights::Dense => port(2, "B", self.ab, vec![n, k, l]),
                Weights::Pool => port(2, "B", DType::U8, vec![self.pool_bytes()[0]]),
                Weights::Addresses => None,
            },
            c: port(3, "C", self.c, vec![m, n, 1]),
            sfa: scales(4, "SFA", m, k, self.sf_vec, 1),
            sfb: match self.weights {
                Weights::Dense => scales(5, "SFB", n, k, self.sf_vec, l),
                Weights::Pool => port(5, "SFB", DType::U8, vec![self.pool_bytes()[1]]),
                Weights::Addresses => None,
            },
            b_ptrs: when(self.weights != Weights::Dense, port(6, "B_ptrs", DType::I64, vec![l])),
            sfb_ptrs: when(self.weights != Weights::Dense, port(7, "SFB_ptrs", DType::I64, vec![l])),
            padded_offsets: port(8, "padded_offsets", DType::I32, vec![l]),
            alpha: port(9, "alpha", DType::F32, vec![l]),
            prob: port(10, "prob", DType::F32, vec![m, 1, 1]),
            norm_const: when(q, port(11, "norm_const", DType::F32, vec![1])),
            d_row: port(21, "D_row", self.d, vec![m, n, 1]),
            d_col: port(22, "D_col", self.d, vec![m, n, 1]),
            d_srelu: when(self.d_srelu, port(23, "D_srelu", self.d, vec![m, n, 1])),
            dprob: port(24, "dprob", DType::F32, vec![m, 1, 1]),
            dbias: when(self.dbias, port(25, "dbias", DType::BF16, vec![l, n, 1])),
            amax: when(self.amax, port(26, "amax", DType::F32, vec![l, 1])),
            sfd_row: when(q, scales(27, "SFD_row", m, n, 32, 1)),
            sfd_col: when(q, scales(28, "SFD_col", n, m, 32, 1)),
            sfd_col_d_srelu: when(q && self.d_srelu, scales(29, "SFD_col_d_srelu", n, m, 32, 1)),
            status: when(self.has_status(), port(30, "status", DType::I32, vec![1])),
        };
        let mut features = FeatureSet::EMPTY;
        features.set_if(Feature::Deterministic, self.deterministic);
        features.set_if(Feature::DBias, self.dbias);
        features.set_if(Feature::OutputScales, q);
        features.set_if(Feature::DiscreteColSfd, q && self.compact);
        features.set_if(Feature::Amax, self.amax);
        features.set_if(Feature::TanhClamp, self.clamp.is_some());
        features.set_if(Feature::PreactivationC, self.formula == Formula::PreactivationC);
        features.set_if(Feature::DSrelu, self.d_srelu);
        features.set_if(Feature::PooledWeights, self.weights == Weights::Pool);
        features.set_if(Feature::WeightAddresses, self.weights == Weights::Addresses);
        features.set_if(Feature::NMajorB, self.b_n_major);
        features.set_if(Feature::StatusWord, self.has_status());
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
            discrete_col_sfd: q && self.compact,
            quantised: q,
            deterministic: self.deterministic,
            features,
            ports,
        }
    }
}
