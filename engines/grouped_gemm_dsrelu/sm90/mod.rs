//! Lowers `grouped_gemm_dsrelu_sm90`: prep, main, and finish where sums were left in slots.

pub(super) mod args;
pub(super) mod form;
pub(super) mod rules;
#[cfg(test)]
mod tests;

use super::finish::{self, launch};
use crate::grouped_gemm::{GroupedGemmFacts, Weights};
use crate::sdpa::arith::{ceil_div, product};
use crate::{DType, Decline, DeclineCode as Code, Facts, Knobs, LaunchPlan, Row, Target};
use args::{inputs, main, outputs, prep, prep_threads};
use form::Form;
use rules::rules;

const PREP: [&str; 3] = ["prep", "grouped_gemm/sm90/prep.cu", "fg_grouped_gemm_prep"];
const MAIN: [&str; 3] = ["main", "grouped_gemm/sm90/main.cu", "fg_grouped_gemm_main"];
const PAIR: [&str; 3] = ["main", "grouped_gemm/sm90/pair/main.cu", MAIN[2]];

/// Kernel sources of the row.
pub const SOURCES: &[&str] = &[finish::FINISH[1], MAIN[1], PAIR[1], PREP[1]];

/// Rows and columns of a tile of D, and k of a pipeline stage.
const TILE: [i64; 3] = [256, 128, 128];
/// Rows of D that a column scale and a partial sum of dbias cover.
const BLOCK: i64 = 32;
/// Threads of every kernel, but for prep where lines of scales are short.
const THREADS: u32 = 512;
/// Atoms of a line up to which prep gives it one thread: its many blocks then cost less than a long line in few threads would.
const SHORT_LINE: i64 = 24;

/// Counters of tiles split along k, and sums of one part that a CTA leaves: 128 x 256.
const PART_COUNTS: i64 = 1024;
const PART_BYTES: i64 = 128 * 256 * 4;

/// What the launches are made of.
struct Plan<'a> {
    f: &'a GroupedGemmFacts,
    form: Form,
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
    /// Tensor maps of the experts' weights and addresses of their scales, where those are found through lists.
    maps: Option<usize>,
    sfb_at: Option<usize>,
    slots: Option<usize>,
    partial: Option<usize>,
    /// Sums of parts of tiles split along k, and how many are there.
    part_sums: Option<usize>,
    part_count: Option<usize>,
}

impl Plan<'_> {
    fn fp4(&self) -> bool {
        self.f.ab == DType::F4E2M1
    }

    /// Weights are found through lists.
    fn listed(&self) -> bool {
        self.f.weights != Weights::Dense
    }

    /// Blocks of columns that prep looks at: E4M3 scales are used as they are given, so where no lists are followed either it has nothing to do there,
    /// and launching the blocks alone took 10 microseconds for 128 experts of 8,192 columns.
    fn prep_columns(&self) -> i64 {
        if self.f.sf == DType::F8E4M3 && !self.listed() {
            0
        } else {
            self.blocks[1]
        }
    }

    /// Bytes of `k` values.
    fn k_bytes(&self, k: i64) -> i64 {
        if self.fp4() {
            k / 2
        } else {
            k
        }
    }

    /// Rows of A in a stage of one CTA.
    fn stage_rows(&self) -> i64 {
        TILE[0] / self.form.cluster()
    }

    /// CTAs of main: one an SM, in whole clusters.
    fn ctas(&self) -> i64 {
        i64::from(self.sm_count) / self.form.cluster() * self.form.cluster()
    }

    /// Shared memory of main, as `main_config.cuh` and `pair/config.cuh` lay it out: raw stages, the ring of 16-bit B, (results of columns,) two headers, barriers, alignment.
    fn smem(f: &GroupedGemmFacts, form: Form) -> u32 {
        let fp4 = f.ab == DType::F4E2M1;
        let row = if fp4 { 64 } else { 128 };
        let atom = 512 * if f.sf_vec == 16 { 2 } else { 1 };
        let stage = |rows: i64, atoms: u32| u32::div_ceil((rows + TILE[1]) as u32 * row + atoms * atom, 1024) * 1024;
        let rest = match form {
            Form::Single => {
                let stages = if fp4 { 5 } else { 3 };
                stages * stage(TILE[0], 3) + 4 * 16_384 + 2 * 1472
            }
            Form::Pair => 5 * stage(TILE[0] / 2, 2) + 4 * 32_768 + 4096 + 2 * 960,
        };
        rest + 256 + 1024
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
            maps: if self.listed() { Some(region("maps", product(&[f.experts, 128]))?) } else { None },
            sfb_at: if self.listed() { Some(region("sfb_at", product(&[f.experts, 8]))?) } else { None },
            slots: if f.deterministic { Some(region("dprob_slots", product(&[self.tiles, f.m, 4]))?) } else { None },
            partial: if f.ports.dbias.is_some() { Some(region("dbias_partial", product(&[f.m / BLOCK, f.n, 4]))?) } else { None },
            // No more parts than clusters.
            part_sums: if self.form == Form::Pair {
                Some(region("part_sums", product(&[self.ctas(), PART_BYTES]))?)
            } else {
                None
            },
            part_count: if self.form == Form::Pair { Some(region("part_count", Some(PART_COUNTS * 4))?) } else { None },
        })
    }
}

/// The row's `extra` hook.
pub fn extra(row: &Row, facts: &Facts, knobs: &Knobs, target: &Target) -> Option<Decline> {
    rules(row, facts.expect_grouped_gemm(), knobs, target).err()
}

/// The launches for these facts.
///
/// # Errors
/// [`Decline`] where [`extra`] refuses.
pub fn lower(row: &Row, facts: &Facts, knobs: &Knobs, target: &Target) -> Result<LaunchPlan, Decline> {
    let f = facts.expect_grouped_gemm();
    let plan = rules(row, f, knobs, target)?;
    let mut out = LaunchPlan::default();
    let Some(r) = plan.regions(&mut out) else {
        return Err(row.decline(
            Code::Resources,
            "workspace=overflow",
            "the workspace size leaves 64 bits; this row serves sizes that fit",
        ));
    };
    let prep_blocks = plan.blocks[0] + plan.prep_columns() + 1;
    out.steps.push(launch(PREP, inputs(f), [prep_blocks, prep_threads(f)], 1, 0, prep(&plan, &r)));
    let mut defines = inputs(f);
    defines.extend(outputs(f));
    let kernel = match plan.form {
        Form::Single => {
            defines.push(("FG_N_MAJOR", i64::from(f.b_n_major)));
            MAIN
        }
        Form::Pair => PAIR,
    };
    let cluster = plan.form.cluster() as u32;
    out.steps.push(launch(kernel, defines, [plan.ctas(), THREADS.into()], cluster, plan.smem, main(&plan, &r)));
    out.steps.extend(finish::step(f, finish::Sums { slots: r.slots, partial: r.partial, head: r.head }));
    Ok(out)
}
