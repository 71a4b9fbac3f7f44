//! Every kind of input with every shape, and outputs, switches and data that rotate through them.

use super::{Case, Data};
use frostgraph::engines::grouped_gemm::{Formula, Weights};
use frostgraph::engines::DType;

pub const INPUTS: [(DType, DType, i64); 5] = [
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
pub fn list() -> Vec<Case> {
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
                let mut case = Case {
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
                    d_srelu: false,
                    weights: Weights::Dense,
                    b_n_major: false,
                    cluster: 1,
                    data,
                };
                // Most sets of switches that clusters have.
                case.cluster = if case.fits_cluster() && v % 4 < 3 { 2 } else { 1 };
                list.push(case);
            }
        }
    }
    list
}
