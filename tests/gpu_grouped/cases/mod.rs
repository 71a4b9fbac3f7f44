//! One problem of the grouped product, and the lists of them.

mod facts;
mod features;
mod list;
mod named;

use frostgraph::engines::grouped_gemm::{Formula, Weights};
use frostgraph::engines::{DType, Knob, Knobs};

/// Every case, with a name where it is a special case of the contract: the rotation through all plain switches, the features that it
/// leaves out, the named ones, the pairs that all of these leave out.
pub fn all() -> Vec<(String, Case)> {
    let unnamed = list::list().into_iter().chain(features::list());
    let pairs = features::pairs().into_iter().map(|c| (String::new(), c));
    unnamed.map(|c| (String::new(), c)).chain(named::named()).chain(pairs).collect()
}

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
    /// NaN, and infinities where the type has them, in a row of A and a column of B.
    NonFinitePayload,
    /// C of one row is infinite, NaN in another.
    NonFiniteC,
    /// The list entry of the last expert with rows leads outside the pool, or is null.
    BadEntry,
    /// The list entry of the last expert with rows is no multiple of 16.
    MisalignedEntry,
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
    pub d_srelu: bool,
    pub weights: Weights,
    pub b_n_major: bool,
    /// CTAs of a cluster: 1 or 2 (`TILE_CGA_M`).
    pub cluster: i64,
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
            (self.d_srelu, "D_srelu"),
            (self.weights == Weights::Pool, "pool"),
            (self.weights == Weights::Addresses, "addresses"),
            (self.b_n_major, "n-major B"),
            (self.cluster == 2, "clusters of two"),
        ];
        flags.iter().filter(|x| x.0).try_for_each(|x| write!(f, ", {}", x.1))?;
        write!(f, ", {:?}", self.data)
    }
}

impl Case {
    pub fn knobs(&self) -> Knobs {
        Knobs::new(&[(Knob::TileCgaM, self.cluster)])
    }

    /// Whether a cluster of two has all that the case asks for.
    pub fn fits_cluster(&self) -> bool {
        self.ab == DType::F4E2M1 && !self.d_srelu && self.c.bits() == self.d.bits() && !(self.clamp.is_some() && self.dbias)
    }

    pub fn quantised(&self) -> bool {
        self.d.is_fp8()
    }

    /// Experts that have rows when every end is good.
    pub fn last_expert(&self) -> usize {
        (0..self.ends.len()).rev().find(|&e| self.ends[e] > e.checked_sub(1).map_or(0, |b| self.ends[b])).unwrap_or(0)
    }
}
