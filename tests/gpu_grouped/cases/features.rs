//! Weights behind lists, n-major B, D_srelu, columns that are no multiple of 32, amax beside scales: six sets of switches for each kind of
//! input (every set is a kernel to compile), each with six shapes and data that moves against both.

use super::list::INPUTS;
use super::{Case, Data};
use frostgraph::engines::grouped_gemm::{Formula, Weights};
use frostgraph::engines::DType;

/// M, K, ends: an empty expert and one that ends before M; 1,024 experts of which six have rows; one expert; all rows in one of three; an
/// M that is no multiple of 256; eight experts.
fn shapes() -> Vec<(i64, i64, Vec<i32>)> {
    let many = (0..1024).map(|e| 256 * [100, 101, 500, 1000, 1022, 1023].iter().filter(|&&x| x <= e).count() as i32).collect();
    vec![
        (1280, 352, vec![256, 256, 512, 1024]),
        (1536, 96, many),
        (256, 128, vec![256]),
        (768, 1056, vec![0, 768, 768]),
        (600, 160, vec![256, 512]),
        (2048, 64, (1..=8).map(|e| 256 * e).collect()),
    ]
}

const DATA: [Data; 11] = [
    Data::Plain,
    Data::BadEntry,
    Data::Wide,
    Data::NonFinitePayload,
    Data::MisalignedEntry,
    Data::NegativeAlpha,
    Data::ZeroBlocks,
    Data::NanScales,
    Data::NonFiniteC,
    Data::HugeNorm,
    Data::Decreasing,
];

/// A set of switches, with the columns that its shapes take in turn.
struct Set {
    columns: &'static [i64],
    case: Case,
}

/// Nothing but the least that a call has; amax with wide results.
pub fn plain(ab: DType, sf: DType, sf_vec: i64) -> Case {
    let fp4 = ab == DType::F4E2M1;
    Case {
        m: 0,
        n: 0,
        k: 0,
        ends: Vec::new(),
        ab,
        sf,
        sf_vec,
        c: DType::BF16,
        d: if fp4 { DType::BF16 } else { ab },
        formula: Formula::PreactivationG,
        clamp: None,
        compact: false,
        deterministic: false,
        dbias: false,
        amax: fp4,
        d_srelu: false,
        weights: Weights::Dense,
        b_n_major: false,
        cluster: 1,
        data: Data::Plain,
    }
}

fn sets(ab: DType, sf: DType, sf_vec: i64) -> Vec<Set> {
    let fp4 = ab == DType::F4E2M1;
    let base = plain(ab, sf, sf_vec);
    let set = |columns, edit: &dyn Fn(&mut Case)| {
        let mut case = base.clone();
        edit(&mut case);
        Set { columns, case }
    };
    // Every thread has all of its 32 columns or none; and not.
    let whole: &[i64] = &[160, 128, 96, 288];
    let edge: &[i64] = if fp4 { &[136, 72, 264, 8] } else { &[144, 80, 272, 16] };
    if fp4 {
        return vec![
            set(whole, &|c| c.weights = Weights::Pool),
            set(whole, &|c| (c.weights, c.d, c.d_srelu) = (Weights::Addresses, DType::F32, true)),
            set(whole, &|c| (c.d_srelu, c.clamp, c.formula, c.c) = (true, Some(2.5), Formula::PreactivationC, DType::F8E4M3)),
            set(whole, &|c| {
                (c.weights, c.d_srelu, c.d, c.c) = (Weights::Pool, true, DType::F16, DType::F32);
                (c.dbias, c.deterministic) = (true, true);
            }),
            set(edge, &|c| (c.weights, c.d, c.dbias) = (Weights::Addresses, DType::F16, true)),
            set(edge, &|c| {
                (c.d_srelu, c.c, c.formula) = (true, DType::F16, Formula::PreactivationC);
                (c.dbias, c.deterministic) = (true, true);
            }),
            // Rows of 4 values are 16 bytes of f32.
            set(&[132, 4, 60, 260], &|c| (c.d, c.c, c.d_srelu, c.clamp) = (DType::F32, DType::F32, true, Some(2.5))),
        ];
    }
    vec![
        set(whole, &|c| (c.weights, c.d_srelu) = (Weights::Pool, true)),
        set(whole, &|c| {
            (c.weights, c.b_n_major, c.c) = (Weights::Addresses, true, DType::F32);
            (c.amax, c.deterministic) = (true, true);
        }),
        set(whole, &|c| (c.b_n_major, c.dbias, c.clamp, c.c) = (true, true, Some(2.5), DType::F16)),
        set(whole, &|c| {
            (c.weights, c.b_n_major, c.d_srelu) = (Weights::Pool, true, true);
            (c.formula, c.clamp, c.dbias, c.compact) = (Formula::PreactivationC, Some(2.5), true, true);
        }),
        set(edge, &|c| (c.amax, c.dbias, c.compact, c.c) = (true, true, true, DType::F8E5M2)),
        set(edge, &|c| {
            (c.weights, c.d_srelu, c.deterministic) = (Weights::Addresses, true, true);
            (c.c, c.formula) = (DType::F32, Formula::PreactivationC);
        }),
        set(edge, &|c| (c.b_n_major, c.weights, c.d_srelu, c.amax, c.clamp) = (true, Weights::Pool, true, true, Some(2.5))),
    ]
}

