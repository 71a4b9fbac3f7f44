//! Inputs of a case on the host, and what the outputs must be.

use crate::build::{offsets, tokens, BIAS, CU_KV, CU_Q, DBIAS, DK, DQ, DSINK, DV, D_O, HIGH, K, MAX, O, Q, RAG_KV, RAG_Q};
use crate::build::{SCALE, SEQ_KV, SEQ_Q, SINK, STATS, SUM, TABLE_K, TABLE_V, V};
use crate::cases::{Case, Lens, ScaleKind};
use crate::rng::Rng;
use crate::rounding;
use crate::values;
use frostgraph::engines::qat::oracle::Qat;
use frostgraph::engines::sdpa::access::{Inputs, Rows};
use frostgraph::engines::sdpa::dense::{dense_shape, read_dense, write_dense};
use frostgraph::engines::sdpa::oracle::{OracleBackward, OracleForward, Problem};
use frostgraph::engines::{Facts, Feature, HostError, Port, SdpaFacts};
use frostgraph::{DType, Error, ErrorCode, Result};
use std::collections::BTreeMap;

/// Poison of outputs, padding and stride gaps: NaN in every float type.
pub const POISON: u8 = 0xff;

pub struct Prepared {
    pub facts: SdpaFacts,
    /// Every tensor's bytes, outputs poisoned.
    pub tensors: BTreeMap<i64, Vec<u8>>,
    /// For each output, which bytes belong to elements that must be written.
    pub owned: BTreeMap<i64, Vec<bool>>,
    /// What each output must hold, by uid.
    pub expected: Outputs,
    /// How far each element may be off through steps of a quantiser near its ties; outputs that are not here may not.
    pub reach: Outputs,
    /// The io-rounding yardstick.
    pub rounded: Outputs,
    /// Query rows that see no key, the sink not counted; of a forward.
    pub empty_rows: Option<Vec<bool>>,
}

/// Dense outputs by uid.
pub type Outputs = BTreeMap<i64, Vec<f64>>;

pub fn host(e: HostError) -> Error {
    Error::new(ErrorCode::BadData, e.to_string(), "a well-formed case")
}

pub fn facts_of(facts: &Facts) -> &SdpaFacts {
    facts.expect_sdpa()
}

pub fn ints(values: &[i64], wide: bool) -> Vec<u8> {
    let write = |v: &i64| if wide { v.to_ne_bytes().to_vec() } else { (*v as i32).to_ne_bytes().to_vec() };
    values.iter().flat_map(write).collect()
}

/// The ports by uid, with the axis that bounds their rows.
pub fn ports(f: &SdpaFacts) -> Vec<(&Port, Rows)> {
    let p = &f.ports;
    let all = [
        (&p.q, Rows::Query),
        (&p.k, Rows::Key),
        (&p.v, Rows::Key),
        (&p.o, Rows::Query),
        (&p.high_precision_o, Rows::Query),
        (&p.d_o, Rows::Query),
        (&p.stats, Rows::Query),
        (&p.score_max, Rows::Query),
        (&p.score_sum_exp, Rows::Query),
        (&p.dq, Rows::Query),
        (&p.dk, Rows::Key),
        (&p.dv, Rows::Key),
        (&p.bias, Rows::Declared),
        (&p.sink, Rows::Declared),
        (&p.dbias, Rows::Declared),
        (&p.dsink, Rows::Declared),
    ];
    all.into_iter().filter_map(|(p, rows)| Some((p.as_ref()?, rows))).collect()
}

/// Uids that the node writes.
fn written(case: &Case) -> &'static [i64] {
    if case.is_forward() {
        &[O, HIGH, STATS, MAX, SUM]
    } else {
        &[DQ, DK, DV, DBIAS, DSINK]
    }
}

fn gradients(b: OracleBackward) -> Outputs {
    BTreeMap::from([(DQ, b.dq), (DK, b.dk), (DV, b.dv), (DBIAS, b.dbias), (DSINK, b.dsink)])
}

/// The forward's outputs; a packed output has no rows past a length, which read back as 0.
fn results(f: &SdpaFacts, problem: &Problem, x: OracleForward) -> Outputs {
    let stats = if f.features.has(Feature::StatsLog2) { x.stats_log2() } else { x.stats };
    let mut out = BTreeMap::from([(O, x.o), (STATS, stats), (MAX, x.score_max), (SUM, x.score_sum_exp)]);
    for (port, _) in ports(f).into_iter().filter(|(p, _)| p.ragged.is_some()) {
        let Some(dense) = out.get_mut(&port.uid) else { continue };
        let [_, h, s, d] = dense_shape(f, port, Rows::Query);
        for (i, v) in dense.iter_mut().enumerate() {
            if (i / d % s) as i64 >= problem.lens.q[i / (h * s * d)] {
                *v = 0.0;
            }
        }
    }
    out
}

