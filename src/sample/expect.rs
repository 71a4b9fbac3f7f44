//! What the f64 oracle says every output is, and how far results are from it.

use super::{available, data_error, grouped, moe, size, HostTensor, HostTensors};
use crate::analyze::analyze;
use crate::graph::{FrozenGraph, OutPort, Tensor};
use crate::{Error, ErrorCode, Result};
use frostgraph_engines::sdpa::access::Rows;
use frostgraph_engines::sdpa::dense::{error_beyond, write_dense};
use frostgraph_engines::sdpa::{oracle, Direction, Recipe};
use frostgraph_engines::{qat, DType, Facts, Feature, Port, SdpaFacts, Uid};
use std::sync::Arc;

/// The oracle's values of one output.
#[derive(Debug, Clone, PartialEq)]
pub struct Expectation {
    /// Tensor.
    pub uid: Uid,
    /// Label of the tensor; may be empty.
    pub name: String,
    /// Port of the node that writes it.
    pub port: OutPort,
    values: Values,
}

/// What an output must hold.
#[derive(Debug, Clone, PartialEq)]
enum Values {
    Attention(Box<Attention>),
    /// The results of a whole grouped product, shared by its outputs.
    Grouped(Arc<grouped::Expected>),
    /// The results of a plain grouped product.
    Moe(Arc<moe::Expected>),
}

#[derive(Debug, Clone, PartialEq)]
struct Attention {
    facts: SdpaFacts,
    operand: Port,
    rows: Rows,
    dense: Vec<f64>,
    /// How far each element may be off beyond rounding (steps of a quantiser near its ties); empty where nothing may.
    reach: Vec<f64>,
}

/// How far one output is from the oracle.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// Tensor.
    pub uid: Uid,
    /// Label of the tensor; may be empty.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Relative Frobenius error (of a grouped product's amax the largest relative error, of its scales the largest difference of codes), beyond what a quantiser may step near its ties; infinite when a NaN or a wrong infinity is found.
    pub error: f64,
    /// Largest error that passes.
    pub tolerance: f64,
}

impl Comparison {
    /// Whether the error is within the tolerance.
    pub fn passed(&self) -> bool {
        self.error <= self.tolerance
    }
}

/// Largest relative Frobenius error that passes, by the element type of the output: one rounding of the result leaves 2^-9 of it in
/// bf16 and 2^-12 in f16, and f32 accumulates.
pub const fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 1e-2,
        DType::F16 => 2e-3,
        DType::F32
        | DType::F64
        | DType::I8
        | DType::I32
        | DType::I8x4
        | DType::U8
        | DType::U8x4
        | DType::I8x32
        | DType::I64
        | DType::Bool
        | DType::ByteBool
        | DType::F8E4M3
        | DType::F8E5M2
        | DType::FastF8
        | DType::F8E8M0
        | DType::F8E5M3
        | DType::F4E2M1
        | DType::I4
        | DType::C64
        | DType::C128 => 1e-5,
    }
}

/// The oracle's arrays are plain vectors of f64, as large as the declared extents whatever the strides: what this machine has no memory for
/// is refused before it ends the process.
fn fits(graph: &FrozenGraph) -> Result<()> {
    let elements = |t: &Tensor| t.dim.iter().fold(1u64, |n, d| n.saturating_mul(u64::try_from(*d).unwrap_or(0)));
    let need = graph.tensors().map(|(_, t)| elements(t).saturating_mul(8)).fold(0u64, u64::saturating_add);
    if need <= available() {
        return Ok(());
    }
    let given = format!("{need} bytes for the tensors in f64");
    Err(Error::new(ErrorCode::BufferSize, given, "a graph that this machine has memory to check"))
}

