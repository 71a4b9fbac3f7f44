//! `grouped_gemm_dsrelu` without a graph, with the arguments and defaults of the specification.

use super::cache::Cache;
use super::operand::{Operand, Shape};
use crate::exec::{Bindings, Executable, Stream, Workspace};
use crate::graph::{
    BMajor, DsreluFormula, GemmWeights, Graph, GraphOptions, GroupedGemmDsrelu, GroupedGemmDsreluAttrs, Tensor, TensorId,
};
use crate::plan::{BuildOptions, Built, EngineSwitches, Plan};
use crate::{DType, Device, Error, ErrorCode, Result};
pub use frostgraph_engines::grouped_gemm::slots::{
    dbias_workspace_shape, dprob_workspace_shape, reduce_dbias_workspace, reduce_dprob_workspace,
};
use frostgraph_engines::{Knob, Knobs};
use std::sync::Arc;

/// One call of [`grouped_gemm_dsrelu`]. Build it with [`GroupedGemmDsreluCall::new`], then set what differs from the defaults.
///
/// Extents are given by A (M, K), by `n` or B (N), and by `padded_offsets` (L); trailing extents of 1 may be left at 1. FP4 payloads are
/// bytes with two values each ([`Operand::read_bytes`] with [`DType::F4E2M1`] and extents in values). Scale factors are bytes in the atom
/// layout; their extents follow from the others, so any may be given.
#[derive(Debug)]
pub struct GroupedGemmDsreluCall<'a> {
    /// (M, K): E2M1, E4M3 or E5M2, k contiguous.
    pub a: Operand<'a>,
    /// (N, K, L) with `b_major` contiguous; with pointers a pool of any extents, or absent.
    pub b: Operand<'a>,
    /// (M, N): f32, f16, bf16, E4M3 or E5M2.
    pub c: Operand<'a>,
    /// Scales of A: E8M0 or E4M3.
    pub sfa: Operand<'a>,
    /// Scales of B, or their pool, or absent.
    pub sfb: Operand<'a>,
    /// (L,), i32: cumulative ends, multiples of 256.
    pub padded_offsets: Operand<'a>,
    /// (L,), f32.
    pub alpha: Operand<'a>,
    /// (M,), f32.
    pub prob: Operand<'a>,
    /// (1,), f32; needed with FP8 results.
    pub norm_const: Operand<'a>,
    /// (L,), i64: byte offsets into the pool `b`, or device addresses where there is none.
    pub b_ptrs: Operand<'a>,
    /// (L,), i64: as `b_ptrs`, for scales.
    pub sfb_ptrs: Operand<'a>,
    /// N where pointers are given.
    pub n: Option<i64>,
    /// Element type of B where pointers are given; A's by default.
    pub b_dtype: Option<DType>,
    /// Contiguous extent of B.
    pub b_major: BMajor,
    /// (M, N), written.
    pub d_row: Operand<'a>,
    /// (M, N), written.
    pub d_col: Operand<'a>,
    /// (M,), f32, written.
    pub dprob: Operand<'a>,
    /// (L, N), bf16, written; optional.
    pub dbias: Operand<'a>,
    /// (L,), f32, written; optional, not with FP8 results.
    pub amax: Operand<'a>,
    /// Scales of D_row, written; with FP8 results.
    pub sfd_row: Operand<'a>,
    /// Scales of D_col, written; with FP8 results.
    pub sfd_col: Operand<'a>,
    /// (M, N), written; optional.
    pub d_srelu: Operand<'a>,
    /// Scales of D_srelu, written; with FP8 results.
    pub sfd_col_d_srelu: Operand<'a>,
    /// (1,), i32, written; optional.
    pub status: Operand<'a>,
    /// Accumulation: f32; f64 where a row serves it.
    pub acc_dtype: DType,
    /// Tile (M, N) of the row; `None` leaves it to the row. 128 or 256 each.
    pub mma_tiler_mn: Option<(i64, i64)>,
    /// Cluster (M, N); `None` is (2, 1) with a tile of 256 rows and (1, 1) with 128.
    pub cluster_shape_mn: Option<(i64, i64)>,
    /// Values a scale: 16 by default.
    pub sf_vec_size: i64,
    /// Vectorised single-precision arithmetic in the epilogue, where a row has that choice.
    pub vector_f32: bool,
    /// 256.
    pub m_aligned: i64,
    /// Column scales expert by expert.
    pub discrete_col_sfd: bool,
    /// Equal bits of dprob and dbias in every run.
    pub deterministic: bool,
    /// Soft clamp.
    pub tanh_clamp_scale: Option<f32>,
    /// Which operand is the pre-activation.
    pub formula: DsreluFormula,
}

