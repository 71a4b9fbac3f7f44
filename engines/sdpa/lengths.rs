//! The actual length of every sequence: one place for forward, backward and oracle.

use super::access::{bytes_of, fault, read_ints, Inputs};
use crate::{HostError, Port, SdpaFacts};

/// Valid query and key rows of each batch entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lengths {
    /// Query rows, each in `0..=s_q`.
    pub q: Vec<i64>,
    /// Key rows, each in `0..=s_kv`.
    pub kv: Vec<i64>,
}

impl Lengths {
    /// Reads `seq_len_*` (lengths) or `cu_seq_len_*` (prefix sums); a side with neither has its full extent.
    ///
    /// # Errors
    /// [`HostError`] naming the tensor when a length is negative or beyond the extent, when prefix sums decrease, when a side has
    /// both forms, and when a packed side has neither.
    pub fn resolve(facts: &SdpaFacts, inputs: &Inputs<'_>) -> Result<Lengths, HostError> {
        let p = &facts.ports;
        let ragged = |port: &Option<Port>| port.as_ref().is_some_and(|p| p.ragged.is_some());
        let q = side("query", facts.b, facts.s_q, &p.seq_len_q, &p.cu_seq_len_q, ragged(&p.q), inputs)?;
        let kv = side("key", facts.b, facts.s_kv, &p.seq_len_kv, &p.cu_seq_len_kv, ragged(&p.k), inputs)?;
        Ok(Lengths { q, kv })
    }
}

fn side(
    what: &str,
    b: i64,
    extent: i64,
    lens: &Option<Port>,
    sums: &Option<Port>,
    ragged: bool,
    inputs: &Inputs<'_>,
) -> Result<Vec<i64>, HostError> {
    let batch = usize::try_from(b).unwrap_or(0);
    let out = match (lens, sums) {
        (Some(port), Some(_)) => return Err(fault(&port.name, "lengths and prefix sums on one side", "one of the two forms")),
        (Some(port), None) => {
            let values = read_ints(port, 0, batch, bytes_of(inputs, port.uid, &port.name)?)?;
            for (i, &n) in values.iter().enumerate() {
                in_extent(port, i, n, extent)?;
            }
            values
        }
        (None, Some(port)) => {
            let sums = read_ints(port, 0, batch + 1, bytes_of(inputs, port.uid, &port.name)?)?;
            if sums[0] < 0 {
                return Err(fault(&port.name, format!("entry 0 is {}", sums[0]), "non-negative prefix sums"));
            }
            let mut out = Vec::with_capacity(batch);
            for (i, w) in sums.windows(2).enumerate() {
                if w[1] < w[0] {
                    return Err(fault(
                        &port.name,
                        format!("entry {} is {} after {}", i + 1, w[1], w[0]),
                        "non-decreasing prefix sums",
                    ));
                }
                in_extent(port, i, w[1] - w[0], extent)?;
                out.push(w[1] - w[0]);
            }
            out
        }
        (None, None) if ragged => {
            return Err(fault(what, "packed operands without lengths", "seq_len or cu_seq_len on this side"))
        }
        (None, None) => vec![extent; batch],
    };
    Ok(out)
}

fn in_extent(port: &Port, b: usize, n: i64, extent: i64) -> Result<(), HostError> {
    if n < 0 || n > extent {
        return Err(fault(&port.name, format!("length {n} of sequence {b}"), format!("0 to {extent}")));
    }
    Ok(())
}
