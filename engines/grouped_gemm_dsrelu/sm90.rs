//! Lowers `grouped_gemm_dsrelu_sm90`: prep, main, and finish where sums were left in slots.

use crate::grouped_gemm::{Formula, GemmPort, GroupedGemmFacts, Weights, MAX_EXPERTS};
use crate::sdpa::arith::{ceil_div, product};
use crate::sdpa::params::Params;
use crate::{Arg, Base, DType, Decline, DeclineCode as Code, Facts, KernelSpec, Knobs, Launch, LaunchPlan, Row, Step, Target};

const PREP: [&str; 3] = ["prep", "grouped_gemm/sm90/prep.cu", "fg_grouped_gemm_prep"];
const MAIN: [&str; 3] = ["main", "grouped_gemm/sm90/main.cu", "fg_grouped_gemm_main"];
const FINISH: [&str; 3] = ["finish", "grouped_gemm/sm90/finish.cu", "fg_grouped_gemm_finish"];

/// Kernel sources of the row.
pub const SOURCES: &[&str] = &[FINISH[1], MAIN[1], PREP[1]];

/// Rows and columns of a tile of D, and k of a pipeline stage.
const TILE: [i64; 3] = [256, 128, 128];
/// Rows of D that a column scale and a partial sum of dbias cover.
const BLOCK: i64 = 32;
/// Threads of every kernel, but for prep where lines of scales are short.
const THREADS: u32 = 512;
/// Atoms of a line up to which prep gives it one thread: its many blocks then cost less than a long line in few threads would.
const SHORT_LINE: i64 = 24;
/// Rows of dprob that one block of `finish` sums.
const FINISH_ROWS: i64 = 256;

/// What the launches are made of.
struct Plan<'a> {
    f: &'a GroupedGemmFacts,
    /// Blocks of 128 rows of A, and of 128 columns of all experts.
    blocks: [i64; 2],
    /// Column tiles of D.
    tiles: i64,
    sm_count: u32,
    smem: u32,
}

/// Indices of the workspace regions.
struct Regions {
    fields: usize,
    row_exp: usize,
    row_flag: usize,
    col_exp: usize,
    col_top: usize,
    col_flag: usize,
    head: usize,
    table: usize,
    slots: Option<usize>,
    partial: Option<usize>,
}

impl Plan<'_> {
    fn fp4(&self) -> bool {
        self.f.ab == DType::F4E2M1
    }

    /// Bytes of `k` values.
    fn k_bytes(&self, k: i64) -> i64 {
        if self.fp4() {
            k / 2
        } else {
            k
        }
    }

    /// Shared memory of main, as `main_config.cuh` lays it out: raw stages, the ring of 16-bit B, two headers, barriers, alignment.
    fn smem(f: &GroupedGemmFacts) -> u32 {
        let fp4 = f.ab == DType::F4E2M1;
        let (row, stages) = if fp4 { (64, 5) } else { (128, 3) };
        let scales = 3 * 512 * if f.sf_vec == 16 { 2 } else { 1 };
        let stage = u32::div_ceil((TILE[0] + TILE[1]) as u32 * row + scales, 1024) * 1024;
        stages * stage + 4 * 16_384 + 2 * 1472 + 256 + 1024
    }

    fn regions(&self, plan: &mut LaunchPlan) -> Option<Regions> {
        let f = self.f;
        let [rows, cols] = self.blocks;
        let atoms = ceil_div(ceil_div(f.k, f.sf_vec), 4);
        let normalised = if f.sf == DType::F8E8M0 { product(&[rows, atoms, 512])? } else { 0 };
        let mut region = |name, bytes: Option<i64>| plan.region(name, u64::try_from(bytes?).ok()?);
        Some(Regions {
            fields: region("fields", Some(normalised))?,
            // Main reads whole tiles of 256 rows.
            row_exp: region("row_exp", product(&[ceil_div(rows, 2), TILE[0]]))?,
            row_flag: region("row_flag", product(&[rows, 4]))?,
            col_exp: region("col_exp", product(&[cols, TILE[1]]))?,
            col_top: region("col_top", product(&[cols, 4]))?,
            col_flag: region("col_flag", product(&[cols, 4]))?,
            head: region("head", Some(16))?,
            table: region("table", product(&[f.m / TILE[0], 16]))?,
            slots: if f.deterministic { Some(region("dprob_slots", product(&[self.tiles, f.m, 4]))?) } else { None },
            partial: if f.ports.dbias.is_some() { Some(region("dbias_partial", product(&[f.m / BLOCK, f.n, 4]))?) } else { None },
        })
    }
}

