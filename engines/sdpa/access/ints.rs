//! Integers that lie beside the operands: lengths, ragged offsets, entries of block tables.

use super::{bytes_of, fault, Inputs};
use crate::{DType, HostError, Port};

/// Entry `index` of an array of i32 or i64; `None` behind its end.
pub(super) fn int_at(bytes: &[u8], dtype: DType, index: u64) -> Option<i64> {
    let i = usize::try_from(index).ok()?;
    if dtype == DType::I64 {
        let from = i.checked_mul(8)?;
        bytes.get(from..from.checked_add(8)?).map(|b| i64::from_ne_bytes(b.try_into().expect("8 bytes")))
    } else {
        let from = i.checked_mul(4)?;
        bytes.get(from..from.checked_add(4)?).map(|b| i32::from_ne_bytes(b.try_into().expect("4 bytes")) as i64)
    }
}

/// `count` integers along `axis` of an i32 or i64 port, in order.
pub fn read_ints(port: &Port, axis: usize, count: usize, bytes: &[u8]) -> Result<Vec<i64>, HostError> {
    if !matches!(port.dtype, DType::I32 | DType::I64) {
        return Err(fault(&port.name, format!("element type {}", port.dtype), "i32 or i64"));
    }
    let stride = if port.dim[axis] > 1 { port.stride[axis] } else { 1 };
    (0..count)
        .map(|i| {
            let at = stride.checked_mul(i as i64).and_then(|at| u64::try_from(at).ok());
            at.and_then(|at| int_at(bytes, port.dtype, at)).ok_or_else(|| {
                fault(&port.name, format!("{} bytes for entry {i}", bytes.len()), format!("{count} entries in the buffer"))
            })
        })
        .collect()
}

/// `B + 1` validated offsets of a ragged port in elements: non-negative, non-decreasing, products in 64 bits.
pub(super) fn ragged_bases(port: &Port, batch: usize, inputs: &Inputs<'_>) -> Result<Option<Vec<i64>>, HostError> {
    let Some(r) = port.ragged else { return Ok(None) };
    if r.multiplier < 1 {
        return Err(fault(&port.name, format!("ragged offset multiplier {}", r.multiplier), "at least 1"));
    }
    let bytes = bytes_of(inputs, r.uid, &format!("ragged offsets of {}", port.name))?;
    let mut out = Vec::with_capacity(batch + 1);
    let mut last = 0;
    for i in 0..=batch {
        let off = int_at(bytes, r.dtype, i as u64).ok_or_else(|| {
            fault(&port.name, format!("{} bytes of ragged offsets", bytes.len()), format!("{} {} offsets", batch + 1, r.dtype))
        })?;
        if off < last {
            return Err(fault(
                &port.name,
                format!("ragged offset[{i}] = {off} after {last}"),
                "non-negative, non-decreasing offsets",
            ));
        }
        last = off;
        let at = off.checked_mul(r.multiplier);
        out.push(at.ok_or_else(|| {
            fault(&port.name, format!("ragged offset[{i}] = {off} times {}", r.multiplier), "a product in 64 bits")
        })?);
    }
    Ok(Some(out))
}