/// Bytes of a port: what the declared extents address, or the packed tokens.
fn port_bytes(case: &Case, port: &Port, rows: Rows) -> u64 {
    let width = port.dtype.bytes().unwrap_or(1);
    let packed = match (&case.lens, rows) {
        (Lens::Thd { q, .. }, Rows::Query) => Some(tokens(q)),
        (Lens::Thd { kv, .. }, Rows::Key) => Some(tokens(kv)),
        (Lens::Thd { .. } | Lens::Full | Lens::Padded { .. }, _) => None,
    };
    let elements = match packed {
        Some(t) => (t * port.dim[1] * port.dim[3]) as u64,
        None => port.span().unwrap_or(0),
    };
    elements * width
}

/// Rows of a dense array that lie past the batch entry's length become NaN: garbage that must not reach a result.
fn spoil(f: &SdpaFacts, port: &Port, rows: Rows, lens: &[i64], dense: &mut [f64]) {
    let [_, h, s, d] = dense_shape(f, port, rows);
    for (i, x) in dense.iter_mut().enumerate() {
        let (b, row) = (i / (h * s * d), i / d % s);
        if row as i64 >= lens[b] {
            *x = f64::NAN;
        }
    }
}

pub fn prepare(case: &Case, facts: &Facts, seed: u64) -> Result<Prepared> {
    let f = facts_of(facts).clone();
    let mut rng = Rng(seed);
    let mut tensors: BTreeMap<i64, Vec<u8>> = BTreeMap::new();
    if let Some((q, kv)) = case.lens.both() {
        if case.fwd.cu {
            tensors.insert(CU_Q, ints(&values::prefix_sums(q), false));
            tensors.insert(CU_KV, ints(&values::prefix_sums(kv), false));
        } else {
            tensors.insert(SEQ_Q, ints(q, false));
            tensors.insert(SEQ_KV, ints(kv, false));
        }
        if let Some(pages) = case.fwd.pages {
            for uid in [TABLE_K, TABLE_V] {
                tensors.insert(uid, ints(&values::block_table(case, pages, kv, &mut rng), false));
            }
        }
    }
    if case.fwd.scale == ScaleKind::Tensor {
        tensors.insert(SCALE, case.scale().to_le_bytes().to_vec());
    }
    if let Lens::Thd { q, kv, wide, .. } = &case.lens {
        tensors.insert(RAG_Q, ints(&offsets(q), *wide));
        tensors.insert(RAG_KV, ints(&offsets(kv), *wide));
    }
    for (port, rows) in ports(&f) {
        tensors.insert(port.uid, vec![POISON; port_bytes(case, port, rows) as usize]);
    }
    let full_q = vec![case.s_q; case.b as usize];
    let full_kv = vec![case.s_kv; case.b as usize];
    let (len_q, len_kv) = case.lens.both().unwrap_or((&full_q, &full_kv));
    let random = [Q, K, V, D_O, BIAS, SINK];
    for (port, rows) in ports(&f).into_iter().filter(|(p, _)| random.contains(&p.uid)) {
        let shape = dense_shape(&f, port, rows);
        let mut dense = rng.normals(shape.iter().product());
        values::bend(case, port.uid, shape, &mut dense);
        match rows {
            Rows::Query => spoil(&f, port, rows, len_q, &mut dense),
            Rows::Key => spoil(&f, port, rows, len_kv, &mut dense),
            Rows::Declared => {}
        }
        store(&f, port, rows, &dense, &mut tensors)?;
    }
    let mut reach = Outputs::new();
    let (expected, rounded, empty_rows) = if case.is_qat() {
        qat(case, &f, len_q, &mut tensors, &mut reach)?
    } else {
        let problem = Problem::gather(&f, &borrow(&tensors)).map_err(host)?;
        let forward = problem.forward();
        if case.is_forward() {
            let empty = empty_rows(&forward);
            let rounded = rounding::forward(&problem, &forward, case.dtype);
            (results(&f, &problem, forward), results(&f, &problem, rounded), Some(empty))
        } else {
            let [o, stats, d_o] = backward_inputs(&f, forward, len_q, &mut tensors)?;
            let rounded = rounding::backward(&problem, &o, &stats, &d_o, case.dtype, case.dbias.unwrap_or(DType::F32));
            (gradients(problem.backward(&o, &stats, &d_o)), gradients(rounded), None)
        }
    };
    let inputs = borrow(&tensors);
    let mut owned = BTreeMap::new();
    for (port, rows) in ports(&f).into_iter().filter(|(p, _)| written(case).contains(&p.uid)) {
        // Zeros go exactly where elements lie.
        let mut bytes = vec![POISON; tensors[&port.uid].len()];
        let zeros = vec![0.0; dense_shape(&f, port, rows).iter().product()];
        write_dense(&f, port, rows, &inputs, &zeros, &mut bytes).map_err(host)?;
        owned.insert(port.uid, bytes.into_iter().map(|b| b == 0).collect());
    }
    drop(inputs);
    Ok(Prepared { facts: f, tensors, owned, expected, reach, rounded, empty_rows })
}