/// Refuses what the kernels cannot serve: extents and their limits, layouts, pairs of types, operands that are not there.
fn rules<'a>(row: &Row, f: &'a GroupedGemmFacts, target: &Target) -> Result<Plan<'a>, Decline> {
    let refuse = |code, fact: String, reason: String| Err(row.decline(code, fact, reason));
    let &Target::Cuda { sm_count, smem_optin, total_memory, .. } = target else {
        return refuse(Code::Arch, "device=cpu".into(), "the device is cpu; this row serves CUDA devices".into());
    };
    if f.n % BLOCK != 0 {
        let reason = format!("D has {} columns; this row serves multiples of {BLOCK}", f.n);
        return refuse(Code::Geometry, format!("N={}", f.n), reason);
    }
    let step = if f.ab == DType::F4E2M1 { 32 } else { 16 };
    if f.k % step != 0 {
        let reason = format!("K is {}; this row serves multiples of {step}, 16 bytes of {}", f.k, f.ab);
        return refuse(Code::Geometry, format!("K={}", f.k), reason);
    }
    let (tiles, limit) = (ceil_div(f.n, TILE[1]), i64::from(i32::MAX));
    let blocks = [ceil_div(f.m, 128), f.experts.saturating_mul(tiles)];
    let counts = [
        ("M", f.m),
        ("N", f.n),
        ("K", f.k),
        ("tiles", ceil_div(f.m, TILE[0]).saturating_mul(tiles)),
        ("column blocks", blocks[1]),
    ];
    if let Some((name, n)) = counts.into_iter().find(|c| c.1 >= limit / 2) {
        return refuse(Code::Geometry, format!("{name}={n}"), format!("{name} is {n}; this row serves up to {}", limit / 2 - 1));
    }
    if !(1..=MAX_EXPERTS).contains(&f.experts) {
        let reason = format!("there are {} experts; this row serves 1 to {MAX_EXPERTS}", f.experts);
        return refuse(Code::Geometry, format!("experts={}", f.experts), reason);
    }
    if f.n.saturating_mul(f.k) >= 1 << 40 {
        let reason = "one expert's weights take 2^40 bytes or more; a tensor map's strides end there".to_string();
        return refuse(Code::Geometry, "expert=2^40".into(), reason);
    }
    let fp8 = matches!(f.d, DType::F8E4M3 | DType::F8E5M2);
    if fp8 != f.quantised {
        let reason = format!(
            "D is {} with{} scales; this row serves FP8 with them and wider types without",
            f.d,
            if f.quantised { "" } else { "out" }
        );
        return refuse(Code::DType, format!("D={}", f.d), reason);
    }
    if fp8 && f.ports.amax.is_some() {
        let reason = "amax of block-scaled results is asked for; this row serves it for wider types".to_string();
        return refuse(Code::Feature, "feature=amax with scales".into(), reason);
    }
    let p = &f.ports;
    let needed = [
        ("A", &p.a),
        ("B", &p.b),
        ("C", &p.c),
        ("SFA", &p.sfa),
        ("SFB", &p.sfb),
        ("D_row", &p.d_row),
        ("D_col", &p.d_col),
        ("dprob", &p.dprob),
    ];
    if let Some((name, _)) = needed.iter().find(|n| n.1.is_none()).filter(|_| f.weights == Weights::Dense) {
        return refuse(Code::Feature, format!("{name}=absent"), format!("{name} is not there; this row needs it"));
    }
    if let Some((name, port, _)) = p.all().find(|(name, port, _)| tma(name) && port.alignment % 16 != 0) {
        let reason = format!("{name} is aligned to {} bytes; this row serves 16", port.alignment);
        return refuse(Code::Layout, format!("{name}.alignment={}", port.alignment), reason);
    }
    let smem = Plan::smem(f);
    if smem > smem_optin {
        let reason = format!("the kernel needs {smem} bytes of shared memory; the device grants {smem_optin}");
        return refuse(Code::Resources, format!("smem={smem}"), reason);
    }
    let plan = Plan { f, blocks, tiles, sm_count, smem };
    let mut trial = LaunchPlan::default();
    match plan.regions(&mut trial) {
        Some(_) if trial.workspace_bytes <= total_memory => Ok(plan),
        _ => {
            let reason =
                format!("the workspace takes {} bytes or more; the device has {total_memory} in all", trial.workspace_bytes);
            refuse(Code::Resources, "workspace=beyond the device".into(), reason)
        }
    }
}

