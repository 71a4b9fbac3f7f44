//! Between caller buffers and dense f64 arrays `[B][H][S][D]`: what the oracle computes on and what results are compared with.

use super::access::{bytes_of, need, Inputs, Place, Rows};
use super::lengths::Lengths;
use crate::{HostError, Port, SdpaFacts};

/// Rows of the dense array of a port: the declared sequence extent, or the node's when the port is packed.
fn extent(facts: &SdpaFacts, port: &Port, side: Rows) -> i64 {
    match side {
        Rows::Query => facts.s_q,
        Rows::Key => facts.s_kv,
        Rows::Declared => port.dim[2],
    }
}

/// Extents of the dense array that describes `port`: the node's batch and sequence, the port's heads and columns.
///
/// A port of batch extent 1 that is not indexed by sequence (bias, sink) keeps its extent of 1.
pub fn dense_shape(facts: &SdpaFacts, port: &Port, side: Rows) -> [usize; 4] {
    let b = if side == Rows::Declared { port.dim[0] } else { facts.b };
    [b as usize, port.dim[1] as usize, extent(facts, port, side) as usize, port.dim[3] as usize]
}

fn locate(facts: &SdpaFacts, port: &Port, side: Rows, inputs: &Inputs<'_>, buffer: usize) -> Result<Place, HostError> {
    let lens = Lengths::resolve(facts, inputs)?;
    let table = match &port.uid {
        uid if facts.ports.k.as_ref().is_some_and(|k| k.uid == *uid) => &facts.ports.page_table_k,
        uid if facts.ports.v.as_ref().is_some_and(|v| v.uid == *uid) => &facts.ports.page_table_v,
        _ => &None,
    };
    match table {
        Some(table) => Place::paged(port, table, &lens, inputs, buffer),
        None => Place::new(port, side, &lens, inputs, buffer),
    }
}

/// Visits every element of the dense array that exists in the buffer.
fn each(shape: [usize; 4], place: &Place, mut f: impl FnMut(usize, usize, usize, usize, usize)) {
    let [nb, nh, ns, nd] = shape;
    for b in 0..nb {
        for h in 0..nh {
            for s in 0..ns.min(place.rows()[b] as usize) {
                for d in 0..nd {
                    f((((b * nh) + h) * ns + s) * nd + d, b, h, s, d);
                }
            }
        }
    }
}

/// The port's elements as a dense array; rows that do not exist (past a packed or paged sequence's end) are 0.
///
/// # Errors
/// [`HostError`] when lengths, offsets, block tables or the buffer contradict the graph.
pub fn read_dense(facts: &SdpaFacts, port: &Port, side: Rows, inputs: &Inputs<'_>, bytes: &[u8]) -> Result<Vec<f64>, HostError> {
    let place = locate(facts, port, side, inputs, bytes.len())?;
    let shape = dense_shape(facts, port, side);
    let mut out = vec![0.0; shape.iter().product()];
    each(shape, &place, |i, b, h, s, d| out[i] = place.get(bytes, b, h, s, d) as f64);
    Ok(out)
}

/// Reads a bound input by port.
pub(crate) fn read_input(
    facts: &SdpaFacts,
    port: &Option<Port>,
    what: &str,
    side: Rows,
    inputs: &Inputs<'_>,
) -> Result<Vec<f64>, HostError> {
    let port = need(port, what)?;
    read_dense(facts, port, side, inputs, bytes_of(inputs, port.uid, &port.name)?)
}

/// Rounds a dense array into the port's buffer; elements that do not exist there are skipped, stride gaps left alone.
///
/// # Errors
/// As [`read_dense`].
pub fn write_dense(
    facts: &SdpaFacts,
    port: &Port,
    side: Rows,
    inputs: &Inputs<'_>,
    dense: &[f64],
    bytes: &mut [u8],
) -> Result<(), HostError> {
    let place = locate(facts, port, side, inputs, bytes.len())?;
    let shape = dense_shape(facts, port, side);
    let mut row = vec![0.0f32; shape[3]];
    let last = shape[3] - 1;
    each(shape, &place, |i, b, h, s, d| {
        // Through f32: double rounding to 16 bits moves a result by at most half a unit in 2^-29 of cases; inputs need no more.
        row[d] = dense[i] as f32;
        if d == last {
            place.write_row(bytes, b, h, s, &row);
        }
    });
    Ok(())
}

/// Relative Frobenius distance of a buffer from a dense reference over the elements that exist in the buffer.
///
/// Equal infinities agree (Stats of a row without keys is -inf). A NaN, or an infinity on one side only, gives infinity and never
/// passes. Where the reference is all zero the absolute norm is returned.
///
/// # Errors
/// As [`read_dense`].
pub fn relative_error(
    facts: &SdpaFacts,
    port: &Port,
    side: Rows,
    inputs: &Inputs<'_>,
    bytes: &[u8],
    dense: &[f64],
) -> Result<f64, HostError> {
    error_beyond(facts, port, side, inputs, bytes, dense, &[])
}

/// [`relative_error`] of what lies beyond `reach`: an element within `dense[i] ± reach[i]` is exact. An empty `reach` is all zero.
///
/// # Errors
/// As [`read_dense`].
pub fn error_beyond(
    facts: &SdpaFacts,
    port: &Port,
    side: Rows,
    inputs: &Inputs<'_>,
    bytes: &[u8],
    dense: &[f64],
    reach: &[f64],
) -> Result<f64, HostError> {
    let place = locate(facts, port, side, inputs, bytes.len())?;
    let (mut diff, mut norm) = (0.0, 0.0);
    each(dense_shape(facts, port, side), &place, |i, b, h, s, d| {
        let (got, want) = (place.get(bytes, b, h, s, d) as f64, dense[i]);
        if got.is_infinite() && got == want {
            return;
        }
        if !got.is_finite() || !want.is_finite() {
            diff = f64::INFINITY;
        }
        let off = (got - want).abs() - reach.get(i).copied().unwrap_or(0.0);
        diff += off.max(0.0).powi(2);
        norm += want.powi(2);
    });
    if diff.is_nan() || diff.is_infinite() {
        return Ok(f64::INFINITY);
    }
    Ok(if norm > 0.0 { (diff / norm).sqrt() } else { diff.sqrt() })
}
