//! The plain grouped product: what its operands must be, under numbers of its own, and inference of what the user left open.

use super::super::infer::{compact, row_major};
use crate::graph::{InPort, MoeGroupedMatmulAttrs, MoeMode, Node, OutPort, Reordering, Tensor, TensorId};
use crate::{DType, Error, ErrorCode, Result};
use frostgraph_engines::moe_grouped_matmul::routing::MAX_GROUPS;

/// One node under validation; also what the analyzer reads extents from.
pub(crate) struct View<'a> {
    pub node: &'a Node,
    pub a: &'a MoeGroupedMatmulAttrs,
    pub tensors: &'a [Tensor],
}

/// What was found and what is allowed.
type Fault = Option<(String, String)>;

/// One rule of the plain grouped product.
pub struct MoeRule {
    /// Number; the code is `FG13` and this number.
    pub number: u32,
    /// Error code of a violation.
    pub code: ErrorCode,
    /// What must not be, in one line.
    pub forbids: &'static str,
    check: fn(&View<'_>) -> Fault,
}

const fn rule(number: u32, code: ErrorCode, forbids: &'static str, check: fn(&View<'_>) -> Fault) -> MoeRule {
    MoeRule { number, code, forbids, check }
}

/// The rules in evaluation order.
pub static MOE_RULES: &[MoeRule] = &[
    rule(1, ErrorCode::MoeShape, "operands of other extents than (1, T, K), (E, K, N), (1, R, 1) and (1, R, N)", shapes),
    rule(2, ErrorCode::MoeContraction, "a K of the weights other than the token's", contraction),
    rule(3, ErrorCode::MoeLayout, "FP4 values whose K is not contiguous or leaves half a byte", layouts),
    rule(4, ErrorCode::MoeInputType, "tokens that are no floats, and weights of another type", input_types),
    rule(5, ErrorCode::MoeScales, "block scales of one operand only, of other types or blocks, or of wide operands", scales),
    rule(6, ErrorCode::MoeScaleShape, "scales of other extents than one a block, or whole atoms of 128 by 4", scale_shapes),
    rule(7, ErrorCode::MoeFixedType, "offsets that are no integers, indices and status other than INT32", fixed_types),
    rule(8, ErrorCode::MoeRouting, "indices that the mode does not have", routing),
    rule(9, ErrorCode::MoeOffsets, "a number of offsets that is neither G nor G + 1 for a multiple G of E", offsets),
    rule(10, ErrorCode::MoeOutputType, "an output other than f32, f16, bf16", output_type),
    rule(11, ErrorCode::MoeTopK, "a top_k of scatter that the rows are no multiple of", top_k),
];

fn dtype(t: &Tensor) -> DType {
    t.dtype.unwrap_or(DType::F32)
}

fn is_fp8(d: DType) -> bool {
    matches!(d, DType::F8E4M3 | DType::F8E5M2)
}

fn named(port: &str, t: &Tensor) -> String {
    format!("{port} '{}'", t.name)
}

impl<'a> View<'a> {
    pub fn input(&self, port: InPort) -> Option<&'a Tensor> {
        self.node.inputs.get(&port).map(|id| &self.tensors[id.0 as usize])
    }

    pub fn output(&self, port: OutPort) -> Option<&'a Tensor> {
        self.node.outputs.get(&port).map(|id| &self.tensors[id.0 as usize])
    }

    fn extent(&self, port: InPort, axis: usize) -> i64 {
        self.input(port).and_then(|t| t.dim.get(axis)).copied().unwrap_or(0)
    }

    pub fn tokens(&self) -> i64 {
        self.extent(InPort::Token, 1)
    }

    pub fn k(&self) -> i64 {
        self.extent(InPort::Token, 2)
    }

    pub fn n(&self) -> i64 {
        self.extent(InPort::Weight, 2)
    }

    pub fn experts(&self) -> i64 {
        self.extent(InPort::Weight, 0)
    }

    pub fn routed(&self) -> i64 {
        match self.a.mode {
            MoeMode::Gather => self.extent(InPort::TokenIndex, 1),
            MoeMode::None | MoeMode::Scatter => self.tokens(),
        }
    }

    /// Groups and whether the last boundary is among the offsets. One expert: two offsets or more are boundaries, one is a start.
    pub fn groups(&self) -> Option<(i64, bool)> {
        let (list, experts) = (self.extent(InPort::FirstTokenOffset, 0), self.experts());
        match (experts, list) {
            (1, 1) => Some((1, false)),
            (1, n) if n > 1 => Some((n - 1, true)),
            (e, n) if e > 1 && n > 0 && n % e == 0 => Some((n, false)),
            (e, n) if e > 1 && n > 1 && n % e == 1 => Some((n - 1, true)),
            _ => None,
        }
    }
}

