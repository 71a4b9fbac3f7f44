//! A quantiser by search in tables: it shares nothing with [`crate::codec`].

use super::BLOCK;

/// Magnitudes of E2M1 in code order, and the positive ones of E4M3 from code 1, 2^-9, to code 126, 448.
const E2M1: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

pub fn e4m3() -> impl Iterator<Item = f64> {
    (1..127).map(|code| {
        let (exponent, mantissa) = (code >> 3, f64::from(code & 7));
        if exponent == 0 {
            mantissa * 2f64.powi(-9)
        } else {
            (8.0 + mantissa) * 2f64.powi(exponent - 10)
        }
    })
}

/// Index of the entry nearest to `x`, ties to the even code; `first` is the code of entry 0. Beyond the table: its ends.
fn nearest(table: &[f64], first: usize, x: f64) -> usize {
    let above = table.partition_point(|&t| t < x);
    if above == 0 || above == table.len() {
        return above.min(table.len() - 1);
    }
    let (down, up) = (x - table[above - 1], table[above] - x);
    if down < up || (down == up && (above - 1 + first).is_multiple_of(2)) {
        above - 1
    } else {
        above
    }
}

/// The quantiser as tables.
pub(super) struct Tables {
    /// Every scale, in ascending order.
    pub scales: Vec<f64>,
}

impl Tables {
    pub fn new() -> Tables {
        Tables { scales: e4m3().collect() }
    }

    /// Index of the scale of a block with this largest magnitude.
    pub fn scale(&self, amax: f64) -> usize {
        nearest(&self.scales, 1, (amax / 6.0).max(2f64.powi(-9)))
    }

    /// One value through a scale. E2M1 has no NaN: hardware makes it the largest value.
    pub fn value(&self, x: f64, scale: f64) -> f64 {
        if x.is_nan() {
            return 6.0 * scale;
        }
        (E2M1[nearest(&E2M1, 0, x.abs() / scale)] * scale).copysign(x)
    }

    /// Blocks of consecutive values; NaN does not count towards the largest magnitude.
    pub fn row(&self, row: &mut [f64]) {
        for block in row.chunks_mut(BLOCK) {
            let amax = block.iter().fold(0.0, |a: f64, x| a.max(x.abs()));
            let scale = self.scales[self.scale(amax)];
            block.iter_mut().for_each(|x| *x = self.value(*x, scale));
        }
    }
}
