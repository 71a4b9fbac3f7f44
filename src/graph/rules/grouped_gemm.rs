//! The grouped product: what its operands must be (the rules of facts §9.2 that no row can lift, under their own numbers), and inference of
//! what the user left open.
//!
//! Rules about tiles, clusters and vectorised arithmetic are knobs of the rows and end in declines; those about determinism's workspaces do
//! not arise, because an executable owns them.

use super::super::infer::{overflow, row_major};
use crate::graph::{BMajor, GroupedGemmDsreluAttrs, InPort, Node, OutPort, Tensor, TensorId};
use crate::{DType, Error, ErrorCode, Result};
use frostgraph_engines::grouped_gemm::{scales, MAX_EXPERTS, ROW_ALIGN};

/// One node under validation.
struct View<'a> {
    node: &'a Node,
    a: &'a GroupedGemmDsreluAttrs,
    tensors: &'a [Tensor],
}

/// What was found and what is allowed.
type Fault = Option<(String, String)>;

/// One rule of facts §9.2.
pub struct GemmRule {
    /// Number there.
    pub number: u32,
    /// Error code of a violation.
    pub code: ErrorCode,
    /// What must not be, in one line.
    pub forbids: &'static str,
    check: fn(&View<'_>) -> Fault,
}

const fn rule(number: u32, code: ErrorCode, forbids: &'static str, check: fn(&View<'_>) -> Fault) -> GemmRule {
    GemmRule { number, code, forbids, check }
}

/// The rules in evaluation order.
pub static GEMM_RULES: &[GemmRule] = &[
    rule(1, ErrorCode::GemmScaleGroup, "SFD_row, SFD_col and norm_const that are not all present or all absent", scale_group),
    rule(2, ErrorCode::GemmContraction, "a K of B other than A's", contraction),
    rule(3, ErrorCode::GemmShape, "an operand of other extents than facts §9.1 gives it", shapes),
    rule(4, ErrorCode::GemmLayout, "A that is not k-major, B that is neither, C or D that is not n-major", layouts),
    rule(5, ErrorCode::GemmInputType, "A other than E2M1, packed bytes, E4M3 or E5M2, and B of another type than A", input_types),
    rule(6, ErrorCode::GemmScaleType, "scales other than E8M0 or E4M3, and scales of different types", scale_types),
    rule(
        7,
        ErrorCode::GemmScaleBlock,
        "scale blocks other than 16 and 32, E4M3 scales of 32, FP8 inputs with blocks of 16",
        scale_blocks,
    ),
    rule(8, ErrorCode::GemmFixedType, "an operand whose type is fixed and that has another one", fixed_types),
    rule(9, ErrorCode::GemmCType, "C of a type other than f32, f16, bf16, E4M3, E5M2", c_type),
    rule(10, ErrorCode::GemmResultType, "results of a type that the inputs do not lead to, or of different types", result_types),
    rule(11, ErrorCode::GemmMissingScales, "FP8 results without SFD_row, SFD_col and norm_const", missing_scales),
    rule(12, ErrorCode::GemmIdleOutput, "an output that results of this type do not have", idle_outputs),
    rule(13, ErrorCode::GemmSreluScales, "D_srelu in FP8 without its column scales, or those without it", srelu_scales),
    rule(14, ErrorCode::GemmBMajor, "FP4 with n-major B", b_major),
    rule(19, ErrorCode::GemmRowAlign, "an alignment of the experts' rows other than 256", row_align),
    rule(20, ErrorCode::GemmExtentBytes, "contiguous extents of A, B or D that are no multiples of 16 bytes", extent_bytes),
    rule(21, ErrorCode::GemmExperts, "more than 1024 experts", experts),
];