/// Presence of what inference needs; before it, so that open outputs pass.
pub(in crate::graph) fn operands(node: &Node, a: &MoeGroupedMatmulAttrs, tensors: &[Tensor]) -> Result<()> {
    let v = View { node, a, tensors };
    let needed: &[InPort] = match a.mode {
        MoeMode::None => &[InPort::Token, InPort::Weight, InPort::FirstTokenOffset],
        MoeMode::Gather => &[InPort::Token, InPort::Weight, InPort::FirstTokenOffset, InPort::TokenIndex],
        MoeMode::Scatter => &[InPort::Token, InPort::Weight, InPort::FirstTokenOffset, InPort::TokenIndex, InPort::TokenKs],
    };
    let list = || needed.iter().map(|p| p.json()).collect::<Vec<_>>().join(", ");
    if let Some(port) = needed.iter().find(|p| v.input(**p).is_none()) {
        let expected = format!("{} in mode {}", list(), a.mode.json());
        return Err(Error::new(ErrorCode::MissingPort, format!("no {}", port.json()), expected));
    }
    if v.output(OutPort::Output).is_none() {
        return Err(Error::new(ErrorCode::MissingPort, "no Output", "an output"));
    }
    for &port in &[InPort::Token, InPort::Weight, InPort::FirstTokenOffset] {
        if let Some(t) = v.input(port).filter(|t| t.dim.len() != 3) {
            let given = format!("{} with extents {:?}", named(port.json(), t), t.dim);
            return Err(Error::new(ErrorCode::MoeShape, given, "3 extents (rule 1 of the plain grouped product)"));
        }
    }
    let ports = node.inputs.values().chain(node.outputs.values());
    if let Some(t) = ports.map(|id| &tensors[id.0 as usize]).find(|t| t.ragged.is_some()) {
        let given = format!("ragged tensor '{}'", t.name);
        return Err(Error::new(ErrorCode::BadTensor, given, "dense operands; groups are told apart by FirstTokenOffset"));
    }
    Ok(())
}

/// Strides of weight scales that the user left open: blocks are contiguous, as K is.
pub(in crate::graph) fn input_strides(node: &Node, tensors: &mut [Tensor]) -> Result<()> {
    if let Some(id) = node.inputs.get(&InPort::Sfb) {
        let t = &mut tensors[id.0 as usize];
        if t.stride.is_empty() && t.dim.len() == 3 && t.dim.iter().all(|&d| d > 0) {
            t.stride = compact(&t.dim, &[0, 2, 1])?;
        }
    }
    Ok(())
}

/// Element types that only one value makes sense for, where none is named.
pub(in crate::graph) fn dtypes(node: &Node, tensors: &mut [Tensor]) {
    let integers = [InPort::FirstTokenOffset, InPort::TokenIndex, InPort::TokenKs].map(|p| node.inputs.get(&p));
    for id in integers.into_iter().chain([node.outputs.get(&OutPort::Status)]).flatten() {
        let t = &mut tensors[id.0 as usize];
        t.dtype = t.dtype.or(Some(DType::I32));
    }
}

/// Extents and strides of outputs that the user left open; operands have been found present.
pub(in crate::graph) fn outputs(node: &Node, a: &MoeGroupedMatmulAttrs, tensors: &mut [Tensor]) -> Result<()> {
    let v = View { node, a, tensors };
    let (routed, n) = (v.routed(), v.n());
    for (port, &TensorId(id)) in &node.outputs {
        let t = &mut tensors[id as usize];
        if t.dim.is_empty() {
            t.dim = if *port == OutPort::Status { vec![1] } else { vec![1, routed, n] };
        }
        if t.stride.is_empty() {
            t.stride = row_major(&t.dim)?;
        }
    }
    Ok(())
}

/// The rules in order; the first violation is the error.
pub(in crate::graph) fn check(node: &Node, a: &MoeGroupedMatmulAttrs, tensors: &[Tensor]) -> Result<()> {
    let v = View { node, a, tensors };
    for rule in MOE_RULES {
        if let Some((given, expected)) = (rule.check)(&v) {
            let expected = format!("{expected} (rule {} of the plain grouped product)", rule.number);
            return Err(Error::new(rule.code, given, expected));
        }
    }
    Ok(())
}