/// Operands that bulk copies and 16-byte accesses touch.
fn tma(name: &str) -> bool {
    matches!(name, "A" | "B" | "C" | "SFA" | "SFB" | "prob" | "D_row" | "D_col")
}

/// The row's `extra` hook.
pub fn extra(row: &Row, facts: &Facts, _knobs: &Knobs, target: &Target) -> Option<Decline> {
    rules(row, facts.expect_grouped_gemm(), target).err()
}

fn ptr(port: &Option<GemmPort>) -> Arg {
    port.as_ref().map_or(Arg::Null, |p| Arg::Ptr(Base::Tensor(p.uid)))
}

fn region(index: usize) -> Arg {
    Arg::Ptr(Base::Region(index))
}

fn maybe(index: Option<usize>) -> Arg {
    index.map_or(Arg::Null, region)
}

/// The launches for these facts.
///
/// # Errors
/// [`Decline`] where [`extra`] refuses.
pub fn lower(row: &Row, facts: &Facts, _knobs: &Knobs, target: &Target) -> Result<LaunchPlan, Decline> {
    let f = facts.expect_grouped_gemm();
    let plan = rules(row, f, target)?;
    let mut out = LaunchPlan::default();
    let Some(r) = plan.regions(&mut out) else {
        return Err(row.decline(
            Code::Resources,
            "workspace=overflow",
            "the workspace size leaves 64 bits; this row serves sizes that fit",
        ));
    };
    let [rows, cols] = plan.blocks;
    out.steps.push(launch(PREP, inputs(f), [rows + cols + 1, prep_threads(f)], 0, prep(&plan, &r)));
    let mut defines = inputs(f);
    defines.extend(outputs(f));
    out.steps.push(launch(MAIN, defines, [i64::from(plan.sm_count), THREADS.into()], plan.smem, main(&plan, &r)));
    if r.slots.is_some() || r.partial.is_some() {
        let dprob_blocks = if r.slots.is_some() { ceil_div(f.m, FINISH_ROWS) } else { 0 };
        let dbias_blocks = if r.partial.is_some() { cols } else { 0 };
        out.steps.push(launch(
            FINISH,
            Vec::new(),
            [dprob_blocks + dbias_blocks, THREADS.into()],
            0,
            finish(&plan, &r, dprob_blocks),
        ));
    }
    Ok(out)
}

