//! Compiles what the rows of MANIFEST lower to, for every architecture they name, with NVRTC and without a GPU: no spills, no warnings (the
//! serialisation notes among them), shared memory within the device's, parameters as the lowering passes them, and on Hopper no mbarrier told of a
//! read that is still on its way.
//!
//! `cargo test` takes each (row, head-dim flavour, architecture) in its default configuration. Every kernel of the whole GPU case list:
//! `cargo test --release --test nvrtc_sweep -- --ignored --nocapture`, which prints one JSON object a kernel.
#![cfg(feature = "cuda")]

#[path = "nvrtc/arrivals.rs"]
mod arrivals;
#[allow(dead_code, reason = "shared with the GPU program, which uses all of it")]
#[path = "gpu/build/mod.rs"]
mod build;
#[allow(dead_code, reason = "shared with the GPU program, which uses all of it")]
#[path = "gpu/cases/mod.rs"]
mod cases;
#[path = "nvrtc/forward.rs"]
mod forward;
#[allow(dead_code, reason = "shared with the GPU program of the grouped product, which uses all of it")]
#[path = "gpu_grouped/cases/mod.rs"]
mod grouped;
#[allow(dead_code, reason = "shared with the GPU program of the plain grouped product, which uses all of it")]
#[path = "gpu_moe/cases.rs"]
mod moe;
#[allow(dead_code, reason = "shared with the GPU program, which uses all of it")]
#[path = "gpu/plan.rs"]
mod plan;
#[path = "nvrtc/products.rs"]
mod products;
#[path = "nvrtc/qat.rs"]
mod qat;

use cases::{Case, Lens, MaskKind};
use frostgraph::engines::{row_by_name, Arch, Caps, KernelSpec, Launch, LaunchPlan, Step, Target, MANIFEST};
use frostgraph::runtime::{check_launch, compile_kernel, Budget, Cubin, Nvrtc, SearchPath};
use frostgraph::{DType, Device};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

/// Compute capabilities that a CUDA row may name.
const ARCHES: [u32; 9] = [80, 86, 89, 90, 100, 103, 110, 120, 121];

/// False after saying loudly that nothing was tested and how to get NVRTC. In CI that is a failure.
fn have_nvrtc() -> bool {
    match Nvrtc::find(&SearchPath::from_env(), 120) {
        Ok(_) => true,
        Err(e) => {
            assert!(std::env::var_os("CI").is_none(), "CI must have NVRTC: {e}");
            eprintln!("SKIPPED, NOT TESTED: no kernel was compiled, because NVRTC is missing.\n{e}");
            false
        }
    }
}

/// Launches of a case on a described device; none for tiles that its shape does not have.
fn launches(case: &Case, cc: u32) -> Vec<Launch> {
    let device = Device::describe(&format!("sm_{cc}")).unwrap();
    let planned = plan::plan(case, &device).unwrap_or_else(|e| panic!("{case} on sm_{cc}: {e}"));
    let plan::Planned::Ready(planned) = planned else { return Vec::new() };
    let lowered = planned.1.lower().unwrap_or_else(|e| panic!("{case} on sm_{cc}: {e}"));
    lowered.nodes.iter().flat_map(|n| kernels(&n.launches)).collect()
}

/// The kernels that a plan launches.
fn kernels(plan: &LaunchPlan) -> Vec<Launch> {
    let steps = plan.steps.iter();
    steps
        .filter_map(|s| match s {
            Step::Kernel(launch) => Some(launch.clone()),
            Step::Host(_) => None,
        })
        .collect()
}