/// Operands that the operation does not have.
pub(in crate::graph) fn foreign_ports(node: &Node) -> Result<()> {
    use InPort as I;
    let own = |p: &&I| matches!(p, I::Token | I::Weight | I::FirstTokenOffset | I::TokenIndex | I::TokenKs | I::Sfa | I::Sfb);
    let input = node.inputs.keys().find(|p| !own(p));
    let output = node.outputs.keys().find(|p| !matches!(p, OutPort::Output | OutPort::Status));
    match input.map(|p| p.json()).or(output.map(|p| p.json())) {
        None => Ok(()),
        Some(port) => {
            let given = format!("{port} on {}", node.op.tag());
            Err(Error::new(ErrorCode::BadAttribute, given, "operands of the operation only"))
        }
    }
}

fn shapes(v: &View<'_>) -> Fault {
    let (t, r, n, k, e) = (v.tokens(), v.routed(), v.n(), v.k(), v.experts());
    let offsets = v.extent(InPort::FirstTokenOffset, 0);
    let weight_k = v.extent(InPort::Weight, 1);
    let all: [(&str, Option<&Tensor>, Vec<i64>); 7] = [
        ("Token", v.input(InPort::Token), vec![1, t, k]),
        ("Weight", v.input(InPort::Weight), vec![e, weight_k, n]),
        ("FirstTokenOffset", v.input(InPort::FirstTokenOffset), vec![offsets, 1, 1]),
        ("TokenIndex", v.input(InPort::TokenIndex), vec![1, r, 1]),
        ("TokenKs", v.input(InPort::TokenKs), vec![1, r, 1]),
        ("Output", v.output(OutPort::Output), vec![1, r, n]),
        ("Status", v.output(OutPort::Status), vec![1]),
    ];
    let (port, t, want) = all.into_iter().find_map(|(p, t, want)| Some((p, t.filter(|t| t.dim != want)?, want)))?;
    Some((format!("{} with extents {:?}", named(port, t), t.dim), format!("extents {want:?}")))
}

fn contraction(v: &View<'_>) -> Fault {
    let of_weight = v.extent(InPort::Weight, 1);
    (of_weight != v.k()).then(|| (format!("K {of_weight} of the weights and {} of the token", v.k()), "one K".into()))
}

fn layouts(v: &View<'_>) -> Fault {
    for (port, axis) in [(InPort::Token, 2), (InPort::Weight, 1)] {
        let Some(t) = v.input(port).filter(|t| dtype(t) == DType::F4E2M1) else { continue };
        let outer = (0..3).filter(|&a| a != axis && t.dim[a] > 1);
        if t.stride[axis] != 1 || t.dim[axis] % 2 != 0 || outer.into_iter().any(|a| t.stride[a] % 2 != 0) {
            let given = format!("{} with strides {:?} over {:?}", named(port.json(), t), t.stride, t.dim);
            return Some((given, "K contiguous and even, and rows that begin with a whole byte".into()));
        }
    }
    None
}

fn input_types(v: &View<'_>) -> Fault {
    let (token, weight) = (v.input(InPort::Token)?, v.input(InPort::Weight)?);
    let d = dtype(token);
    if !matches!(d, DType::F32 | DType::F16 | DType::BF16 | DType::F4E2M1) && !is_fp8(d) {
        let given = format!("{} of type {}", named("Token", token), d.json());
        return Some((given, "FLOAT, HALF, BFLOAT16, FP8_E4M3, FP8_E5M2 or FP4_E2M1".into()));
    }
    (dtype(weight) != d).then(|| {
        let given = format!("{} of type {} and Token of type {}", named("Weight", weight), dtype(weight).json(), d.json());
        (given, "one type of token and weights".into())
    })
}

fn scales(v: &View<'_>) -> Fault {
    let d = v.input(InPort::Token).map(dtype)?;
    let (sa, sb) = match (v.input(InPort::Sfa), v.input(InPort::Sfb)) {
        (None, None) if d == DType::F4E2M1 => {
            return Some(("FP4 values without scales".into(), "scales of both operands".into()))
        }
        (None, None) => return None,
        (Some(sa), Some(sb)) => (sa, sb),
        (Some(_), None) | (None, Some(_)) => {
            return Some(("scales of one operand only".into(), "scales of both operands, or of none".into()));
        }
    };
    if d != DType::F4E2M1 && !is_fp8(d) {
        return Some((format!("block scales of {} operands", d.json()), "scales of FP8 or FP4 operands".into()));
    }
    let sf = dtype(sa);
    if !matches!(sf, DType::F8E8M0 | DType::F8E4M3) || dtype(sb) != sf {
        let given = format!("scales of types {} and {}", sf.json(), dtype(sb).json());
        return Some((given, "FP8_E8M0 of both, or FP8_E4M3 of both".into()));
    }
    let expected = match (v.a.sf_vec_size, sf, d) {
        (32, DType::F8E4M3, _) => "16 values a scale with FP8_E4M3 scales",
        (16, _, DType::F4E2M1) | (32, _, _) => return None,
        (16, _, _) => "32 values a scale with FP8 operands",
        _ => "16 or 32 values a scale",
    };
    Some((format!("{} values a scale", v.a.sf_vec_size), expected.into()))
}

