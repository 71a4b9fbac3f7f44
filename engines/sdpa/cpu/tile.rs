//! Tiles of operands in f32: rows and their transpose, with non-finite rows taken out.
//!
//! A masked pair must not contribute, not even 0 * NaN (field report 8), and a tile product multiplies every pair. So a row that
//! holds a NaN or an infinity enters the tile as zeros and is reported; the engine then adds its kept pairs one by one.

use super::arena::TileId;
use super::{padded, PAD};
use crate::codec::nvfp4;
use crate::sdpa::access::{bytes_of, Inputs, Place, Rows};
use crate::sdpa::Lengths;
use crate::{HostError, Port};

/// An operand: where it lies, its bytes, and what happens to a row when it is read.
#[derive(Debug, Clone)]
pub struct Operand<'a> {
    /// Geometry.
    pub place: Place,
    /// Buffer.
    pub bytes: &'a [u8],
    /// Whether rows are fake-quantised to NVFP4 along their columns as they are read: Q, K and V of quantisation-aware training.
    pub nvfp4: bool,
}

impl<'a> Operand<'a> {
    /// The operand bound to a port, read as it is.
    ///
    /// # Errors
    /// [`HostError`] when nothing is bound, or as [`Place::new`].
    pub fn of(port: &Port, side: Rows, lens: &Lengths, inputs: &Inputs<'a>) -> Result<Operand<'a>, HostError> {
        let bytes = bytes_of(inputs, port.uid, &port.name)?;
        Ok(Operand { place: Place::new(port, side, lens, inputs, bytes.len())?, bytes, nvfp4: false })
    }

    /// One row in f32, non-finite values included.
    pub fn raw(&self, t: TileId, row: usize, out: &mut [f32]) {
        self.place.read_row(self.bytes, t.b, t.h, t.start + row, out);
        if self.nvfp4 {
            nvfp4::fake_quant_row(out);
        }
    }

    /// Packs the rows of a tile into `rows` (distance [`padded`] columns, padding zero). Bit `i` of the result: row `i` was not finite.
    pub fn pack(&self, t: TileId, rows: &mut [f32]) -> u64 {
        let (cols, dist) = (self.place.cols(), padded(self.place.cols()));
        let mut bad = 0;
        for (i, row) in rows.chunks_exact_mut(dist).enumerate().take(t.rows) {
            let (row, tail) = row.split_at_mut(cols);
            self.raw(t, i, row);
            tail.fill(0.0);
            if row.iter().fold(false, |bad, x| bad | !x.is_finite()) {
                row.fill(0.0);
                bad |= 1 << i;
            }
        }
        bad
    }
}

/// `out[c][r] = rows[r][c]` for `count` rows; rows up to `dist` are zero. `out` rows are `dist` apart, a multiple of [`PAD`].
#[inline(always)]
pub fn transpose(rows: &[f32], count: usize, cols: usize, dist: usize, out: &mut [f32]) {
    let from = padded(cols);
    for r in (0..dist).step_by(PAD) {
        for (c, out) in out.chunks_exact_mut(dist).enumerate().take(cols) {
            for (i, x) in out[r..r + PAD].iter_mut().enumerate() {
                *x = if r + i < count { rows[(r + i) * from + c] } else { 0.0 };
            }
        }
    }
}