fn launch(
    [name, source, entry]: [&'static str; 3],
    mut defines: Vec<(&'static str, i64)>,
    [grid, block]: [i64; 2],
    smem: u32,
    p: Params,
) -> Step {
    defines.sort_unstable();
    let (args, names) = p.done();
    let word = |x: i64| u32::try_from(x).unwrap_or(u32::MAX);
    Step::Kernel(Launch {
        name,
        kernel: KernelSpec { source, entry, defines },
        grid: [word(grid), 1, 1],
        cluster: [1, 1, 1],
        block: [word(block), 1, 1],
        smem,
        pdl: true,
        args,
        names,
    })
}

/// Switches of the operands of the product.
fn inputs(f: &GroupedGemmFacts) -> Vec<(&'static str, i64)> {
    let kind = match f.ab {
        DType::F4E2M1 => 2,
        DType::F8E5M2 => 1,
        _ => 0,
    };
    vec![("FG_IN", kind), ("FG_SF_E4M3", i64::from(f.sf == DType::F8E4M3)), ("FG_SF_VEC", f.sf_vec)]
}

/// `T_*` of `main_config.cuh`.
fn kind(d: DType) -> i64 {
    match d {
        DType::BF16 => 1,
        DType::F16 => 2,
        DType::F8E4M3 => 3,
        DType::F8E5M2 => 4,
        _ => 0,
    }
}

/// Switches of the epilogue.
fn outputs(f: &GroupedGemmFacts) -> [(&'static str, i64); 8] {
    [
        ("FG_C", kind(f.c)),
        ("FG_D", kind(f.d)),
        ("FG_READING", i64::from(f.formula == Formula::PreactivationC)),
        ("FG_CLAMP", i64::from(f.tanh_clamp_scale.is_some())),
        ("FG_DET", i64::from(f.deterministic)),
        ("FG_AMAX", i64::from(f.ports.amax.is_some())),
        ("FG_DBIAS", i64::from(f.ports.dbias.is_some())),
        ("FG_COMPACT", i64::from(f.discrete_col_sfd)),
    ]
}

fn prep_threads(f: &GroupedGemmFacts) -> i64 {
    if ceil_div(ceil_div(f.k, f.sf_vec), 4) <= SHORT_LINE {
        128
    } else {
        THREADS.into()
    }
}

fn prep(plan: &Plan<'_>, r: &Regions) -> Params {
    let (f, ports) = (plan.f, &plan.f.ports);
    let mut p = Params::default();
    p.push("sfa", ptr(&ports.sfa));
    p.push("sfb", ptr(&ports.sfb));
    p.push("offsets", ptr(&ports.padded_offsets));
    for (name, index) in [
        ("fields", r.fields),
        ("row_exp", r.row_exp),
        ("row_flag", r.row_flag),
        ("col_exp", r.col_exp),
        ("col_top", r.col_top),
        ("col_flag", r.col_flag),
        ("head", r.head),
        ("table", r.table),
    ] {
        p.push(name, region(index));
    }
    // With slots, finish writes dprob.
    p.push("dprob", if r.slots.is_some() { Arg::Null } else { ptr(&ports.dprob) });
    p.push("amax", ptr(&ports.amax));
    p.push("status", ptr(&ports.status));
    p.i64("m", f.m);
    p.sizes(&[("n", f.n), ("k", f.k), ("experts", f.experts), ("row_blocks", plan.blocks[0]), ("col_blocks", plan.blocks[1])]);
    p
}

fn main(plan: &Plan<'_>, r: &Regions) -> Params {
    let (f, ports) = (plan.f, &plan.f.ports);
    let (k, stage) = (plan.k_bytes(f.k), plan.k_bytes(TILE[2]));
    let map = |port: &Option<GemmPort>, dtype, dim: &[i64], stride: &[i64], tile: &[i64], swizzle| {
        port.as_ref().map_or(Arg::NoMap, |p| Params::map(Base::Tensor(p.uid), dtype, dim, stride, tile, swizzle))
    };
    let mut p = Params::default();
    p.push("map_a", map(&ports.a, DType::U8, &[k, f.m], &[k], &[stage, TILE[0]], stage));
    p.push("map_b", map(&ports.b, DType::U8, &[k, f.n, f.experts], &[k, k * f.n], &[stage, TILE[1], 1], stage));
    let width = f.c.bytes().map_or(1, |b| b as i64);
    p.push("map_c", map(&ports.c, f.c, &[f.n, f.m], &[f.n * width], &[128 / width, 128], 128));
    p.push("sfa", ptr(&ports.sfa));
    p.push("sfb", ptr(&ports.sfb));
    for (name, index) in [
        ("fields", r.fields),
        ("row_exp", r.row_exp),
        ("col_exp", r.col_exp),
        ("col_top", r.col_top),
        ("row_flag", r.row_flag),
        ("col_flag", r.col_flag),
        ("head", r.head),
        ("table", r.table),
    ] {
        p.push(name, region(index));
    }
    for (name, port) in [
        ("alpha", &ports.alpha),
        ("prob", &ports.prob),
        ("norm_const", &ports.norm_const),
        ("d_row", &ports.d_row),
        ("d_col", &ports.d_col),
        ("sfd_row", &ports.sfd_row),
        ("sfd_col", &ports.sfd_col),
    ] {
        p.push(name, ptr(port));
    }
    p.push("dprob", r.slots.map_or_else(|| ptr(&ports.dprob), region));
    p.push("amax", ptr(&ports.amax));
    p.push("dbias", maybe(r.partial));
    p.push("clamp", Arg::F32(f.tanh_clamp_scale.unwrap_or(1.0)));
    p.sizes(&[("n", f.n), ("k", f.k)]);
    p.i64("m", f.m);
    p
}

fn finish(plan: &Plan<'_>, r: &Regions, dprob_blocks: i64) -> Params {
    let (f, ports) = (plan.f, &plan.f.ports);
    let mut p = Params::default();
    p.push("slots", maybe(r.slots));
    p.push("dprob", if r.slots.is_some() { ptr(&ports.dprob) } else { Arg::Null });
    p.push("partial", maybe(r.partial));
    p.push("dbias", ptr(&ports.dbias));
    p.push("offsets", ptr(&ports.padded_offsets));
    p.push("head", region(r.head));
    p.i64("m", f.m);
    p.sizes(&[("n", f.n), ("dprob_blocks", dprob_blocks)]);
    p
}