impl<'a> View<'a> {
    fn input(&self, port: InPort) -> Option<&'a Tensor> {
        self.node.inputs.get(&port).map(|id| &self.tensors[id.0 as usize])
    }

    fn output(&self, port: OutPort) -> Option<&'a Tensor> {
        self.node.outputs.get(&port).map(|id| &self.tensors[id.0 as usize])
    }

    fn extent(&self, port: InPort, axis: usize) -> i64 {
        self.input(port).and_then(|t| t.dim.get(axis)).copied().unwrap_or(0)
    }

    fn ptrs(&self) -> bool {
        self.input(InPort::BPtrs).is_some()
    }

    fn m(&self) -> i64 {
        self.extent(InPort::A, 0)
    }

    /// Packed bytes hold two values.
    fn k(&self) -> i64 {
        self.extent(InPort::A, 1).saturating_mul(packing(self.input(InPort::A)))
    }

    fn n(&self) -> i64 {
        if self.ptrs() {
            self.a.n.unwrap_or(0)
        } else {
            self.extent(InPort::B, 0)
        }
    }

    fn experts(&self) -> i64 {
        self.extent(InPort::PaddedOffsets, 0)
    }

    /// E2M1 also where it is declared as packed bytes.
    fn ab(&self) -> DType {
        self.input(InPort::A).map_or(DType::F32, payload)
    }

    fn quantised(&self) -> bool {
        self.output(OutPort::DRow).is_some_and(|t| is_fp8(dtype(t)))
    }
}

fn dtype(t: &Tensor) -> DType {
    t.dtype.unwrap_or(DType::F32)
}

/// Element type of a payload: packed bytes are E2M1.
pub(crate) fn payload(t: &Tensor) -> DType {
    match dtype(t) {
        DType::U8 => DType::F4E2M1,
        other => other,
    }
}

fn packing(t: Option<&Tensor>) -> i64 {
    if t.is_some_and(|t| t.dtype == Some(DType::U8)) {
        2
    } else {
        1
    }
}

fn is_fp8(d: DType) -> bool {
    matches!(d, DType::F8E4M3 | DType::F8E5M2)
}

fn named(port: &str, t: &Tensor) -> String {
    format!("{port} '{}'", t.name)
}

/// Presence of what inference needs; before it, so that open outputs pass.
pub(in crate::graph) fn operands(node: &Node, a: &GroupedGemmDsreluAttrs, tensors: &[Tensor]) -> Result<()> {
    let v = View { node, a, tensors };
    let missing = |port: &str, expected: &str| Err(Error::new(ErrorCode::MissingPort, format!("no {port}"), expected));
    for port in [InPort::A, InPort::C, InPort::Sfa, InPort::PaddedOffsets, InPort::Alpha, InPort::Prob] {
        if v.input(port).is_none() {
            return missing(port.json(), "A, C, SFA, Padded_offsets, Alpha, Prob and the weights");
        }
    }
    for port in [OutPort::DRow, OutPort::DCol, OutPort::DProb] {
        if v.output(port).is_none() {
            return missing(port.json(), "outputs D_row, D_col and dProb");
        }
    }
    let has = |port| v.input(port).is_some();
    for (one, other) in [(InPort::B, InPort::Sfb), (InPort::BPtrs, InPort::SfbPtrs)] {
        if has(one) != has(other) {
            let absent = if has(one) { other } else { one };
            return missing(absent.json(), "payload and scales of B in the same form");
        }
    }
    if !has(InPort::B) && !has(InPort::BPtrs) {
        return missing("B", "B and SFB, or B_ptrs and SFB_ptrs, or all four");
    }
    if has(InPort::BPtrs) && a.n.is_none_or(|n| n < 1) {
        let given = a.n.map_or("no n".into(), |n| format!("n {n}"));
        return Err(Error::new(
            ErrorCode::GemmShape,
            given,
            "the columns of B, which pointers do not tell (rule 3 of facts §9.2)",
        ));
    }
    let ports = node.inputs.values().chain(node.outputs.values());
    if let Some(t) = ports.map(|id| &tensors[id.0 as usize]).find(|t| t.ragged.is_some()) {
        let given = format!("ragged tensor '{}'", t.name);
        return Err(Error::new(ErrorCode::BadTensor, given, "dense operands; experts are told apart by Padded_offsets"));
    }
    Ok(())
}