/// Evaluates the graph in f64 on the inputs as they are stored. A tensor between nodes is rounded to its element type, as it is in a run.
///
/// Quadratic in the sequence length and unblocked: meant for checks, not for use. FG4002 when the tensors in f64 exceed this machine's
/// memory, FG4006 when the data contradict the graph.
pub fn expected(graph: &FrozenGraph, inputs: &HostTensors) -> Result<Vec<Expectation>> {
    fits(graph)?;
    let mut store = inputs.clone();
    let mut all = Vec::new();
    for &n in graph.order() {
        let facts = match analyze(graph, n) {
            Facts::Sdpa(facts) => facts,
            Facts::GroupedGemm(facts) => {
                let made = Arc::new(grouped::Expected::new(&facts, &store)?);
                all.extend(made.ports().into_iter().map(|(port, operand)| Expectation {
                    uid: operand.uid,
                    name: operand.name.clone(),
                    port,
                    values: Values::Grouped(Arc::clone(&made)),
                }));
                grouped::store_results(graph, n, &facts, &mut store)?;
                continue;
            }
            Facts::Moe(facts) => {
                let made = Arc::new(moe::Expected::new(&facts, &store)?);
                all.extend(made.ports().into_iter().map(|(port, operand)| Expectation {
                    uid: operand.uid,
                    name: operand.name.clone(),
                    port,
                    values: Values::Moe(Arc::clone(&made)),
                }));
                moe::store_results(graph, n, &facts, &mut store)?;
                continue;
            }
        };
        for (port, e) in of_node(graph, n, *facts, &store)? {
            let id = graph.nodes()[n].outputs[&port];
            let mut buffer = HostTensor::zeroed(size::tensor_bytes(graph, id, &store.view())?)?;
            write_dense(&e.facts, &e.operand, e.rows, &store.view(), &e.dense, buffer.bytes_mut()).map_err(data_error)?;
            let (uid, name) = (e.operand.uid, e.operand.name.clone());
            store.0.insert(uid, buffer);
            all.push(Expectation { uid, name, port, values: Values::Attention(Box::new(e)) });
        }
    }
    Ok(all)
}

fn of_node(graph: &FrozenGraph, n: usize, facts: SdpaFacts, store: &HostTensors) -> Result<Vec<(OutPort, Attention)>> {
    let p = &facts.ports;
    let view = store.view();
    let exact = |port, operand, rows, dense| (port, operand, rows, dense, Vec::new());
    type Found<'a> = (OutPort, &'a Option<Port>, Rows, Vec<f64>, Vec<f64>);
    let found: Vec<Found<'_>> = match (facts.direction, facts.recipe) {
        (Direction::Forward, Recipe::Plain) => {
            let f = oracle::forward(&facts, &view).map_err(data_error)?;
            let stats = if facts.features.has(Feature::StatsLog2) { f.stats_log2() } else { f.stats };
            vec![
                exact(OutPort::O, &p.o, Rows::Query, f.o),
                exact(OutPort::Stats, &p.stats, Rows::Query, stats),
                exact(OutPort::Max, &p.score_max, Rows::Query, f.score_max),
                exact(OutPort::SumExp, &p.score_sum_exp, Rows::Query, f.score_sum_exp),
            ]
        }
        (Direction::Backward, Recipe::Plain) => {
            let f = oracle::backward(&facts, &view).map_err(data_error)?;
            vec![
                exact(OutPort::DQ, &p.dq, Rows::Query, f.dq),
                exact(OutPort::DK, &p.dk, Rows::Key, f.dk),
                exact(OutPort::DV, &p.dv, Rows::Key, f.dv),
                exact(OutPort::DBias, &p.dbias, Rows::Declared, f.dbias),
                exact(OutPort::DSink, &p.dsink, Rows::Declared, f.dsink),
            ]
        }
        (Direction::Forward, Recipe::Nvfp4Qat) => {
            let f = qat::oracle::forward(&facts, &view).map_err(data_error)?;
            vec![
                (OutPort::O, &p.o, Rows::Query, f.o, f.o_reach),
                exact(OutPort::HighPrecisionO, &p.high_precision_o, Rows::Query, f.plain.o),
                exact(OutPort::Stats, &p.stats, Rows::Query, f.plain.stats),
            ]
        }
        (Direction::Backward, Recipe::Nvfp4Qat) => {
            let f = qat::oracle::backward(&facts, &view).map_err(data_error)?;
            vec![
                exact(OutPort::DQ, &p.dq, Rows::Query, f.plain.dq),
                exact(OutPort::DK, &p.dk, Rows::Key, f.plain.dk),
                (OutPort::DV, &p.dv, Rows::Key, f.dv, f.dv_reach),
            ]
        }
    };
    let outputs = &graph.nodes()[n].outputs;
    Ok(found
        .into_iter()
        .filter(|f| outputs.contains_key(&f.0))
        .filter_map(|(port, operand, rows, dense, reach)| Some((port, operand.clone()?, rows, dense, reach)))
        .map(|(port, operand, rows, dense, reach)| (port, Attention { facts: facts.clone(), operand, rows, dense, reach }))
        .collect())
}