fn scale_shapes(v: &View<'_>) -> Fault {
    let vec = v.a.sf_vec_size.max(1);
    let up = |x: i64, by: i64| (x.max(0) as u64).div_ceil(by as u64).saturating_mul(by as u64) as i64;
    let blocks = up(v.k(), vec) / vec;
    for (port, rows) in [(InPort::Sfa, v.tokens()), (InPort::Sfb, v.n())] {
        let Some(t) = v.input(port) else { continue };
        let what = if port == InPort::Sfa { "scales of the token" } else { "scales of the weights" };
        let atoms = t.reordering == Reordering::F8_128x4;
        let (rows, blocks) = if atoms { (up(rows, 128), up(blocks, 4)) } else { (rows, blocks) };
        let (want, order) =
            if port == InPort::Sfa { ([1, rows, blocks], [0, 1, 2]) } else { ([v.experts(), blocks, rows], [0, 2, 1]) };
        if t.dim != want {
            let given = format!("{} with extents {:?}", named(what, t), t.dim);
            let kind = if atoms { ": whole atoms of 128 by 4" } else { "" };
            return Some((given, format!("extents {want:?}{kind}")));
        }
        let compact = compact(&t.dim, &order).ok();
        let same = |a: usize| t.dim[a] == 1 || compact.as_ref().is_some_and(|c| c[a] == t.stride[a]);
        if atoms && !(0..3).all(same) {
            let given = format!("{} with strides {:?} over {:?}", named(what, t), t.stride, t.dim);
            return Some((given, "compact strides with the blocks innermost: atoms are contiguous".into()));
        }
    }
    None
}

fn fixed_types(v: &View<'_>) -> Fault {
    if let Some(d) = v.node.compute_dtype.filter(|d| !matches!(d, DType::F32 | DType::F64)) {
        return Some((format!("compute type {}", d.json()), "FLOAT, or DOUBLE for the CPU".into()));
    }
    let offsets = v.input(InPort::FirstTokenOffset)?;
    if !matches!(dtype(offsets), DType::I32 | DType::I64) {
        let given = format!("{} of type {}", named("FirstTokenOffset", offsets), dtype(offsets).json());
        return Some((given, "INT32 or INT64".into()));
    }
    let all = [
        ("TokenIndex", v.input(InPort::TokenIndex)),
        ("TokenKs", v.input(InPort::TokenKs)),
        ("Status", v.output(OutPort::Status)),
    ];
    let (port, t) = all.into_iter().find_map(|(p, t)| Some((p, t.filter(|t| dtype(t) != DType::I32)?)))?;
    Some((format!("{} of type {}", named(port, t), dtype(t).json()), "INT32".into()))
}

fn routing(v: &View<'_>) -> Fault {
    let idle: &[InPort] = match v.a.mode {
        MoeMode::None => &[InPort::TokenIndex, InPort::TokenKs],
        MoeMode::Gather => &[InPort::TokenKs],
        MoeMode::Scatter => &[],
    };
    let port = idle.iter().find(|p| v.input(**p).is_some())?;
    Some((format!("{} in mode {}", port.json(), v.a.mode.json()), "only what the mode reads".into()))
}

fn offsets(v: &View<'_>) -> Fault {
    let (list, experts) = (v.extent(InPort::FirstTokenOffset, 0), v.experts());
    let Some((groups, _)) = v.groups() else {
        let given = format!("{list} offsets for {experts} experts");
        return Some((given, "as many as there are groups, a multiple of the experts, or one more".into()));
    };
    (groups > MAX_GROUPS).then(|| (format!("{groups} groups"), format!("at most {MAX_GROUPS}")))
}

fn output_type(v: &View<'_>) -> Fault {
    let t = v.output(OutPort::Output)?;
    (!matches!(dtype(t), DType::F32 | DType::F16 | DType::BF16))
        .then(|| (format!("{} of type {}", named("Output", t), dtype(t).json()), "FLOAT, HALF or BFLOAT16".into()))
}

fn top_k(v: &View<'_>) -> Fault {
    if v.a.mode != MoeMode::Scatter {
        return None;
    }
    let (k, rows) = (v.a.top_k, v.routed());
    let bad = k < 1 || rows % k != 0 || k > i64::from(i32::MAX);
    bad.then(|| (format!("top_k {k} with {rows} routed rows"), "at least 1, with as many rows for every token".into()))
}