/// Strides of inputs that the user left open: B by its major extent, scale atoms by their view; everything else is row-major.
pub(in crate::graph) fn input_strides(node: &Node, a: &GroupedGemmDsreluAttrs, tensors: &mut [Tensor]) -> Result<()> {
    let dense = !node.inputs.contains_key(&InPort::BPtrs);
    for (port, &id) in &node.inputs {
        let t = &mut tensors[id.0 as usize];
        if !t.stride.is_empty() || t.dim.iter().any(|&d| d < 1) {
            continue;
        }
        match port {
            InPort::B if dense && t.dim.len() == 3 => {
                let order = if a.b_major == BMajor::N { [2, 1, 0] } else { [2, 0, 1] };
                t.stride = super::super::infer::compact(&t.dim, &order)?;
            }
            InPort::Sfa | InPort::Sfb if t.dim.len() == 6 && t.dim[..2] == [32, 4] => t.stride = view_strides(&t.dim)?,
            _ => {}
        }
    }
    Ok(())
}

fn view_strides(dim: &[i64]) -> Result<Vec<i64>> {
    let six: Option<[i64; 6]> = dim.try_into().ok();
    let strides = six.and_then(|d| scales::strides(&d)).ok_or_else(|| overflow(dim))?;
    Ok(strides.to_vec())
}

/// Element types of outputs that name none.
pub(in crate::graph) fn dtypes(node: &Node, a: &GroupedGemmDsreluAttrs, tensors: &mut [Tensor]) {
    let sf = node.inputs.get(&InPort::Sfa).and_then(|id| tensors[id.0 as usize].dtype);
    for (port, &id) in &node.outputs {
        let t = &mut tensors[id.0 as usize];
        let default = match port {
            OutPort::DRow | OutPort::DCol | OutPort::DSrelu => Some(a.d_dtype),
            OutPort::DBias => Some(DType::BF16),
            OutPort::Status => Some(DType::I32),
            OutPort::SfdRow | OutPort::SfdCol | OutPort::SfdColDSrelu => sf,
            _ => Some(DType::F32),
        };
        t.dtype = t.dtype.or(default);
    }
}

/// Extents and strides of outputs that the user left open; operands have been found present.
pub(in crate::graph) fn outputs(node: &Node, a: &GroupedGemmDsreluAttrs, tensors: &mut [Tensor]) -> Result<()> {
    let v = View { node, a, tensors };
    let (m, n, l) = (v.m(), v.n(), v.experts());
    for (port, &TensorId(id)) in &node.outputs {
        let dim: Option<Vec<i64>> = match port {
            OutPort::DRow | OutPort::DCol | OutPort::DSrelu => Some(vec![m, n, 1]),
            OutPort::DProb => Some(vec![m, 1, 1]),
            OutPort::DBias => Some(vec![l, n, 1]),
            OutPort::Amax => Some(vec![l, 1]),
            OutPort::Status => Some(vec![1]),
            OutPort::SfdRow => scales::extents(m, n, 32, 1).map(|e| e.to_vec()),
            OutPort::SfdCol | OutPort::SfdColDSrelu => scales::extents(n, m, 32, 1).map(|e| e.to_vec()),
            _ => None,
        };
        let t = &mut tensors[id as usize];
        if t.dim.is_empty() {
            t.dim = dim.unwrap_or_default();
        }
        if t.stride.is_empty() {
            let view = t.dim.len() == 6 && t.dim[..2] == [32, 4];
            t.stride = if view { view_strides(&t.dim)? } else { row_major(&t.dim)? };
        }
    }
    Ok(())
}

/// Operands of other operations, attribute values, and the rules in order; the first violation is the error.
pub(in crate::graph) fn check(node: &Node, a: &GroupedGemmDsreluAttrs, tensors: &[Tensor]) -> Result<()> {
    let bad = |given: String, expected: &str| Err(Error::new(ErrorCode::BadAttribute, given, expected));
    if let Some(s) = a.tanh_clamp_scale.filter(|s| !s.is_finite() || *s <= 0.0) {
        return bad(format!("tanh_clamp_scale {s}"), "a finite number above 0");
    }
    let v = View { node, a, tensors };
    // Weights behind pointers have no extents of their own that would have been checked: with padding to whole atoms, in bits, per expert.
    let (m, n, k, l) = (v.m(), v.n(), v.k(), v.experts());
    let fits = |rows: i64, columns: i64, slices: i64| {
        let padded = rows.checked_add(128)?.checked_mul(columns.checked_add(128)?)?;
        padded.checked_mul(slices.max(1))?.checked_mul(64)
    };
    if [(m, k, 1), (n, k, l), (m, n, 1), (n, 1, l)].into_iter().any(|(r, c, s)| fits(r, c, s).is_none()) {
        return Err(overflow(&[m, n, k, l]));
    }
    for rule in GEMM_RULES {
        if let Some((given, expected)) = (rule.check)(&v) {
            return Err(Error::new(rule.code, given, format!("{expected} (rule {} of facts §9.2)", rule.number)));
        }
    }
    Ok(())
}

