//! Inputs of a case on the host, and what the outputs must be.

use crate::build::{offsets, tokens, BIAS, DBIAS, DK, DQ, DSINK, DV, D_O, K, O, Q, RAG_KV, RAG_Q, SEQ_KV, SEQ_Q, SINK, STATS, V};
use crate::cases::{Case, Lens};
use crate::rng::Rng;
use crate::rounding;
use frostgraph::engines::sdpa::access::{Inputs, Rows};
use frostgraph::engines::sdpa::dense::{dense_shape, read_dense, write_dense};
use frostgraph::engines::sdpa::oracle::{OracleBackward, Problem};
use frostgraph::engines::{Facts, HostError, Port, SdpaFacts};
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
    pub expected: OracleBackward,
    /// The io-rounding yardstick.
    pub rounded: OracleBackward,
}

fn host(e: HostError) -> Error {
    Error::new(ErrorCode::BadData, e.to_string(), "a well-formed case")
}

pub fn facts_of(facts: &Facts) -> &SdpaFacts {
    let Facts::Sdpa(f) = facts;
    f
}

fn ints(values: &[i64], wide: bool) -> Vec<u8> {
    let write = |v: &i64| if wide { v.to_ne_bytes().to_vec() } else { (*v as i32).to_ne_bytes().to_vec() };
    values.iter().flat_map(write).collect()
}