impl<'a> GroupedGemmDsreluCall<'a> {
    /// A call with the specification's defaults and without outputs: at least `d_row`, `d_col` and `dprob` must be set.
    #[allow(clippy::too_many_arguments, reason = "the operands of the operation, in the specification's order")]
    pub fn new(
        a: Operand<'a>,
        b: Operand<'a>,
        c: Operand<'a>,
        sfa: Operand<'a>,
        sfb: Operand<'a>,
        padded_offsets: Operand<'a>,
        alpha: Operand<'a>,
        prob: Operand<'a>,
    ) -> GroupedGemmDsreluCall<'a> {
        GroupedGemmDsreluCall {
            a,
            b,
            c,
            sfa,
            sfb,
            padded_offsets,
            alpha,
            prob,
            norm_const: Operand::default(),
            b_ptrs: Operand::default(),
            sfb_ptrs: Operand::default(),
            n: None,
            b_dtype: None,
            b_major: BMajor::K,
            d_row: Operand::default(),
            d_col: Operand::default(),
            dprob: Operand::default(),
            dbias: Operand::default(),
            amax: Operand::default(),
            sfd_row: Operand::default(),
            sfd_col: Operand::default(),
            d_srelu: Operand::default(),
            sfd_col_d_srelu: Operand::default(),
            status: Operand::default(),
            acc_dtype: DType::F32,
            mma_tiler_mn: None,
            cluster_shape_mn: None,
            sf_vec_size: 16,
            vector_f32: false,
            m_aligned: 256,
            discrete_col_sfd: false,
            deterministic: false,
            tanh_clamp_scale: None,
            formula: DsreluFormula::PreactivationG,
        }
    }

    fn operands(self) -> [Operand<'a>; 21] {
        [
            self.a,
            self.b,
            self.c,
            self.sfa,
            self.sfb,
            self.padded_offsets,
            self.alpha,
            self.prob,
            self.norm_const,
            self.b_ptrs,
            self.sfb_ptrs,
            self.d_row,
            self.d_col,
            self.dprob,
            self.dbias,
            self.amax,
            self.sfd_row,
            self.sfd_col,
            self.d_srelu,
            self.sfd_col_d_srelu,
            self.status,
        ]
    }

    fn shapes(&self) -> [Option<Shape>; 21] {
        [
            &self.a,
            &self.b,
            &self.c,
            &self.sfa,
            &self.sfb,
            &self.padded_offsets,
            &self.alpha,
            &self.prob,
            &self.norm_const,
            &self.b_ptrs,
            &self.sfb_ptrs,
            &self.d_row,
            &self.d_col,
            &self.dprob,
            &self.dbias,
            &self.amax,
            &self.sfd_row,
            &self.sfd_col,
            &self.d_srelu,
            &self.sfd_col_d_srelu,
            &self.status,
        ]
        .map(|o| o.shape)
    }
}

#[derive(Debug, PartialEq)]
struct Key {
    device: Device,
    switches: EngineSwitches,
    shapes: [Option<Shape>; 21],
    attrs: GroupedGemmDsreluAttrs,
    acc: DType,
    knobs: Knobs,
}

static CACHE: Cache<Key> = Cache::new();

/// The grouped product and its epilogue on a stream: the graph of one node, built once per shape, options and device, then executed.
///
/// Every output is written, nothing is accumulated onto it. No rows (M = 0) is no work. Workspace: at least
/// [`grouped_gemm_workspace_bytes`], the slots of a deterministic call included. Engines that a graph would have to opt in to are offered.
///
/// Errors: FG1001 and FG12xx for operands and options (the numbers of facts §9.2), [`ErrorCode::NoPlan`] with every engine's reason, FG3004
/// for a tile that no engine has, FG4xxx for memory.
pub fn grouped_gemm_dsrelu(
    device: &Device,
    stream: &Stream,
    call: GroupedGemmDsreluCall<'_>,
    workspace: &mut Workspace<'_>,
) -> Result<()> {
    if is_empty(&call) {
        return Ok(());
    }
    let exe = executable(device, &call)?;
    let mut bindings = Bindings::new();
    // The uids of `graph`, which gives them in this order.
    for (uid, operand) in (1..).zip(call.operands()) {
        operand.bind(uid, &mut bindings);
    }
    exe.execute(stream, &mut bindings, workspace)
}

/// Exact bytes of workspace that this call needs on this device; the memory of the operands is not looked at.
pub fn grouped_gemm_workspace_bytes(device: &Device, call: &GroupedGemmDsreluCall<'_>) -> Result<u64> {
    if is_empty(call) {
        return Ok(0);
    }
    Ok(executable(device, call)?.workspace_bytes())
}

fn is_empty(c: &GroupedGemmDsreluCall<'_>) -> bool {
    c.a.shape.is_some_and(|s| s.dim[0] == 0)
}

