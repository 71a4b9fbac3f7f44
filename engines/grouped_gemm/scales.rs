//! Where scale factors lie: atoms of 128 rows by 4 blocks, 512 bytes each (cuDNN's `F8_128x4`, facts §9.3).
//!
//! A logical matrix of scales has one row for each row of the scaled operand and one column for each block of 16 or 32 values. In graphs
//! it has six extents, either the view (32, 4, rows', 4, blocks', slices) with [`strides`], or its memory order
//! (slices, rows', blocks', 32, 4, 4), row-major; `rows'` and `blocks'` count atoms.

use std::ops::Range;

/// Rows of an atom.
pub const ATOM_ROWS: usize = 128;
/// Blocks of an atom.
pub const ATOM_BLOCKS: usize = 4;
/// Bytes of an atom.
pub const ATOM_BYTES: usize = ATOM_ROWS * ATOM_BLOCKS;

/// A matrix of scales: `rows` by `blocks`, in atoms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScaleMatrix {
    /// Logical rows.
    pub rows: usize,
    /// Logical blocks of each row.
    pub blocks: usize,
}

impl ScaleMatrix {
    /// Scales of a `(rows, columns)` operand with `vec` values a scale along its columns.
    pub fn of(rows: usize, columns: usize, vec: usize) -> ScaleMatrix {
        ScaleMatrix { rows, blocks: columns.div_ceil(vec) }
    }

    /// Atoms along the rows and along the blocks.
    pub fn atoms(&self) -> [usize; 2] {
        [self.rows.div_ceil(ATOM_ROWS), self.blocks.div_ceil(ATOM_BLOCKS)]
    }

    /// Bytes of one slice, padding of the last atoms included.
    pub fn bytes(&self) -> usize {
        let [rows, blocks] = self.atoms();
        rows * blocks * ATOM_BYTES
    }

    /// Byte of the scale of row `row` and block `block` within its slice.
    #[inline(always)]
    pub fn index(&self, row: usize, block: usize) -> usize {
        let atom = row / ATOM_ROWS * self.blocks.div_ceil(ATOM_BLOCKS) + block / ATOM_BLOCKS;
        atom * ATOM_BYTES + in_atom(row % ATOM_ROWS, block % ATOM_BLOCKS)
    }
}

/// Byte within an atom: rows are dealt to 32 lanes, four rows a lane.
#[inline(always)]
pub const fn in_atom(row: usize, block: usize) -> usize {
    row % 32 * 16 + row / 32 * 4 + block
}

/// Extents (32, 4, rows', 4, blocks', slices); `None` when a count is not positive.
pub fn extents(rows: i64, columns: i64, vec: i64, slices: i64) -> Option<[i64; 6]> {
    let positive = rows > 0 && columns > 0 && vec > 0 && slices > 0;
    let up = |n: i64, by: i64| (n as u64).div_ceil(by as u64) as i64;
    positive.then(|| [32, 4, up(rows, 128), 4, up(up(columns, vec), 4), slices])
}

/// Strides in elements of the view with these extents: (16, 4, 512·blocks', 1, 512, 512·blocks'·rows'). `None` beyond 63 bits.
pub fn strides(extents: &[i64; 6]) -> Option<[i64; 6]> {
    let row = extents[4].checked_mul(512)?;
    Some([16, 4, row, 1, 512, row.checked_mul(extents[2])?])
}

/// Extents of the memory order of the same scales: (slices, rows', blocks', 32, 4, 4).
pub const fn physical(extents: &[i64; 6]) -> [i64; 6] {
    [extents[5], extents[2], extents[4], 32, 4, 4]
}

/// Column scales of D: logical rows are the columns of D, blocks are 32 consecutive rows of D.
///
/// Together: one matrix over all rows of D. Per expert ([`super::GroupedGemmFacts::discrete_col_sfd`]): each expert has a matrix of its own,
/// as if its rows were all there is; it begins where the first row of the expert falls in units of whole atoms, so the matrices lie behind
/// one another without gaps, because every expert has a multiple of 128 rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnScales {
    /// Rows of D in all.
    pub m: usize,
    /// Columns of D.
    pub n: usize,
    /// One matrix per expert.
    pub discrete: bool,
}