/// The ports of a backward by uid, with the axis that bounds their rows.
pub fn ports(f: &SdpaFacts) -> Vec<(&Port, Rows)> {
    let p = &f.ports;
    let all = [
        (&p.q, Rows::Query),
        (&p.k, Rows::Key),
        (&p.v, Rows::Key),
        (&p.o, Rows::Query),
        (&p.d_o, Rows::Query),
        (&p.stats, Rows::Query),
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

pub fn is_output(uid: i64) -> bool {
    [DQ, DK, DV, DBIAS, DSINK].contains(&uid)
}

pub fn expected_of(b: &OracleBackward, uid: i64) -> &[f64] {
    match uid {
        DQ => &b.dq,
        DK => &b.dk,
        DV => &b.dv,
        DBIAS => &b.dbias,
        _ => &b.dsink,
    }
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
    if let Lens::Padded { q, kv } | Lens::Thd { q, kv, .. } = &case.lens {
        tensors.insert(SEQ_Q, ints(q, false));
        tensors.insert(SEQ_KV, ints(kv, false));
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
    let (len_q, len_kv) = match &case.lens {
        Lens::Full => (&full_q, &full_kv),
        Lens::Padded { q, kv } | Lens::Thd { q, kv, .. } => (q, kv),
    };
    let random = [Q, K, V, D_O, BIAS, SINK];
    for (port, rows) in ports(&f).into_iter().filter(|(p, _)| random.contains(&p.uid)) {
        let mut dense = rng.normals(dense_shape(&f, port, rows).iter().product());
        match rows {
            Rows::Query => spoil(&f, port, rows, len_q, &mut dense),
            Rows::Key => spoil(&f, port, rows, len_kv, &mut dense),
            Rows::Declared => {}
        }
        store(&f, port, rows, &dense, &mut tensors)?;
    }
    // The forward's results in the precision in which they are stored.
    let problem = Problem::gather(&f, &borrow(&tensors)).map_err(host)?;
    let forward = problem.forward();
    for (port, rows) in ports(&f) {
        let mut dense = match port.uid {
            O => forward.o.clone(),
            STATS => forward.stats.clone(),
            _ => continue,
        };
        spoil(&f, port, rows, len_q, &mut dense);
        store(&f, port, rows, &dense, &mut tensors)?;
    }
    let inputs = borrow(&tensors);
    let read = |uid: i64| -> Result<Vec<f64>> {
        let (port, rows) = ports(&f).into_iter().find(|(p, _)| p.uid == uid).ok_or_else(|| host(no_port(uid)))?;
        read_dense(&f, port, rows, &inputs, inputs[&uid]).map_err(host)
    };
    let (o, stats, d_o) = (read(O)?, read(STATS)?, read(D_O)?);
    let expected = problem.backward(&o, &stats, &d_o);
    let dbias = case.dbias.unwrap_or(DType::F32);
    let rounded = rounding::backward(&problem, &o, &stats, &d_o, case.dtype, dbias);
    let mut owned = BTreeMap::new();
    for (port, rows) in ports(&f).into_iter().filter(|(p, _)| is_output(p.uid)) {
        // Zeros go exactly where elements lie.
        let mut bytes = vec![POISON; tensors[&port.uid].len()];
        let zeros = vec![0.0; dense_shape(&f, port, rows).iter().product()];
        write_dense(&f, port, rows, &inputs, &zeros, &mut bytes).map_err(host)?;
        owned.insert(port.uid, bytes.into_iter().map(|b| b == 0).collect());
    }
    drop(inputs);
    Ok(Prepared { facts: f, tensors, owned, expected, rounded })
}

fn no_port(uid: i64) -> HostError {
    HostError { given: format!("no port with uid {uid}"), expected: "a port".into(), tensor: String::new() }
}

pub fn borrow(tensors: &BTreeMap<i64, Vec<u8>>) -> Inputs<'_> {
    tensors.iter().map(|(&uid, bytes)| (uid, bytes.as_slice())).collect()
}

fn store(f: &SdpaFacts, port: &Port, rows: Rows, dense: &[f64], tensors: &mut BTreeMap<i64, Vec<u8>>) -> Result<()> {
    let mut bytes = tensors.remove(&port.uid).unwrap_or_default();
    write_dense(f, port, rows, &borrow(tensors), dense, &mut bytes).map_err(host)?;
    tensors.insert(port.uid, bytes);
    Ok(())
}

/// Worst distance of one output: relative Frobenius norm, and largest difference over the largest value.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Distance {
    pub frobenius: f64,
    pub peak: f64,
}

/// Inputs are of unit size, and so are gradients unless they cancel (a single key has dQ = 0 exactly): below this size what is left is
/// fp32 noise, and errors count absolutely.
const FLOOR: f64 = 1e-3;

pub fn distance(got: &[f64], want: &[f64]) -> Distance {
    let (mut diff, mut norm, mut peak, mut top) = (0.0f64, got.len() as f64 * FLOOR * FLOOR, 0.0f64, FLOOR);
    for (&g, &w) in got.iter().zip(want) {
        if !g.is_finite() {
            return Distance { frobenius: f64::INFINITY, peak: f64::INFINITY };
        }
        diff += (g - w).powi(2);
        norm += w.powi(2);
        peak = peak.max((g - w).abs());
        top = top.max(w.abs());
    }
    Distance { frobenius: (diff / norm).sqrt(), peak: peak / top }
}

/// Compares one output with the oracle: at most twice what io rounding costs, and never above 1e-2 (bf16) or 2e-3 (f16).
///
/// With a few elements both errors are luck, so there one unit of the last place is allowed (two for the peak). Rows past a length must be
/// exactly zero.
pub fn judge(case: &Case, p: &Prepared, uid: i64, bytes: &[u8]) -> Result<Distance> {
    let (port, rows) = ports(&p.facts).into_iter().find(|(x, _)| x.uid == uid).ok_or_else(|| host(no_port(uid)))?;
    let got = read_dense(&p.facts, port, rows, &borrow(&p.tensors), bytes).map_err(host)?;
    let (want, rounded) = (expected_of(&p.expected, uid), expected_of(&p.rounded, uid));
    let (is, yard) = (distance(&got, want), distance(rounded, want));
    let (cap, unit) = if case.dtype == DType::BF16 { (1e-2, 1.0 / 256.0) } else { (2e-3, 1.0 / 2048.0) };
    let unit: f64 = if got.len() <= 64 { unit } else { 0.0 };
    // An fp32 output (dBias, dSink) is never rounded to the io type: there the yardstick is fp32 arithmetic and its exponential.
    let unit = if port.dtype == DType::F32 { unit.max(1e-4) } else { unit };
    let frobenius = (2.0 * yard.frobenius).max(unit).min(cap);
    let peak = (2.0 * yard.peak).max(2.0 * unit).min(2.0 * cap);
    let [_, h, s, d] = dense_shape(&p.facts, port, rows);
    if let (Lens::Padded { q, kv }, true) = (&case.lens, rows != Rows::Declared) {
        let lens = if rows == Rows::Query { q } else { kv };
        let past = |i: usize| (i / d % s) as i64 >= lens[i / (h * s * d)];
        if let Some(i) = (0..got.len()).find(|&i| past(i) && got[i] != 0.0) {
            let given = format!("{} is {} at dense index {i}, past its sequence's length", port.name, got[i]);
            return Err(Error::new(ErrorCode::CheckFailed, given, "exactly 0"));
        }
    }
    if is.frobenius <= frobenius && is.peak <= peak {
        return Ok(is);
    }
    let worst = got.iter().zip(want).enumerate().max_by(|(_, (a, b)), (_, (c, d))| {
        let gap = |x: &f64, y: &f64| if x.is_finite() { (x - y).abs() } else { f64::INFINITY };
        gap(a, b).total_cmp(&gap(c, d))
    });
    Err(Error::new(
        ErrorCode::CheckFailed,
        format!("{} is off by {:.2e} (peak {:.2e})", port.name, is.frobenius, is.peak),
        format!("at most {frobenius:.2e} (peak {peak:.2e})"),
    )
    .details(
        worst.map(|(i, (g, w))| {
            format!("worst at dense index {i} of {:?}: {g} instead of {w}", dense_shape(&p.facts, port, rows))
        }),
    ))
}