/// Query rows that see no key.
fn empty_rows(forward: &OracleForward) -> Vec<bool> {
    forward.score_max.iter().map(|&m| m == f64::NEG_INFINITY).collect()
}

/// Expected outputs, the yardstick, and the empty rows of a forward.
type Wanted = (Outputs, Outputs, Option<Vec<bool>>);

/// What an NVFP4 QAT case must give. The yardstick is that of attention over the quantised operands; where the quantised P enters, which
/// bf16 holds exactly, the plain P's rounding stays as the allowance for what a chain rounds otherwise.
fn qat(case: &Case, f: &SdpaFacts, len_q: &[i64], tensors: &mut BTreeMap<i64, Vec<u8>>, reach: &mut Outputs) -> Result<Wanted> {
    let moved = |want: &[f64], rounded: &[f64], plain: &[f64]| -> Vec<f64> {
        want.iter().zip(rounded).zip(plain).map(|((w, r), p)| rounding::rounded(w + (r - p), case.dtype)).collect()
    };
    let qat = Qat::gather(f, &borrow(tensors)).map_err(host)?;
    if case.is_forward() {
        let x = qat.forward();
        let r = rounding::forward(&qat.problem, &x.plain, case.dtype);
        let empty = empty_rows(&x.plain);
        reach.insert(O, x.o_reach);
        let rounded = BTreeMap::from([(O, moved(&x.o, &r.o, &x.plain.o)), (HIGH, r.o), (STATS, r.stats)]);
        return Ok((BTreeMap::from([(O, x.o), (HIGH, x.plain.o), (STATS, x.plain.stats)]), rounded, Some(empty)));
    }
    let [o, stats, d_o] = backward_inputs(f, qat.problem.forward(), len_q, tensors)?;
    let x = qat.backward(&o, &stats, &d_o);
    let r = rounding::backward(&qat.problem, &o, &stats, &d_o, case.dtype, DType::F32);
    reach.insert(DV, x.dv_reach);
    let rounded = BTreeMap::from([(DQ, r.dq), (DK, r.dk), (DV, moved(&x.dv, &r.dv, &x.plain.dv))]);
    Ok((BTreeMap::from([(DQ, x.plain.dq), (DK, x.plain.dk), (DV, x.dv)]), rounded, None))
}

/// Stores the forward's O and Stats in the precision in which they are stored, and reads back O, Stats and dO.
fn backward_inputs(
    f: &SdpaFacts,
    forward: OracleForward,
    len_q: &[i64],
    tensors: &mut BTreeMap<i64, Vec<u8>>,
) -> Result<[Vec<f64>; 3]> {
    for (uid, mut dense) in [(O, forward.o), (STATS, forward.stats)] {
        let (port, rows) = port_of(f, uid)?;
        spoil(f, port, rows, len_q, &mut dense);
        store(f, port, rows, &dense, tensors)?;
    }
    let inputs = borrow(tensors);
    let read = |uid: i64| -> Result<Vec<f64>> {
        let (port, rows) = port_of(f, uid)?;
        read_dense(f, port, rows, &inputs, inputs[&uid]).map_err(host)
    };
    Ok([read(O)?, read(STATS)?, read(D_O)?])
}

/// The port with this uid and the axis that bounds its rows.
pub fn port_of(f: &SdpaFacts, uid: i64) -> Result<(&Port, Rows)> {
    ports(f).into_iter().find(|(p, _)| p.uid == uid).ok_or_else(|| {
        host(HostError { given: format!("no port with uid {uid}"), expected: "a port".into(), tensor: String::new() })
    })
}

pub fn borrow(tensors: &BTreeMap<i64, Vec<u8>>) -> Inputs<'_> {
    tensors.iter().map(|(&uid, bytes)| (uid, bytes.as_slice())).collect()
}

pub fn store(f: &SdpaFacts, port: &Port, rows: Rows, dense: &[f64], tensors: &mut BTreeMap<i64, Vec<u8>>) -> Result<()> {
    let mut bytes = tensors.remove(&port.uid).unwrap_or_default();
    write_dense(f, port, rows, &borrow(tensors), dense, &mut bytes).map_err(host)?;
    tensors.insert(port.uid, bytes);
    Ok(())
}