fn executable(device: &Device, c: &GroupedGemmDsreluCall<'_>) -> Result<Arc<Executable>> {
    let options = BuildOptions { enable_opt_in: Some(true), ..BuildOptions::default() };
    let d_dtype = c.d_row.shape.map_or(DType::BF16, |s| s.dtype);
    let attrs = GroupedGemmDsreluAttrs {
        formula: c.formula,
        sf_vec_size: c.sf_vec_size,
        tanh_clamp_scale: c.tanh_clamp_scale,
        discrete_col_sfd: c.discrete_col_sfd,
        deterministic: c.deterministic,
        m_aligned: c.m_aligned,
        n: c.n,
        b_dtype: c.b_dtype,
        b_major: c.b_major,
        d_dtype,
    };
    let knobs = knobs(c)?;
    let key = Key {
        device: device.clone(),
        switches: EngineSwitches::resolve(&options)?,
        shapes: c.shapes(),
        attrs: attrs.clone(),
        acc: c.acc_dtype,
        knobs: knobs.clone(),
    };
    CACHE.get(key, || plan(&graph(c, attrs)?.build_with(device, &options)?, &knobs)?.compile())
}

/// The best plan with these knobs; the first engine's refusal where none takes them.
fn plan(built: &Built, knobs: &Knobs) -> Result<Plan> {
    if knobs.is_empty() {
        return built.best();
    }
    let mut refusal = None;
    for entry in built.nodes().iter().flat_map(|n| n.ranked()) {
        match built.create_plan(entry.row.id, knobs) {
            Ok(plan) => return Ok(plan),
            Err(e) => refusal = refusal.or(Some(e)),
        }
    }
    Err(refusal.unwrap_or_else(|| Error::new(ErrorCode::NoPlan, "no engine", "an engine that serves the call")))
}

fn bad(code: ErrorCode, given: String, expected: &str) -> Error {
    Error::new(code, given, expected).at("grouped_gemm_dsrelu")
}

/// Rules 9 and 15 to 18 of facts §9.2, tile columns of 128 included, then the choices as knobs.
fn knobs(c: &GroupedGemmDsreluCall<'_>) -> Result<Knobs> {
    let mut knobs = Knobs::NONE;
    if c.vector_f32 {
        if c.c.shape.is_some_and(|s| matches!(s.dtype, DType::F8E4M3 | DType::F8E5M2)) {
            return Err(bad(
                ErrorCode::GemmCType,
                "vector_f32 with FP8 C".into(),
                "C of f32, f16 or bf16 (rule 9 of facts §9.2)",
            ));
        }
        knobs = knobs.with(Knob::VectorF32, 1);
    }
    let Some((m, n)) = c.mma_tiler_mn else {
        return match c.cluster_shape_mn {
            None => Ok(knobs),
            Some((m, n)) => {
                Err(bad(ErrorCode::GemmCluster, format!("cluster_shape_mn ({m}, {n}) without mma_tiler_mn"), "the tile as well"))
            }
        };
    };
    if ![128, 256].contains(&m) || ![128, 256].contains(&n) {
        let expected = "128 or 256 rows and 128 or 256 columns (rules 15 and 16 of facts §9.2)";
        return Err(bad(ErrorCode::GemmTile, format!("mma_tiler_mn ({m}, {n})"), expected));
    }
    let two_cta = m == 256;
    let (cm, cn) = c.cluster_shape_mn.unwrap_or(if two_cta { (2, 1) } else { (1, 1) });
    let power = |x: i64| [1, 2, 4].contains(&x);
    let rows = if two_cta { cm / 2 * m } else { cm * m };
    if !power(cm) || !power(cn) || (two_cta && cm % 2 != 0) || ![128, 256].contains(&rows) {
        let expected =
            "powers of two up to 4, M even with 256 rows, and 128 or 256 rows of a cluster (rules 17 and 18 of facts §9.2)";
        return Err(bad(ErrorCode::GemmCluster, format!("cluster_shape_mn ({cm}, {cn}) with {m} rows"), expected));
    }
    Ok(knobs.with(Knob::TileM, m).with(Knob::TileN, n).with(Knob::TileCgaM, cm).with(Knob::TileCgaN, cn))
}

const NAMES: [&str; 21] = [
    "a",
    "b",
    "c",
    "sfa",
    "sfb",
    "padded_offsets",
    "alpha",
    "prob",
    "norm_const",
    "b_ptrs",
    "sfb_ptrs",
    "d_row",
    "d_col",
    "dprob",
    "dbias",
    "amax",
    "sfd_row",
    "sfd_col",
    "d_srelu",
    "sfd_col_d_srelu",
    "status",
];