/// Refuses the auxiliaries of an NVFP4 QAT backward that its Q, K and V contradict, by computing a few rows of them again. Auxiliaries that
/// another node of the graph makes are not looked at.
///
/// Errors: FG4006 that names the tensor and, where it is a known one, the mistake: LSE in log base 2, the user-visible O.
pub fn check_auxiliaries(graph: &FrozenGraph, inputs: &HostTensors) -> Result<()> {
    let view = inputs.view();
    for &n in graph.order() {
        let Facts::Sdpa(facts) = analyze(graph, n) else { continue };
        let (p, qat) = (&facts.ports, (facts.direction, facts.recipe) == (Direction::Backward, Recipe::Nvfp4Qat));
        if qat && [&p.q, &p.k, &p.v, &p.o, &p.stats].into_iter().flatten().all(|p| view.contains_key(&p.uid)) {
            qat::check::auxiliaries(&facts, &view).map_err(data_error)?;
        }
    }
    Ok(())
}

/// Compares results with the oracle, in the order of `expected`; tensors that `results` lacks (virtual ones) are left out.
pub fn check(expected: &[Expectation], inputs: &HostTensors, results: &HostTensors) -> Result<Vec<Comparison>> {
    let mut out = Vec::new();
    for e in expected {
        let Some(bytes) = results.bytes(e.uid) else { continue };
        let (dtype, error, tolerance) = match &e.values {
            Values::Attention(a) => {
                let (view, dtype) = (inputs.view(), a.operand.dtype);
                let error = error_beyond(&a.facts, &a.operand, a.rows, &view, bytes, &a.dense, &a.reach).map_err(data_error)?;
                (dtype, error, tolerance(dtype))
            }
            Values::Grouped(g) => match g.compare(e.port, bytes, results) {
                Some(found) => found,
                None => continue,
            },
            Values::Moe(m) => match m.compare(e.port, bytes) {
                Some(found) => found,
                None => continue,
            },
        };
        out.push(Comparison { uid: e.uid, name: e.name.clone(), dtype, error, tolerance });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Graph, GraphOptions, Sdpa};
    use crate::ErrorCode;

    /// Keys that all lie at one address take 128 bytes and 2^44 elements: nothing to bind is large, and yet no machine can check it.
    #[test]
    fn a_broadcast_graph_that_no_machine_can_check() {
        let mut g = Graph::new(GraphOptions::default());
        let q = g.tensor(Tensor::new("q", [1, 1, 1, 64]));
        let [k, v] = ["k", "v"].map(|n| g.tensor(Tensor::new(n, [1, 1, 1 << 38, 64]).strides([0, 0, 0, 1])));
        let out = g.sdpa(q, k, v, Sdpa::default()).unwrap();
        g.output(out.o).unwrap();
        let e = expected(&g.freeze().unwrap(), &HostTensors::default()).unwrap_err();
        assert!(e.code == ErrorCode::BufferSize && e.to_string().contains("281474976711680 bytes"), "{e}");
    }
}