/// Operands that the operation does not have.
pub(in crate::graph) fn foreign_ports(node: &Node) -> Result<()> {
    use {InPort as I, OutPort as O};
    let input = node.inputs.keys().find(|p| {
        !matches!(
            p,
            I::A | I::B | I::C | I::Sfa | I::Sfb | I::BPtrs | I::SfbPtrs | I::PaddedOffsets | I::Alpha | I::Prob | I::NormConst
        )
    });
    let output = node.outputs.keys().find(|p| {
        !matches!(
            p,
            O::DRow | O::DCol | O::DSrelu | O::DProb | O::DBias | O::Amax | O::SfdRow | O::SfdCol | O::SfdColDSrelu | O::Status
        )
    });
    match input.map(|p| p.json()).or(output.map(|p| p.json())) {
        None => Ok(()),
        Some(port) => {
            let given = format!("{port} on {}", node.op.tag());
            Err(Error::new(ErrorCode::BadAttribute, given, "operands of the operation only"))
        }
    }
}

fn scale_group(v: &View<'_>) -> Fault {
    let has = [v.output(OutPort::SfdRow).is_some(), v.output(OutPort::SfdCol).is_some(), v.input(InPort::NormConst).is_some()];
    let names = ["SFD_row", "SFD_col", "Norm_const"];
    let absent = names.iter().zip(has).find(|(_, h)| !h)?.0;
    let present = names.iter().zip(has).find(|(_, h)| *h)?.0;
    Some((format!("{present} without {absent}"), "SFD_row, SFD_col and Norm_const together, or none".into()))
}

fn contraction(v: &View<'_>) -> Fault {
    let b = v.input(InPort::B).filter(|b| !v.ptrs() && b.dim.len() == 3)?;
    let k = b.dim[1].saturating_mul(packing(Some(b)));
    (k != v.k()).then(|| (format!("K {k} of B and {} of A", v.k()), "one K".into()))
}

fn shapes(v: &View<'_>) -> Fault {
    let (m, n, k, l, vec) = (v.m(), v.n(), v.k(), v.experts(), v.a.sf_vec_size);
    let a_k = v.extent(InPort::A, 1);
    let plain: [(&str, Option<&Tensor>, &[i64]); 15] = [
        ("A", v.input(InPort::A), &[m, a_k, 1]),
        ("B", v.input(InPort::B).filter(|_| !v.ptrs()), &[n, a_k, l]),
        ("C", v.input(InPort::C), &[m, n, 1]),
        ("Padded_offsets", v.input(InPort::PaddedOffsets), &[l]),
        ("B_ptrs", v.input(InPort::BPtrs), &[l]),
        ("SFB_ptrs", v.input(InPort::SfbPtrs), &[l]),
        ("Alpha", v.input(InPort::Alpha), &[l]),
        ("Prob", v.input(InPort::Prob), &[m, 1, 1]),
        ("Norm_const", v.input(InPort::NormConst), &[1]),
        ("D_row", v.output(OutPort::DRow), &[m, n, 1]),
        ("D_col", v.output(OutPort::DCol), &[m, n, 1]),
        ("D_srelu", v.output(OutPort::DSrelu), &[m, n, 1]),
        ("dProb", v.output(OutPort::DProb), &[m, 1, 1]),
        ("dBias", v.output(OutPort::DBias), &[l, n, 1]),
        ("Amax", v.output(OutPort::Amax), &[l, 1]),
    ];
    for (port, t, want) in plain {
        if let Some(t) = t.filter(|t| t.dim != want) {
            return Some((format!("{} with extents {:?}", named(port, t), t.dim), format!("extents {want:?}")));
        }
    }
    if let Some(t) = v.output(OutPort::Status).filter(|t| t.dim != [1]) {
        return Some((format!("{} with extents {:?}", named("Status", t), t.dim), "extents [1]".into()));
    }
    let atoms = [
        ("SFA", v.input(InPort::Sfa), scales::extents(m, k, vec, 1)),
        ("SFB", v.input(InPort::Sfb).filter(|_| !v.ptrs()), scales::extents(n, k, vec, l)),
        ("SFD_row", v.output(OutPort::SfdRow), scales::extents(m, n, 32, 1)),
        ("SFD_col", v.output(OutPort::SfdCol), scales::extents(n, m, 32, 1)),
        ("SFD_col_D_srelu", v.output(OutPort::SfdColDSrelu), scales::extents(n, m, 32, 1)),
    ];
    for (port, t, want) in atoms {
        let (Some(t), Some(view)) = (t, want) else { continue };
        let physical = scales::physical(&view);
        if t.dim != view && t.dim != physical {
            let given = format!("{} with extents {:?}", named(port, t), t.dim);
            return Some((given, format!("extents {view:?} or, in memory order, {physical:?}")));
        }
    }
    None
}