/// Spilled bytes that a kernel may have: none, but for the forward with two slabs a warp. There all 255 registers are in use, and on some
/// architectures a pointer or two is stored before the tile loop and loaded once a tile; the forms without that were measured slower
/// (`kernels/sdpa/fwd/mma/README.md`). An accumulator would be 64 bytes and more. Likewise one or two addresses in the large tiles of the NVFP4
/// backward, 8 bytes stored and 8 loaded (`kernels/PERFORMANCE.md` section 10).
fn spills(launch: &Launch) -> u32 {
    let has = |define| launch.kernel.defines.contains(&define);
    match launch.kernel.entry {
        "fg_sdpa_fwd_prefill" if has(("FG_M_TILES", 2)) => 32,
        // D_srelu keeps 32 column maxima beside all accumulators (with dbias 184 bytes stored and 212 loaded a tile); the column sums of dbias and the masks of a ragged N leave the math warps up
        // to ten registers short in some combinations: stored and loaded once a tile.
        "fg_grouped_gemm_main" if has(("FG_SRELU", 1)) && has(("FG_DBIAS", 1)) => 400,
        "fg_grouped_gemm_main" if has(("FG_SRELU", 1)) => 320,
        "fg_grouped_gemm_main" if has(("FG_DBIAS", 1)) || has(("FG_N_MAJOR", 1)) || has(("FG_EDGE", 1)) => 96,
        _ if launch.kernel.source == "qat/bwd/mma/main.cu" => 16,
        _ => 0,
    }
}

/// Bytes that the lowering asks for behind what the kernel lays out: the backward's operand of ones is 256 bytes and 128 (order 6: 512) of barriers, which
/// a sanitizer takes for 2048 (`engines/sdpa_bwd/sm90.rs`).
fn behind(launch: &Launch) -> u32 {
    let has = |define| launch.kernel.defines.contains(&define);
    let at_64 = has(("FG_ORDER", 6)) && has(("FG_STAGED", 0));
    let pair = has(("FG_ORDER", 7)) && has(("FG_AHEAD", 0)); // else more lies behind it anyway
    match (launch.kernel.entry == "fg_sdpa_bwd_sm90_main", at_64, pair) {
        (true, true, _) => 2048 - 256 - 512,
        (true, false, true) => 2048 - 256 - 128,
        _ => 0,
    }
}

/// Arrives that may overtake a read: those that free the words of an item, which are written again when one or three more items have been worked on
/// (two headers of the grouped product, four items of the backward's blocks that stay). Not those that free a tile, which TMA fills at once.
fn early_arrivals(launch: &Launch) -> usize {
    let stays = launch.kernel.entry == "fg_sdpa_bwd_sm90_main" && launch.kernel.defines.contains(&("FG_ORDER", 6));
    if stays || launch.kernel.entry == "fg_grouped_gemm_main" {
        2
    } else {
        0
    }
}

/// Everything wrong with one compiled launch.
fn faults(cc: u32, launch: &Launch, cubin: &Cubin) -> Vec<String> {
    let target = Target::describe(cc).unwrap();
    let at = format!("sm_{cc} {} {:?}", launch.kernel.entry, launch.kernel.defines);
    let mut found = Vec::new();
    let budget = cubin.check(&Budget { spill_bytes: spills(launch), ..Budget::strict(&target) }, launch.smem);
    for result in [budget, check_launch(launch, cubin, &target)] {
        if let Err(e) = result {
            found.push(format!("{at}: {e}"));
        }
    }
    // A kernel that states its own shared memory must agree with the lowering.
    if let Some(own) = cubin.constant_u32(&format!("{}_smem", launch.kernel.entry)) {
        if own + behind(launch) != launch.smem {
            found.push(format!("{at}: the lowering asks for {} bytes of shared memory, the kernel for {own}", launch.smem));
        }
    }
    let early = if cc == 90 { arrivals::faults(cubin) } else { Vec::new() };
    if early.len() > early_arrivals(launch) {
        found.extend(early.into_iter().map(|f| format!("{at}: {f}")));
    }
    let threads: u32 = launch.block.iter().product();
    if cubin.usage.registers * threads > 65_536 {
        found.push(format!("{at}: {} registers times {threads} threads exceed the register file", cubin.usage.registers));
    }
    found
}