impl ColumnScales {
    /// Byte of the atom that holds columns from `128 * column_atom` and rows from `row` (a multiple of 128), for an expert that owns `rows`.
    pub fn atom(&self, column_atom: usize, row: usize, rows: &Range<usize>) -> usize {
        let (base, first, blocks) = if self.discrete {
            (rows.start / ATOM_ROWS * self.n.div_ceil(ATOM_ROWS) * ATOM_BYTES, rows.start, rows.len())
        } else {
            (0, 0, self.m)
        };
        // 32 rows a block, 4 blocks an atom.
        base + (column_atom * blocks.div_ceil(ATOM_ROWS) + (row - first) / ATOM_ROWS) * ATOM_BYTES
    }

    /// Byte of the scale of column `n` over the 32 rows from `row` on, for an expert that owns `rows`.
    pub fn index(&self, n: usize, row: usize, rows: &Range<usize>) -> usize {
        self.atom(n / ATOM_ROWS, row / ATOM_ROWS * ATOM_ROWS, rows) + in_atom(n % ATOM_ROWS, row / 32 % ATOM_BLOCKS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Facts §9.3: check vectors with two atoms along the blocks.
    #[test]
    fn check_vectors_of_facts_9_3() {
        let s = ScaleMatrix { rows: 256, blocks: 8 };
        let cases = [
            ((0, 0), 0),
            ((1, 0), 16),
            ((31, 0), 496),
            ((32, 0), 4),
            ((127, 3), 511),
            ((0, 4), 512),
            ((128, 0), 1024),
            ((37, 6), 598),
        ];
        for ((row, block), want) in cases {
            assert_eq!(s.index(row, block), want, "({row}, {block})");
        }
        assert_eq!(s.bytes(), 2048);
    }

    /// The closed form, the strides of the six-dimensional view, and the row-major memory order name the same byte.
    #[test]
    fn view_memory_order_and_index_agree() {
        for (rows, columns, vec, slices) in [(256, 256, 32, 1), (300, 200, 16, 3), (1, 1, 16, 2), (128, 513, 32, 1)] {
            let e = extents(rows, columns, vec, slices).expect("extents");
            let st = strides(&e).expect("strides");
            let p = physical(&e);
            let matrix = ScaleMatrix::of(rows as usize, columns as usize, vec as usize);
            let mut seen = std::collections::BTreeSet::new();
            for l in 0..slices as usize {
                for row in 0..rows as usize {
                    for block in 0..matrix.blocks {
                        let at = l * matrix.bytes() + matrix.index(row, block);
                        let view = [row % 32, row / 32 % 4, row / 128, block % 4, block / 4, l];
                        assert_eq!(view.iter().zip(st).map(|(i, s)| *i as i64 * s).sum::<i64>(), at as i64);
                        assert!(view.iter().zip(e).all(|(i, e)| (*i as i64) < e));
                        let order = [l, row / 128, block / 4, row % 32, row / 32 % 4, block % 4];
                        let flat = order.iter().zip(p).fold(0, |at, (i, e)| at * e + *i as i64);
                        assert_eq!(flat, at as i64);
                        assert!(seen.insert(at) && at < matrix.bytes() * slices as usize);
                    }
                }
            }
        }
        assert_eq!(extents(0, 1, 16, 1), None);
        assert_eq!(strides(&[32, 4, i64::MAX, 4, i64::MAX, 1]), None);
    }

    #[test]
    fn column_scales_of_experts_lie_behind_one_another() {
        let (together, discrete) =
            (ColumnScales { m: 1024, n: 200, discrete: false }, ColumnScales { m: 1024, n: 200, discrete: true });
        let all = ScaleMatrix::of(200, 1024, 32);
        let experts = [0..256, 256..256, 256..768, 768..1024];
        let mut seen = std::collections::BTreeSet::new();
        for rows in &experts {
            let own = ScaleMatrix::of(200, rows.len(), 32);
            for row in rows.clone().step_by(32) {
                for n in 0..200 {
                    assert_eq!(together.index(n, row, rows), all.index(n, row / 32));
                    let at = discrete.index(n, row, rows);
                    // 1024 bytes hold 128 rows of 256 (padded) columns.
                    assert_eq!(at, rows.start / 128 * 1024 + own.index(n, (row - rows.start) / 32));
                    assert!(seen.insert(at) && at < all.bytes());
                }
            }
        }
        assert_eq!(discrete.index(0, 256, &experts[2]), 2048);
        assert_eq!(discrete.index(128, 256, &experts[2]), 2048 + 4 * 512);
    }
}