fn graph(c: &GroupedGemmDsreluCall<'_>, attrs: GroupedGemmDsreluAttrs) -> Result<Graph> {
    let shapes = c.shapes();
    let need = |i: usize| shapes[i].ok_or_else(|| bad(ErrorCode::MissingPort, format!("no {}", NAMES[i]), "the operand"));
    let (a, offsets) = (need(0)?, need(5)?);
    let (m, k, l) = (a.dim[0], a.dim[1], offsets.dim[0]);
    let pointers = shapes[9].is_some() || shapes[10].is_some();
    let n = if pointers { c.n.unwrap_or(0) } else { need(1)?.dim[0] };
    let vec = c.sf_vec_size;
    let mut g = Graph::new(GraphOptions { io: DType::F32, ..GraphOptions::default() });
    let plain = |i: usize, rank: usize| -> Result<Tensor> {
        let s = need(i)?;
        let t = Tensor::new(NAMES[i], s.dim[..rank].to_vec()).dtype(s.dtype).uid(i as i64 + 1);
        // Scalars a row or an expert need no more than their element.
        Ok(if rank == 1 || i == 7 { t.alignment(s.dtype.bytes().unwrap_or(1) as i64) } else { t })
    };
    let scales = |i: usize, rows: i64, columns: i64, vec: i64, slices: i64| -> Result<Tensor> {
        Ok(Tensor::scale_atoms(NAMES[i], need(i)?.dtype, [rows, columns], vec, slices)?.uid(i as i64 + 1))
    };
    let mut add = |t: Result<Tensor>| t.map(|t| g.tensor(t));
    let a = add(plain(0, 3))?;
    let c_tensor = add(plain(2, 3))?;
    let sfa = add(scales(3, m, k, vec, 1))?;
    let [offsets, alpha, prob] = [add(plain(5, 1))?, add(plain(6, 1))?, add(plain(7, 3))?];
    let norm_const = shapes[8].is_some().then(|| add(plain(8, 1))).transpose()?;
    let mut pool = |i: usize| shapes[i].is_some().then(|| add(plain(i, 4))).transpose();
    let weights = if pointers {
        let (b, sfb) = (pool(1)?, pool(4)?);
        let (b_ptrs, sfb_ptrs) = (add(plain(9, 1))?, add(plain(10, 1))?);
        match (b, sfb) {
            (Some(b), Some(sfb)) => GemmWeights::Pool { b, sfb, b_ptrs, sfb_ptrs },
            (None, None) => GemmWeights::Addresses { b_ptrs, sfb_ptrs },
            (Some(_), None) | (None, Some(_)) => {
                let given = "a pool of payloads or of scales alone".to_string();
                return Err(bad(ErrorCode::MissingPort, given, "both pools, or neither"));
            }
        }
    } else {
        GemmWeights::Dense { b: add(plain(1, 3))?, sfb: add(scales(4, n, k, vec, l))? }
    };
    let options = GroupedGemmDsrelu {
        name: "grouped_gemm_dsrelu".into(),
        attrs,
        norm_const,
        dbias: shapes[14].is_some(),
        amax: shapes[15].is_some(),
        d_srelu: shapes[18].is_some(),
        status: shapes[20].is_some(),
        compute_dtype: Some(c.acc_dtype),
    };
    let out = g.grouped_gemm_dsrelu(a, weights, c_tensor, sfa, offsets, alpha, prob, options)?;
    let outputs: [(usize, usize, Option<TensorId>); 10] = [
        (11, 3, Some(out.d_row)),
        (12, 3, Some(out.d_col)),
        (13, 3, Some(out.dprob)),
        (14, 3, out.dbias),
        (15, 2, out.amax),
        (16, 0, out.sfd_row),
        (17, 0, out.sfd_col),
        (18, 3, out.d_srelu),
        (19, 0, out.sfd_col_d_srelu),
        (20, 1, out.status),
    ];
    for (i, rank, id) in outputs {
        let Some(id) = id else {
            if let Some(s) = shapes[i] {
                let given = format!("{} of type {} beside results of type {}", NAMES[i], s.dtype, need(11)?.dtype);
                return Err(bad(
                    ErrorCode::GemmIdleOutput,
                    given,
                    "generated scales with FP8 results only (rule 12 of facts §9.2)",
                ));
            }
            continue;
        };
        let s = need(i)?;
        g.output(id)?;
        let t = g.get_mut(id)?;
        (t.name, t.uid, t.dtype) = (NAMES[i].to_owned(), Some(i as i64 + 1), Some(s.dtype));
        if rank > 0 {
            t.dim = s.dim[..rank].to_vec();
        }
        if [13, 14, 15, 20].contains(&i) {
            t.alignment = s.dtype.bytes().unwrap_or(1) as i64;
        }
    }
    Ok(g)
}
