//! The launches of the grouped products, by compute capability.

use crate::{grouped, kernels, moe};
use frostgraph::engines::moe_grouped_matmul::MoeMode;
use frostgraph::engines::{family_of, row_by_name, Facts, Knobs, Launch, Target};
use frostgraph::DType;
use std::collections::BTreeMap;

/// The Hopper row: every kind of input with its plainest and its richest switches.
pub fn dsrelu_sm90() -> Vec<(u32, Launch)> {
    let row = row_by_name("grouped_gemm_dsrelu_sm90").expect("a row of MANIFEST");
    let target = Target::describe(90).expect("a known device");
    let list: Vec<grouped::Case> = grouped::all().into_iter().map(|c| c.1).collect();
    let mut kinds: BTreeMap<String, Vec<&grouped::Case>> = BTreeMap::new();
    list.iter().for_each(|c| kinds.entry(format!("{} {}/{} {}", c.ab, c.sf, c.sf_vec, c.cluster)).or_default().push(c));
    assert_eq!(kinds.len(), 8, "five kinds by single CTAs, FP4 in clusters too");
    let switches = |c: &&&grouped::Case| {
        let plain = u32::from(c.dbias) + u32::from(c.deterministic) + u32::from(c.clamp.is_some()) + u32::from(c.compact);
        plain + 2 * u32::from(c.d_srelu) + u32::from(c.b_n_major) + u32::from(c.n % 32 != 0)
    };
    let mut work = Vec::new();
    for cases in kinds.values() {
        for case in [cases.iter().min_by_key(switches), cases.iter().max_by_key(switches)].into_iter().flatten() {
            let facts = Facts::GroupedGemm(Box::new(case.facts()));
            let plan = (row.lower)(&facts, &case.knobs(), &target).unwrap_or_else(|d| panic!("{case}: {d}"));
            work.extend(kernels(&plan).into_iter().map(|l| (90, l)));
        }
    }
    work
}

/// The portable rows: every kind of input with its plainest and its richest switches, on each of their architectures; with hardware scales where they exist.
pub fn dsrelu_portable() -> Vec<(u32, Launch)> {
    let list: Vec<grouped::Case> = grouped::all().into_iter().map(|c| c.1).collect();
    let mut work = Vec::new();
    for (name, arches) in [("grouped_gemm_dsrelu_mma", &[90, 100, 103, 120][..]), ("grouped_gemm_dsrelu_sm120", &[120, 121][..])]
    {
        let row = row_by_name(name).expect("a row of MANIFEST");
        let family = family_of(row.id).expect("a family");
        for &cc in arches {
            let target = Target::describe(cc).expect("a known device");
            let mut kinds: BTreeMap<String, Vec<(u32, Vec<Launch>)>> = BTreeMap::new();
            for case in &list {
                let facts = Facts::GroupedGemm(Box::new(case.facts()));
                if (family.mismatch)(row, &facts, &Knobs::NONE, &target).is_some() {
                    continue;
                }
                let plan = (row.lower)(&facts, &Knobs::NONE, &target).unwrap_or_else(|d| panic!("{case}: {d}"));
                let switches = u32::from(case.dbias) + u32::from(case.deterministic) + u32::from(case.clamp.is_some());
                kinds.entry(format!("{} {}/{}", case.ab, case.sf, case.sf_vec)).or_default().push((switches, kernels(&plan)));
            }
            assert_eq!(kinds.len(), 4, "{name}");
            for mut cases in kinds.into_values() {
                cases.sort_by_key(|c| c.0);
                let ends = [cases.first(), cases.last()].into_iter().flatten();
                work.extend(ends.flat_map(|c| c.1.clone()).map(|l| (cc, l)));
            }
        }
    }
    work
}

/// The plain product: every mode with every form of offsets and weights, every output in mode none, every kind of narrow operands.
pub fn plain() -> Vec<(u32, Launch)> {
    let row = row_by_name("moe_grouped_matmul_sm90").expect("a row of MANIFEST");
    let target = Target::describe(90).expect("a known device");
    let few = |c: &&moe::Case| {
        let wide = c.input == DType::BF16 && (c.output == DType::BF16 || c.mode == MoeMode::None);
        wide || !c.input.is_half() && c.mode == MoeMode::None && c.routed < 200
    };
    let lower = |case: &moe::Case| {
        let facts = Facts::Moe(Box::new(case.facts()));
        let plan = (row.lower)(&facts, &Knobs::NONE, &target).unwrap_or_else(|d| panic!("{case}: {d}"));
        kernels(&plan)
    };
    moe::all().iter().filter(few).flat_map(lower).map(|l| (90, l)).collect()
}
