//! Where the elements of a [`Port`] lie in a raw byte buffer, checked once so that the engines may index freely.
//!
//! Dense ports use their declared strides, ragged ports begin each sequence at `offset[b] * multiplier`, paged pools go through
//! a block table. All arithmetic is 64-bit and checked before it is trusted (rule S7): a row stride may exceed 2^32 elements.

mod ints;
mod io;
mod paged;
mod scatter;

pub use self::ints::read_ints;

use self::ints::ragged_bases;
use self::io::{decode, read_unit, write_unit, Io};
use self::paged::Pages;
use super::lengths::Lengths;
use crate::{HostError, Port, SdpaFacts, Uid};
use std::collections::BTreeMap;

/// Read-only operands by uid, as in [`crate::HostBuffers::inputs`].
pub type Inputs<'a> = BTreeMap<Uid, &'a [u8]>;

/// Which sequence axis bounds the rows of an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// Query tokens: O, dO, dQ, Stats, score max and sum-exp.
    Query,
    /// Key tokens: K, V, dK, dV.
    Key,
    /// The declared extent whatever the lengths: bias, dBias, sink.
    Declared,
}

/// A fault of the caller's data in the tensor `port` describes.
pub fn fault(tensor: &str, given: impl Into<String>, expected: impl Into<String>) -> HostError {
    HostError { tensor: tensor.into(), given: given.into(), expected: expected.into() }
}

/// The operand, or the error that says that the node lacks it.
pub fn need<'p>(port: &'p Option<Port>, what: &str) -> Result<&'p Port, HostError> {
    port.as_ref().ok_or_else(|| fault(what, "the node does not have this operand", "it to be present"))
}

/// The bytes bound to a uid, or the error that says that nothing is bound.
pub fn bytes_of<'a>(inputs: &Inputs<'a>, uid: Uid, name: &str) -> Result<&'a [u8], HostError> {
    inputs.get(&uid).copied().ok_or_else(|| fault(name, format!("no buffer is bound to uid {uid}"), "a buffer"))
}

/// The checked geometry of one operand: every `(batch, head, row)` that [`Place::row`] may be asked for lies in the buffer.
#[derive(Debug, Clone)]
pub struct Place {
    base: Vec<i64>,
    head: i64,
    row: i64,
    col: i64,
    cols: usize,
    dtype: Io,
    size: usize,
    rows: Vec<i64>,
    heads: i64,
    ragged: bool,
    pages: Option<Pages>,
}

impl Place {
    /// Locates `port` in a buffer of `buffer` bytes for the given lengths.
    ///
    /// # Errors
    /// A [`HostError`] that names the tensor when an element type cannot be addressed, a stride is negative, offsets are not
    /// monotone, a sequence runs past its slot, or any addressed element lies outside the buffer.
    pub fn new(port: &Port, side: Rows, lens: &Lengths, inputs: &Inputs<'_>, buffer: usize) -> Result<Place, HostError> {
        let dtype = Io::of(port)?;
        let size = dtype.size();
        let batch = lens.q.len();
        if let Some(axis) = (0..4).find(|&a| port.dim[a] < 1 || port.stride[a] < 0) {
            let given = format!("extent {} with stride {} on axis {axis}", port.dim[axis], port.stride[axis]);
            return Err(fault(&port.name, given, "extents of at least 1 and strides of at least 0"));
        }
        let step = |a: usize| if port.dim[a] == 1 { 0 } else { port.stride[a] };
        let used: Vec<i64> = match side {
            Rows::Query => lens.q.clone(),
            Rows::Key => lens.kv.clone(),
            Rows::Declared => vec![port.dim[2]; batch],
        };
        let bases = ragged_bases(port, batch, inputs)?;
        // A dense operand is read and written to its declared extent; a packed one holds the valid tokens only.
        let rows = if bases.is_some() { used.clone() } else { vec![port.dim[2]; batch] };
        let base = match &bases {
            Some(at) => at[..batch].to_vec(),
            None => (0..batch as i64)
                .map(|b| step(0).checked_mul(b))
                .collect::<Option<Vec<i64>>>()
                .ok_or_else(|| fault(&port.name, format!("batch stride {}", port.stride[0]), "offsets in 64 bits"))?,
        };
        if let Some(at) = &bases {
            for b in 0..batch {
                let slot = at[b + 1] - at[b];
                if used[b].checked_mul(step(2)).is_none_or(|n| n.max(used[b].min(1)) > slot) {
                    let given =
                        format!("sequence {b} of {} rows at row stride {} in a slot of {slot} elements", used[b], step(2));
                    return Err(fault(&port.name, given, "each sequence to end before the next one's ragged offset"));
                }
            }
        }
        if let Some(at) = bases.as_ref().filter(|_| step(2) > 0 && step(2) < step(1)) {
            // Rule S1: the head planes of a head-major packing alias when the packed rows outgrow the head stride.
            let end = (0..batch).filter(|&b| used[b] > 0).map(|b| at[b] - at[0] + used[b] * step(2)).max().unwrap_or(0);
            if end > step(1) {
                let given = format!("packed rows over {end} elements of a head at head stride {}", step(1));
                return Err(fault(&port.name, given, "a head stride that covers the packed rows"));
            }
        }
        let place = Place {
            base,
            head: step(1),
            row: step(2),
            col: step(3),
            cols: port.dim[3] as usize,
            dtype,
            size,
            rows,
            heads: port.dim[1],
            ragged: bases.is_some(),
            pages: None,
        };
        for b in 0..batch {
            place.check(&port.name, place.base[b], place.rows[b], buffer)?;
        }
        Ok(place)
    }