/// Compiles distinct kernels on all cores and checks every distinct launch shape; the faults, and the number of kernels.
fn sweep(work: Vec<(u32, Launch)>, print: bool) -> (Vec<String>, usize) {
    let mut kernels: BTreeMap<(u32, KernelSpec), Vec<Launch>> = BTreeMap::new();
    for (cc, launch) in work {
        let shapes = kernels.entry((cc, launch.kernel.clone())).or_default();
        if !shapes.iter().any(|l| (l.smem, l.block, l.args.len()) == (launch.smem, launch.block, launch.args.len())) {
            shapes.push(launch);
        }
    }
    let kernels: Vec<_> = kernels.into_iter().collect();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|s| {
        for _ in 0..threads {
            s.spawn(|| loop {
                let Some(((cc, spec), shapes)) = kernels.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
                let list = match compile_kernel(&Target::nvrtc_arch(*cc), spec) {
                    Ok(cubin) => {
                        if print {
                            let u = cubin.usage;
                            println!(
                                r#"{{"arch":"{}","kernel":"{}","defines":{:?},"registers":{},"spills":{},"static_smem":{},"nvrtc":"{}"}}"#,
                                cubin.arch,
                                spec.entry,
                                spec.defines.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>(),
                                u.registers,
                                u.spill_stores + u.spill_loads,
                                u.static_smem,
                                cubin.nvrtc
                            );
                        }
                        shapes.iter().flat_map(|l| faults(*cc, l, &cubin)).collect()
                    }
                    Err(e) => vec![e.to_string()],
                };
                found.lock().unwrap().extend(list);
            });
        }
    });
    let mut found = found.into_inner().unwrap();
    found.sort();
    (found, kernels.len())
}

/// The architectures of a row.
fn arches(arch: Arch) -> Vec<u32> {
    match arch {
        Arch::Cpu => Vec::new(),
        Arch::Sm { lo, hi } => ARCHES.into_iter().filter(|cc| (lo..=hi).contains(cc)).collect(),
    }
}

/// Sweeps, tells how many different kernels that were and how long it took, and fails on every fault; the number.
fn assert_clean(work: Vec<(u32, Launch)>, print: bool) -> usize {
    let start = std::time::Instant::now();
    let (faults, kernels) = sweep(work, print);
    println!("{kernels} kernels in {:.0?}", start.elapsed());
    assert!(faults.is_empty(), "{} faults in {kernels} kernels:\n{}", faults.len(), faults.join("\n"));
    kernels
}

#[test]
fn every_default_configuration_compiles_within_its_budget() {
    if !have_nvrtc() {
        return;
    }
    let mut work = Vec::new();
    for (family, row) in MANIFEST.iter().flat_map(|f| f.rows.iter().map(move |r| (f.name, r))) {
        let Caps::Sdpa(caps) = row.caps else { continue };
        for cc in arches(caps.arch) {
            if family == "sdpa_fwd" || family.starts_with("nvfp4_qat") {
                continue; // below
            }
            let known = family == "sdpa_bwd" && [cases::BWD, cases::BWD_SM90].contains(&row.name);
            assert!(known, "the sweep has no graphs for {}: add them", row.name);
            for &(d_qk, d_v) in caps.head_dims.native {
                let plain = Case { engine: row.name, d_qk, d_v, ..Case::default() };
                work.extend(launches(&plain, cc).into_iter().map(|l| (cc, l)));
                // The busiest switches once on the first and on the named architecture: packed, causal window, relay, grouped heads.
                if cc == 90 || cc == 120 {
                    let lens = Lens::Thd { q: vec![130, 7], kv: vec![130, 31], head_major: false, wide: true };
                    let mask = MaskKind::CausalWindow(33);
                    let rich = Case { lens, mask, deterministic: true, h_kv: 2, dtype: DType::F16, ..plain.clone() };
                    work.extend(launches(&rich, cc).into_iter().map(|l| (cc, l)));
                }
                // A grid of several sections, whose blocks prepare later heads (FG_AHEAD).
                if row.name == cases::BWD_SM90 && d_v <= 128 {
                    for mask in [MaskKind::None, MaskKind::Causal] {
                        let many = Case { b: 4, h_q: 16, h_kv: 16, s_q: 2048, s_kv: 2048, mask, ..plain.clone() };
                        let ahead = launches(&many, cc);
                        assert!(
                            ahead.iter().any(|l| l.kernel.defines.contains(&("FG_AHEAD", 1))),
                            "{many}: nothing is prepared ahead"
                        );
                        work.extend(ahead.into_iter().map(|l| (cc, l)));
                    }
                    // Two blocks of a cluster at 128/128, in a grid of one section.
                    let one = Case { b: 1, s_q: 1024, s_kv: 1024, ..plain };
                    work.extend(launches(&one, cc).into_iter().map(|l| (cc, l)));
                }
            }
        }
    }
    let row = row_by_name(cases::BWD).unwrap();
    assert!(!work.is_empty(), "{} lowers to kernels", row.name);
    assert_clean(work, false);
}