/// Whether strides are those of a compact tensor with these axes from outermost to innermost.
fn compact_in(t: &Tensor, order: &[usize]) -> bool {
    let mut span: i64 = 1;
    order.iter().rev().all(|&axis| {
        let ok = t.dim[axis] == 1 || t.stride[axis] == span;
        span = span.saturating_mul(t.dim[axis]);
        ok
    })
}

/// Whether B is n-major; of a dense B of three extents.
pub(crate) fn n_major(b: &Tensor) -> bool {
    !compact_in(b, &[2, 0, 1]) && compact_in(b, &[2, 1, 0])
}

fn layouts(v: &View<'_>) -> Fault {
    let wrong = |port: &str, t: &Tensor, want: &str| {
        Some((format!("{} with strides {:?} over {:?}", named(port, t), t.stride, t.dim), want.to_string()))
    };
    let a = v.input(InPort::A)?;
    if !compact_in(a, &[2, 0, 1]) {
        return wrong("A", a, "strides (K, 1, M·K): k-major");
    }
    if let Some(b) = v.input(InPort::B).filter(|_| !v.ptrs()) {
        if !compact_in(b, &[2, 0, 1]) && !compact_in(b, &[2, 1, 0]) {
            return wrong("B", b, "strides (K, 1, N·K), or (1, N, N·K) for FP8");
        }
    }
    let wide = [
        ("C", v.input(InPort::C)),
        ("D_row", v.output(OutPort::DRow)),
        ("D_col", v.output(OutPort::DCol)),
        ("D_srelu", v.output(OutPort::DSrelu)),
    ];
    for (port, t) in wide {
        if let Some(t) = t.filter(|t| !compact_in(t, &[2, 0, 1])) {
            return wrong(port, t, "strides (N, 1, M·N): n-major");
        }
    }
    let inputs = [InPort::Sfa, InPort::Sfb, InPort::PaddedOffsets, InPort::BPtrs, InPort::SfbPtrs, InPort::Alpha, InPort::Prob];
    let outputs =
        [OutPort::SfdRow, OutPort::SfdCol, OutPort::SfdColDSrelu, OutPort::DProb, OutPort::DBias, OutPort::Amax, OutPort::Status];
    let rest = inputs.iter().map(|&p| (p.json(), v.input(p))).chain(outputs.iter().map(|&p| (p.json(), v.output(p))));
    for (port, t) in rest {
        let Some(t) = t.filter(|_| !(v.ptrs() && port == "SFB")) else { continue };
        let view = t.dim.len() == 6 && t.dim[..2] == [32, 4] && t.dim[3] == 4;
        let axes: Vec<usize> = (0..t.dim.len()).collect();
        let ok = if view { compact_in(t, &[5, 2, 4, 0, 1, 3]) } else { compact_in(t, &axes) };
        if !ok {
            return wrong(port, t, if view { "the strides of scale atoms" } else { "row-major strides" });
        }
    }
    // A pool is a range of bytes.
    let pools = [("B", v.input(InPort::B)), ("SFB", v.input(InPort::Sfb))];
    for (port, t) in pools {
        let Some(t) = t.filter(|_| v.ptrs()) else { continue };
        let axes: Vec<usize> = (0..t.dim.len()).collect();
        if !compact_in(t, &axes) {
            return wrong(port, t, "row-major strides: a pool is a range of bytes");
        }
    }
    None
}

