//! Writing the rows of an output from several threads: the buffer is cut along its outermost axes into disjoint pieces.

use super::Place;
use rayon::prelude::*;
use std::ops::Range;

/// Rows of a piece that one thread writes at a time in a scatter.
const PIECE_ROWS: i64 = 32;

/// One of batch (0), head (1) and row (2) in a scatter.
#[derive(Debug, Clone, Copy)]
struct Axis {
    index: usize,
    count: i64,
    stride: i64,
}

impl Place {
    /// Writes rows through `fill(b, h, s, row)`: batches `b`, heads and rows of the window, rows clipped to what the buffer holds.
    ///
    /// Runs in parallel where the layout nests, so that the buffer can be cut into disjoint pieces; the result is the same either way.
    pub fn scatter<F>(&self, bytes: &mut [u8], b: Range<usize>, h: Range<usize>, s: Range<usize>, fill: &F)
    where
        F: Fn(usize, usize, usize, &mut [f32]) + Sync,
    {
        let held = |b: usize| (self.rows[b] as usize).min(s.end).saturating_sub(s.start) as i64;
        let at = [b.start, h.start, s.start];
        let heads = Axis { index: 1, count: h.len() as i64, stride: self.head };
        if !self.ragged {
            if b.is_empty() || h.is_empty() || held(b.start) == 0 {
                return;
            }
            let stride = if b.len() > 1 { self.base[b.start + 1] - self.base[b.start] } else { 0 };
            let axes = vec![
                Axis { index: 0, count: b.len() as i64, stride },
                heads,
                Axis { index: 2, count: held(b.start), stride: self.row },
            ];
            let from = self.row(b.start, h.start, s.start) * self.size;
            self.walk(&mut bytes[from..], axes, at, 2, fill);
            return;
        }
        let inner = (self.cols as i64 - 1) * self.col;
        // Head-major packing interleaves the sequences inside every head plane: one piece after the other there.
        let token_major = self.row > (h.len() as i64 - 1) * self.head + inner;
        if !token_major {
            for b in b.filter(|&b| held(b) > 0) {
                let axes = vec![heads, Axis { index: 2, count: held(b), stride: self.row }];
                let from = self.row(b, at[1], at[2]) * self.size;
                self.walk(&mut bytes[from..], axes, [b, at[1], at[2]], 2, fill);
            }
            return;
        }
        // Offsets are monotone and each sequence fits its slot, so every sequence is a piece of its own.
        let (mut rest, mut start) = (bytes, 0);
        rayon::scope(|scope| {
            for b in b.filter(|&b| held(b) > 0) {
                let axes = vec![heads, Axis { index: 2, count: held(b), stride: self.row }];
                let from = self.row(b, at[1], at[2]) * self.size;
                let long = (held(b) - 1) * self.row + (heads.count - 1) * self.head + inner + 1;
                let (_, tail) = std::mem::take(&mut rest).split_at_mut(from - start);
                let (mine, tail) = tail.split_at_mut(long as usize * self.size);
                rest = tail;
                start = from + long as usize * self.size;
                scope.spawn(move |_| self.walk(mine, axes, [b, at[1], at[2]], 1, fill));
            }
        });
    }

    fn walk<F>(&self, bytes: &mut [u8], mut axes: Vec<Axis>, at: [usize; 3], parallel: u32, fill: &F)
    where
        F: Fn(usize, usize, usize, &mut [f32]) + Sync,
    {
        axes.retain(|a| a.count > 1);
        axes.sort_by_key(|a| std::cmp::Reverse(a.stride));
        let below: i64 = axes.iter().skip(1).map(|a| (a.count - 1) * a.stride).sum::<i64>() + (self.cols as i64 - 1) * self.col;
        if let Some(&Axis { index, count, stride }) = axes.first().filter(|a| parallel > 0 && a.stride > below) {
            // Several steps of the axis a piece where one holds few rows; the pieces of a group are walked in order.
            let rows: i64 = axes[1..].iter().map(|a| a.count).product();
            let group = (PIECE_ROWS / rows).clamp(1, count);
            let pieces =
                bytes.par_chunks_mut((group * stride) as usize * self.size).take((count as u64).div_ceil(group as u64) as usize);
            pieces.enumerate().for_each(|(i, piece)| {
                let start = i as i64 * group;
                let (mut at, mut axes) = (at, axes.clone());
                at[index] += start as usize;
                axes[0].count = group.min(count - start);
                self.walk(piece, axes, at, if group == 1 { parallel - 1 } else { 0 }, fill);
            });
            return;
        }
        let mut row = vec![0.0; self.cols];
        for i in 0..axes.iter().map(|a| a.count).product() {
            let (mut left, mut offset, mut at) = (i, 0, at);
            for a in axes.iter().rev() {
                at[a.index] += (left % a.count) as usize;
                offset += left % a.count * a.stride;
                left /= a.count;
            }
            fill(at[0], at[1], at[2], &mut row);
            self.write_at(&mut bytes[offset as usize * self.size..], &row);
        }
    }
}