#[test]
fn every_default_forward_configuration_compiles_within_its_budget() {
    if !have_nvrtc() {
        return;
    }
    let mut work = Vec::new();
    for row in MANIFEST.iter().filter(|f| f.name == "sdpa_fwd").flat_map(|f| f.rows) {
        let Caps::Sdpa(caps) = row.caps else { continue };
        for cc in arches(caps.arch) {
            let flavours = caps.head_dims.native.iter();
            work.extend(flavours.flat_map(|&d| forward::work(row, d, cc)).map(|l| (cc, l)));
        }
    }
    assert!(!work.is_empty(), "the forward rows lower to kernels");
    assert_clean(work, false);
}

/// Plans behind the best one: `tune` and `bench --plan all` run them too.
#[test]
fn every_ranked_forward_plan_compiles_within_its_budget() {
    if !have_nvrtc() {
        return;
    }
    let work = forward::every_plan(90).into_iter().map(|l| (90, l)).collect();
    let kernels = assert_clean(work, false);
    assert!(kernels >= 20, "{kernels} kernels");
}

#[test]
fn every_input_of_the_grouped_row_compiles_within_its_budget() {
    if !have_nvrtc() {
        return;
    }
    assert_clean(products::dsrelu_sm90(), false);
}

#[test]
fn every_input_of_the_portable_grouped_rows_compiles_within_its_budget() {
    if !have_nvrtc() {
        return;
    }
    assert_clean(products::dsrelu_portable(), false);
}

#[test]
fn every_form_of_the_plain_grouped_row_compiles_within_its_budget() {
    if !have_nvrtc() {
        return;
    }
    let kernels = assert_clean(products::plain(), false);
    assert!(kernels >= 20, "{kernels} kernels");
}

#[test]
fn every_default_qat_configuration_compiles_within_its_budget() {
    if !have_nvrtc() {
        return;
    }
    let mut work = Vec::new();
    for row in MANIFEST.iter().filter(|f| f.name.starts_with("nvfp4_qat")).flat_map(|f| f.rows) {
        let Caps::Sdpa(caps) = row.caps else { continue };
        for cc in arches(caps.arch) {
            let flavours = caps.head_dims.native.iter();
            work.extend(flavours.flat_map(|&d| qat::work(row, d, cc)).map(|l| (cc, l)));
        }
    }
    assert!(!work.is_empty(), "the QAT rows lower to kernels");
    assert_clean(work, false);
}

#[test]
#[ignore = "the full product: about half an hour on two cores"]
fn every_kernel_of_the_case_list_compiles_within_its_budget() {
    assert!(have_nvrtc(), "this command is about NVRTC");
    let mut work = Vec::new();
    for case in [cases::backward::all(), cases::forward::all()].concat() {
        let Some(row) = row_by_name(case.engine) else { continue };
        let Caps::Sdpa(caps) = row.caps else { continue };
        for cc in arches(caps.arch) {
            work.extend(launches(&case, cc).into_iter().map(|l| (cc, l)));
        }
    }
    assert_clean(work, true);
}