    /// Proves that `rows` rows from element `base` on lie in `buffer` bytes.
    fn check(&self, name: &str, base: i64, rows: i64, buffer: usize) -> Result<(), HostError> {
        if rows == 0 {
            return Ok(());
        }
        let far = |n: i64, s: i64| (n - 1).checked_mul(s);
        let end =
            far(self.heads, self.head).zip(far(rows, self.row)).zip(far(self.cols as i64, self.col)).and_then(|((h, r), c)| {
                base.checked_add(h)?.checked_add(r)?.checked_add(c)?.checked_add(1)?.checked_mul(self.size as i64)
            });
        match end {
            Some(end) if u64::try_from(end).is_ok_and(|e| e <= buffer as u64) => Ok(()),
            Some(end) => Err(fault(
                name,
                format!("elements up to byte {end} in a buffer of {buffer} bytes"),
                "every addressed element in the buffer",
            )),
            None => Err(fault(name, "an element offset beyond 64 bits".to_string(), "offsets in 64 bits")),
        }
    }

    /// Element index of column 0 of a row. In bounds for every row below [`Place::rows`].
    pub fn row(&self, b: usize, h: usize, s: usize) -> usize {
        let (h, s) = (h as i64 * self.head, s as i64);
        let at = match &self.pages {
            None => self.base[b] + h + s * self.row,
            Some(p) => p.entry[b * p.max_pages + (s / p.rows) as usize] * p.stride + h + (s % p.rows) * self.row,
        };
        at as usize
    }

    /// Rows that the buffer holds for each batch: the declared extent when dense, the valid tokens when packed or paged.
    pub fn rows(&self) -> &[i64] {
        &self.rows
    }

    /// Extent of the innermost axis.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Heads.
    pub fn heads(&self) -> usize {
        self.heads as usize
    }

    /// Whether the operand is packed, so that only valid tokens exist.
    pub fn is_ragged(&self) -> bool {
        self.ragged
    }

    /// Reads one row into f32 (exact for every io type); `out` holds [`Place::cols`] values.
    pub fn read_row(&self, bytes: &[u8], b: usize, h: usize, s: usize, out: &mut [f32]) {
        self.read_part(bytes, b, h, s, 0, out);
    }

    /// Reads columns `from..from + out.len()` of one row.
    pub fn read_part(&self, bytes: &[u8], b: usize, h: usize, s: usize, from: usize, out: &mut [f32]) {
        let at = self.row(b, h, s) + from * self.col as usize;
        if self.col == 1 {
            let src = &bytes[at * self.size..(at + out.len()) * self.size];
            read_unit(self.dtype, src, out);
        } else {
            for (i, x) in out.iter_mut().enumerate() {
                *x = decode(self.dtype, &bytes[(at + i * self.col as usize) * self.size..]);
            }
        }
    }

    /// One element.
    pub fn get(&self, bytes: &[u8], b: usize, h: usize, s: usize, d: usize) -> f32 {
        decode(self.dtype, &bytes[(self.row(b, h, s) + d * self.col as usize) * self.size..])
    }

    /// Rounds one row into the buffer; stride gaps are left alone (rule S5).
    pub fn write_row(&self, bytes: &mut [u8], b: usize, h: usize, s: usize, row: &[f32]) {
        let at = self.row(b, h, s) * self.size;
        self.write_at(&mut bytes[at..], row);
    }

    fn write_at(&self, bytes: &mut [u8], row: &[f32]) {
        if self.col == 1 || row.len() == 1 {
            write_unit(self.dtype, row, bytes);
            return;
        }
        for (cell, &x) in bytes.chunks_mut(self.col.max(1) as usize * self.size).zip(row) {
            write_unit(self.dtype, &[x], cell);
        }
    }
}

/// The softmax scale of this execution.
pub fn scale(facts: &SdpaFacts, inputs: &Inputs<'_>) -> Result<f32, HostError> {
    match facts.scale {
        super::Scale::Static(x) => Ok(x),
        super::Scale::Dynamic(uid) => {
            let port = need(&facts.ports.attn_scale, "attn_scale")?;
            let bytes = bytes_of(inputs, uid, &port.name)?;
            let dtype = Io::of(port)?;
            if bytes.len() < dtype.size() {
                return Err(fault(&port.name, format!("{} bytes", bytes.len()), "one element"));
            }
            Ok(decode(dtype, bytes))
        }
    }
}