fn input_types(v: &View<'_>) -> Fault {
    let a = v.input(InPort::A)?;
    if !matches!(v.ab(), DType::F4E2M1 | DType::F8E4M3 | DType::F8E5M2) {
        return Some((
            format!("{} of type {}", named("A", a), dtype(a).json()),
            "FP4_E2M1, UINT8 (packed), FP8_E4M3 or FP8_E5M2".into(),
        ));
    }
    let declared = v.input(InPort::B).map(payload).filter(|_| !v.ptrs());
    // A pool's own type is free: it is a range of bytes.
    let b = declared.or(v.a.b_dtype.map(|d| if d == DType::U8 { DType::F4E2M1 } else { d }))?;
    (b != v.ab()).then(|| (format!("B of type {} and A of type {}", b.json(), v.ab().json()), "one type of A and B".into()))
}

fn scale_types(v: &View<'_>) -> Fault {
    let sfa = v.input(InPort::Sfa)?;
    if !matches!(dtype(sfa), DType::F8E8M0 | DType::F8E4M3) {
        return Some((format!("{} of type {}", named("SFA", sfa), dtype(sfa).json()), "FP8_E8M0 or FP8_E4M3".into()));
    }
    let others = [
        ("SFB", v.input(InPort::Sfb).filter(|_| !v.ptrs())),
        ("SFD_row", v.output(OutPort::SfdRow)),
        ("SFD_col", v.output(OutPort::SfdCol)),
        ("SFD_col_D_srelu", v.output(OutPort::SfdColDSrelu)),
    ];
    let (port, t) = others.into_iter().find_map(|(port, t)| Some((port, t.filter(|t| dtype(t) != dtype(sfa))?)))?;
    Some((format!("{} of type {}", named(port, t), dtype(t).json()), format!("SFA's type, {}", dtype(sfa).json())))
}

fn scale_blocks(v: &View<'_>) -> Fault {
    let (vec, sf) = (v.a.sf_vec_size, v.input(InPort::Sfa).map(dtype)?);
    match vec {
        32 if sf == DType::F8E4M3 => Some(("sf_vec_size 32 with E4M3 scales".into(), "16 with E4M3 scales".into())),
        16 if v.ab() != DType::F4E2M1 => Some((format!("sf_vec_size 16 with {} inputs", v.ab()), "32 with FP8 inputs".into())),
        16 | 32 => None,
        _ => Some((format!("sf_vec_size {vec}"), "16 or 32".into())),
    }
}

fn fixed_types(v: &View<'_>) -> Fault {
    if let Some(d) = v.node.compute_dtype.filter(|d| !matches!(d, DType::F32 | DType::F64)) {
        return Some((format!("compute type {}", d.json()), "FLOAT, or DOUBLE for the CPU".into()));
    }
    let inputs = [
        (InPort::PaddedOffsets, DType::I32),
        (InPort::BPtrs, DType::I64),
        (InPort::SfbPtrs, DType::I64),
        (InPort::Alpha, DType::F32),
        (InPort::Prob, DType::F32),
        (InPort::NormConst, DType::F32),
    ];
    let outputs =
        [(OutPort::DProb, DType::F32), (OutPort::DBias, DType::BF16), (OutPort::Amax, DType::F32), (OutPort::Status, DType::I32)];
    let all =
        inputs.iter().map(|(p, d)| (p.json(), v.input(*p), *d)).chain(outputs.iter().map(|(p, d)| (p.json(), v.output(*p), *d)));
    let (port, t, want) = all.into_iter().find_map(|(p, t, d)| Some((p, t.filter(|t| dtype(t) != d)?, d)))?;
    Some((format!("{} of type {}", named(port, t), dtype(t).json()), want.json().into()))
}