/// Data that a case can have: entries need lists, zero blocks and wide exponents need E8M0, one end cannot decrease.
fn fitting(case: &Case, data: Data) -> Data {
    let fits = match data {
        Data::BadEntry | Data::MisalignedEntry => case.weights != Weights::Dense,
        Data::Wide | Data::ZeroBlocks => case.sf == DType::F8E8M0,
        Data::NonFinitePayload => case.ab != DType::F4E2M1,
        Data::HugeNorm => case.quantised(),
        Data::Decreasing => case.ends.len() > 1 && case.ends.len() < 1024,
        // The slope of a saturated clamp is 0 in single precision and not in double: with an infinite C that is NaN against infinity.
        Data::NonFiniteC => case.clamp.is_none() || case.formula == Formula::PreactivationC,
        Data::Plain | Data::NanScales | Data::NegativeAlpha | Data::Unaligned | Data::Beyond => true,
    };
    if fits {
        data
    } else {
        Data::Plain
    }
}

/// The list.
pub fn list() -> Vec<Case> {
    let mut list = Vec::new();
    for (i, (ab, sf, sf_vec)) in INPUTS.into_iter().enumerate() {
        for (x, set) in sets(ab, sf, sf_vec).into_iter().enumerate() {
            for (s, (m, k, ends)) in shapes().into_iter().enumerate() {
                let n = set.columns[(s + x) % set.columns.len()];
                let mut case = Case { m, n, k, ends, ..set.case.clone() };
                case.cluster = if case.fits_cluster() { 2 } else { 1 };
                case.data = fitting(&case, DATA[(s + 4 * x + 3 * i) % DATA.len()]);
                if case.data == Data::Decreasing {
                    case.ends[1] = case.ends[0] - 256;
                }
                list.push(case);
            }
        }
    }
    list
}

/// Pairs of an input or a result type with a kind of weights, a reading of C or a clamp that the sets and the rotation leave out of what both rows serve.
pub fn pairs() -> Vec<Case> {
    use DType::{F16, F32, F4E2M1, F8E4M3, F8E5M2, F8E8M0};
    let (e5m2, fp4, nvfp4) = (plain(F8E5M2, F8E8M0, 32), plain(F4E2M1, F8E8M0, 32), plain(F4E2M1, F8E4M3, 16));
    let c = Formula::PreactivationC;
    let all = [
        Case { weights: Weights::Pool, clamp: Some(2.5), ..e5m2.clone() },
        Case { weights: Weights::Addresses, ..e5m2 },
        Case { weights: Weights::Pool, d: F32, formula: c, ..fp4.clone() },
        Case { weights: Weights::Addresses, d: F16, c: F16, ..fp4 },
        Case { weights: Weights::Addresses, d: F32, ..nvfp4.clone() },
        Case { weights: Weights::Pool, d: F16, formula: c, ..nvfp4 },
    ];
    let shapes = [(1280, 160, 352, vec![256, 256, 512, 1024]), (600, 96, 160, vec![256, 512])];
    all.iter().flat_map(|case| shapes.clone().map(|(m, n, k, ends)| Case { m, n, k, ends, ..case.clone() })).collect()
}
