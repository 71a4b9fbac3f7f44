//! The case list: every kind of input with every shape, and outputs, switches and data that rotate through them.

use frostgraph::engines::grouped_gemm::{Formula, GemmPort, GroupedGemmFacts, GroupedGemmPorts, Weights};
use frostgraph::engines::{DType, Feature, FeatureSet, Uid};

/// What is special about the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// Scales within a few powers of two of 1.
    Plain,
    /// As plain, with a tenth of A's and B's E8M0 scales 0, as quantisers write for blocks of zeros; those blocks are zeros.
    ZeroBlocks,
    /// E8M0 scales from 2^-70 to 2^19: further apart than f16 can tell (the bf16 loop).
    Wide,
    /// One NaN scale in A and one in B.
    NanScales,
    /// Every second expert's alpha is negative.
    NegativeAlpha,
    /// A norm that pushes scales to their largest.
    HugeNorm,
    /// The second expert's end is no multiple of 256.
    Unaligned,
    /// The ends decrease.
    Decreasing,
    /// The last end lies beyond M.
    Beyond,
}

/// One problem.
#[derive(Debug, Clone)]
pub struct Case {
    pub m: i64,
    pub n: i64,
    pub k: i64,
    pub ends: Vec<i32>,
    pub ab: DType,
    pub sf: DType,
    pub sf_vec: i64,
    pub c: DType,
    pub d: DType,
    pub formula: Formula,
    pub clamp: Option<f32>,
    pub compact: bool,
    pub deterministic: bool,
    pub dbias: bool,
    pub amax: bool,
    pub data: Data,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} {}/{} {}x{}x{} ends {:?} C {} D {}",
            self.ab, self.sf, self.sf_vec, self.m, self.n, self.k, self.ends, self.c, self.d
        )?;
        let flags = [
            (self.formula == Formula::PreactivationC, "C is the pre-activation"),
            (self.clamp.is_some(), "clamp"),
            (self.compact, "discrete"),
            (self.deterministic, "deterministic"),
            (self.dbias, "dbias"),
            (self.amax, "amax"),
        ];
        flags.iter().filter(|x| x.0).try_for_each(|x| write!(f, ", {}", x.1))?;
        write!(f, ", {:?}", self.data)
    }
}

const INPUTS: [(DType, DType, i64); 5] = [
    (DType::F8E4M3, DType::F8E8M0, 32),
    (DType::F8E5M2, DType::F8E8M0, 32),
    (DType::F4E2M1, DType::F8E4M3, 16),
    (DType::F4E2M1, DType::F8E8M0, 16),
    (DType::F4E2M1, DType::F8E8M0, 32),
];
const C: [DType; 5] = [DType::BF16, DType::F32, DType::F16, DType::F8E4M3, DType::F8E5M2];
const WIDE_D: [DType; 3] = [DType::BF16, DType::F32, DType::F16];
const FP8_D: [DType; 2] = [DType::F8E4M3, DType::F8E5M2];
const DATA: [Data; 10] = [
    Data::Plain,
    Data::ZeroBlocks,
    Data::Wide,
    Data::Plain,
    Data::NanScales,
    Data::NegativeAlpha,
    Data::HugeNorm,
    Data::Unaligned,
    Data::Decreasing,
    Data::Beyond,
];

/// M, N, K, ends: one tile; a partial column tile; an empty expert; a first empty expert, a K that ends within an atom; a last expert that
/// ends before M; all rows in one expert; eight experts; an M that is no multiple of 256; one row block, more columns than SMs share.
fn shapes() -> Vec<(i64, i64, i64, Vec<i32>)> {
    vec![
        (256, 128, 128, vec![256]),
        (512, 160, 96, vec![256, 512]),
        (1024, 256, 512, vec![256, 256, 768, 1024]),
        (768, 128, 1952, vec![0, 512, 768]),
        (1280, 96, 320, vec![256, 256, 256, 1024]),
        (1024, 384, 256, vec![0, 1024, 1024]),
        (2048, 128, 64, (1..=8).map(|e| 256 * e).collect()),
        (600, 224, 160, vec![256, 512]),
        (256, 4096, 128, vec![256, 256]),
    ]
}

