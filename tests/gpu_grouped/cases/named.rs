//! The special cases of the contract, each under a name of its own.

use super::features::plain;
use super::{Case, Data};
use frostgraph::engines::grouped_gemm::{Formula, Weights};
use frostgraph::engines::DType;

/// Name and case, each for MXFP8 and NVFP4 where both have it.
pub fn named() -> Vec<(String, Case)> {
    let mut list = Vec::new();
    for (ab, sf, vec) in [(DType::F8E4M3, DType::F8E8M0, 32), (DType::F4E2M1, DType::F8E4M3, 16)] {
        let base = Case { m: 1024, n: 160, k: 352, ends: vec![256, 512, 1024], dbias: true, ..plain(ab, sf, vec) };
        let e5m2 = Case { ab: DType::F8E5M2, d: DType::F8E5M2, ..base.clone() };
        let with = |edit: &dyn Fn(&mut Case)| {
            let mut case = base.clone();
            edit(&mut case);
            case
        };
        let ends = |ends: &[i32]| with(&|c| c.ends = ends.to_vec());
        let mut own = vec![
            ("empty experts at the start, in the middle and at the end", ends(&[0, 0, 256, 256, 256, 1024, 1024, 1024])),
            ("one expert", ends(&[1024])),
            ("all rows in one expert", ends(&[0, 0, 1024, 1024])),
            ("no rows in any expert", ends(&[0, 0, 0])),
            ("the last expert ends before M", ends(&[256, 512, 768])),
            ("the last expert ends before an M that is no multiple of 256", with(&|c| (c.m, c.ends) = (1000, vec![256, 768]))),
            ("ends that are not monotone", with(&|c| (c.data, c.ends) = (Data::Decreasing, vec![512, 256, 1024]))),
            ("an end below zero", with(&|c| (c.data, c.ends) = (Data::Decreasing, vec![-256, 256, 1024]))),
            ("ends that are no multiples of 256", with(&|c| (c.data, c.ends) = (Data::Unaligned, vec![256, 600, 1024]))),
            ("an end beyond M", with(&|c| (c.data, c.ends) = (Data::Beyond, vec![256, 512, 1 << 30]))),
            ("amax of experts without rows stays -inf", with(&|c| (c.amax, c.ends) = (true, vec![0, 256, 256, 1024, 1024]))),
            ("NaN scales", with(&|c| c.data = Data::NanScales)),
            ("C with infinities and NaN", with(&|c| (c.data, c.amax) = (Data::NonFiniteC, true))),
            ("weights of each expert at a device address", with(&|c| c.weights = Weights::Addresses)),
            ("weights of each expert at an offset into a pool", with(&|c| c.weights = Weights::Pool)),
            ("a list entry outside the pool", with(&|c| (c.weights, c.data) = (Weights::Pool, Data::BadEntry))),
            ("a null address", with(&|c| (c.weights, c.data) = (Weights::Addresses, Data::BadEntry))),
            ("a list entry that is no multiple of 16", with(&|c| (c.weights, c.data) = (Weights::Pool, Data::MisalignedEntry))),
            (
                "1,024 experts with rows each",
                with(&|c| {
                    (c.m, c.n, c.k) = (1024 * 256, 16, 32);
                    c.ends = (1..=1024).map(|e| 256 * e).collect();
                    c.weights = Weights::Pool;
                }),
            ),
            ("the other reading: C is the pre-activation", with(&|c| (c.formula, c.d_srelu) = (Formula::PreactivationC, true))),
        ];
        if ab == DType::F8E4M3 {
            own.extend([
                ("exponents that f16 cannot span", with(&|c| c.data = Data::Wide)),
                ("blocks of zeros with scale 0", with(&|c| c.data = Data::ZeroBlocks)),
                ("results saturate under the largest scale", with(&|c| c.data = Data::HugeNorm)),
                ("NaN in payloads", with(&|c| c.data = Data::NonFinitePayload)),
                ("NaN and infinities in payloads", Case { data: Data::NonFinitePayload, ..e5m2 }),
                ("n-major weights at addresses", with(&|c| (c.weights, c.b_n_major) = (Weights::Addresses, true))),
                ("n-major weights in the bf16 loop", with(&|c| (c.b_n_major, c.data) = (true, Data::Wide))),
            ]);
        }
        // The same in clusters, and what only they do.
        let fits = own.iter().filter(|(_, case)| case.fits_cluster());
        let mut clusters: Vec<(&str, Case)> = fits.map(|(name, case)| (*name, Case { cluster: 2, ..case.clone() })).collect();
        if ab == DType::F4E2M1 {
            clusters.extend([
                ("tiles split along k", with(&|c| (c.cluster, c.m, c.n, c.k, c.ends) = (2, 512, 512, 2048, vec![256, 512]))),
                (
                    "a tile split along k, its second half behind N",
                    with(&|c| (c.cluster, c.m, c.n, c.k, c.ends) = (2, 256, 96, 1120, vec![256])),
                ),
            ]);
        }
        own.extend(clusters);
        list.extend(own.into_iter().map(|(name, case)| (format!("{name} ({ab})"), case)));
    }
    list
}