fn c_type(v: &View<'_>) -> Fault {
    let c = v.input(InPort::C)?;
    let ok = matches!(dtype(c), DType::F32 | DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2);
    (!ok)
        .then(|| (format!("{} of type {}", named("C", c), dtype(c).json()), "FLOAT, HALF, BFLOAT16, FP8_E4M3 or FP8_E5M2".into()))
}

fn result_types(v: &View<'_>) -> Fault {
    let row = v.output(OutPort::DRow)?;
    let fp4 = v.ab() == DType::F4E2M1;
    let ok = if fp4 { matches!(dtype(row), DType::F16 | DType::BF16 | DType::F32) } else { is_fp8(dtype(row)) };
    if !ok {
        let want = if fp4 { "HALF, BFLOAT16 or FLOAT with FP4 inputs" } else { "FP8_E4M3 or FP8_E5M2 with FP8 inputs" };
        return Some((format!("{} of type {}", named("D_row", row), dtype(row).json()), want.into()));
    }
    let others = [("D_col", v.output(OutPort::DCol)), ("D_srelu", v.output(OutPort::DSrelu))];
    let (port, t) = others.into_iter().find_map(|(p, t)| Some((p, t.filter(|t| dtype(t) != dtype(row))?)))?;
    Some((format!("{} of type {}", named(port, t), dtype(t).json()), format!("D_row's type, {}", dtype(row).json())))
}

fn missing_scales(v: &View<'_>) -> Fault {
    let found = v.quantised() && v.output(OutPort::SfdRow).is_none();
    found.then(|| ("FP8 results without generated scales".into(), "SFD_row, SFD_col and Norm_const".into()))
}

fn idle_outputs(v: &View<'_>) -> Fault {
    if v.quantised() {
        let amax = v.output(OutPort::Amax)?;
        return Some((format!("{} beside FP8 results", named("Amax", amax)), "Amax with HALF, BFLOAT16 or FLOAT results".into()));
    }
    let sfd = v.output(OutPort::SfdRow).or(v.output(OutPort::SfdColDSrelu))?;
    Some((format!("{} beside results that are not FP8", named("scales", sfd)), "generated scales with FP8 results only".into()))
}

fn srelu_scales(v: &View<'_>) -> Fault {
    let (d, sf) = (v.output(OutPort::DSrelu).is_some(), v.output(OutPort::SfdColDSrelu).is_some());
    (v.quantised() && d != sf).then(|| {
        let given = if d { "D_srelu without SFD_col_D_srelu" } else { "SFD_col_D_srelu without D_srelu" };
        (given.into(), "both with FP8 results, or neither".into())
    })
}

fn b_major(v: &View<'_>) -> Fault {
    let by_stride = v.input(InPort::B).is_some_and(|b| !v.ptrs() && n_major(b));
    let by_attribute = v.ptrs() && v.a.b_major == BMajor::N;
    (v.ab() == DType::F4E2M1 && (by_stride || by_attribute)).then(|| ("FP4 with n-major B".into(), "k-major B with FP4".into()))
}

fn row_align(v: &View<'_>) -> Fault {
    (v.a.m_aligned != ROW_ALIGN).then(|| (format!("m_aligned {}", v.a.m_aligned), ROW_ALIGN.to_string()))
}

fn extent_bytes(v: &View<'_>) -> Fault {
    let bits = |d: DType| i64::from(d.bits());
    let n_major = if v.ptrs() { v.a.b_major == BMajor::N } else { v.input(InPort::B).is_some_and(n_major) };
    let d = v.output(OutPort::DRow).map_or(DType::F32, dtype);
    let contiguous = [
        ("K of A", v.k(), v.ab()),
        (if n_major { "N of B" } else { "K of B" }, if n_major { v.n() } else { v.k() }, v.ab()),
        ("N of D", v.n(), d),
    ];
    let (what, extent, d) = contiguous.into_iter().find(|(_, extent, d)| extent.saturating_mul(bits(*d)) % 128 != 0)?;
    Some((format!("{what} {extent} of {d}"), format!("multiples of {} elements: 16 bytes", 128 / bits(d))))
}

fn experts(v: &View<'_>) -> Fault {
    (v.experts() > MAX_EXPERTS).then(|| (format!("{} experts", v.experts()), format!("at most {MAX_EXPERTS}")))
}