/// The list.
pub fn all() -> Vec<Case> {
    let mut list = Vec::new();
    for (i, (ab, sf, sf_vec)) in INPUTS.into_iter().enumerate() {
        for (s, (m, n, k, ends)) in shapes().into_iter().enumerate() {
            for v in 0..10usize {
                // Ten sets of switches for each kind of input (every set is a kernel to compile), each with every shape; data moves against both.
                let x = v + 7 * i;
                let fp4 = ab == DType::F4E2M1;
                let d = if fp4 { WIDE_D[v % 3] } else { FP8_D[(v + i) % 2] };
                let mut data = DATA[(v + 3 * s) % 10];
                if sf == DType::F8E4M3 && matches!(data, Data::ZeroBlocks | Data::Wide) {
                    data = Data::Plain;
                }
                if matches!(data, Data::Unaligned | Data::Decreasing) && ends.len() < 2 {
                    data = Data::Plain;
                }
                let mut ends = ends.clone();
                match data {
                    Data::Unaligned => ends[1] += 16,
                    Data::Decreasing => ends[1] = ends[0] - 256,
                    Data::Beyond => *ends.last_mut().expect("an expert") = (m as i32 / 256 + 1) * 256,
                    _ => {}
                }
                list.push(Case {
                    m,
                    n,
                    k,
                    ends,
                    ab,
                    sf,
                    sf_vec,
                    c: C[x % 5],
                    d,
                    formula: if x % 3 == 1 { Formula::PreactivationC } else { Formula::PreactivationG },
                    clamp: (x % 4 == 2).then_some(2.5),
                    compact: !fp4 && x % 2 == 1,
                    deterministic: (x / 2) % 2 == 1,
                    dbias: x % 5 < 2,
                    amax: fp4 && x % 7 != 3,
                    data,
                });
            }
        }
    }
    list
}

impl Case {
    pub fn quantised(&self) -> bool {
        matches!(self.d, DType::F8E4M3 | DType::F8E5M2)
    }

    /// Rows that the good experts own.
    pub fn has_status(&self) -> bool {
        matches!(self.data, Data::Unaligned | Data::Decreasing | Data::Beyond) || self.k == 96
    }

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
            b: port(2, "B", self.ab, vec![n, k, l]),
            c: port(3, "C", self.c, vec![m, n, 1]),
            sfa: scales(4, "SFA", m, k, self.sf_vec, 1),
            sfb: scales(5, "SFB", n, k, self.sf_vec, l),
            padded_offsets: port(8, "padded_offsets", DType::I32, vec![l]),
            alpha: port(9, "alpha", DType::F32, vec![l]),
            prob: port(10, "prob", DType::F32, vec![m, 1, 1]),
            norm_const: when(q, port(11, "norm_const", DType::F32, vec![1])),
            d_row: port(21, "D_row", self.d, vec![m, n, 1]),
            d_col: port(22, "D_col", self.d, vec![m, n, 1]),
            dprob: port(24, "dprob", DType::F32, vec![m, 1, 1]),
            dbias: when(self.dbias, port(25, "dbias", DType::BF16, vec![l, n, 1])),
            amax: when(self.amax, port(26, "amax", DType::F32, vec![l, 1])),
            sfd_row: when(q, scales(27, "SFD_row", m, n, 32, 1)),
            sfd_col: when(q, scales(28, "SFD_col", n, m, 32, 1)),
            status: when(self.has_status(), port(30, "status", DType::I32, vec![1])),
            ..GroupedGemmPorts::default()
        };
        let mut features = FeatureSet::EMPTY;
        features.set_if(Feature::Deterministic, self.deterministic);
        features.set_if(Feature::DBias, self.dbias);
        features.set_if(Feature::OutputScales, q);
        features.set_if(Feature::DiscreteColSfd, q && self.compact);
        features.set_if(Feature::Amax, self.amax);
        features.set_if(Feature::TanhClamp, self.clamp.is_some());
        features.set_if(Feature::PreactivationC, self.formula == Formula::PreactivationC);
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
            weights: Weights::Dense,
            b_n_major: false,
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
