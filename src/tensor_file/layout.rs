//! From dense file order to the places of a tensor's elements in its buffer.

use crate::graph::{FrozenGraph, TensorId};
use crate::sample::label;
use crate::{Error, ErrorCode, Result};
use frostgraph_engines::sdpa::access::Inputs;

/// One run of file rows: `rows` rows of `[heads][cols]` or, for dense tensors, any number of axes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Block {
    /// First element in the buffer.
    pub base: usize,
    /// First element in the file.
    pub from: usize,
    /// Extents, outermost first.
    pub dim: Vec<usize>,
    /// Buffer strides in elements.
    pub stride: Vec<usize>,
    /// File strides in elements.
    pub file: Vec<usize>,
}

fn row_major(dim: &[usize]) -> Vec<usize> {
    let mut stride = vec![1; dim.len()];
    for a in (0..dim.len().saturating_sub(1)).rev() {
        stride[a] = stride[a + 1] * dim[a + 1];
    }
    stride
}

fn natural(graph: &FrozenGraph, id: TensorId, v: &[i64]) -> Result<Vec<usize>> {
    v.iter()
        .map(|&x| {
            usize::try_from(x).map_err(|_| {
                Error::new(ErrorCode::BadDims, format!("{v:?}"), "extents and strides of at least 0").at(label(graph, id))
            })
        })
        .collect()
}

/// Rows of each slot of a packed tensor, with the slot's first element.
fn slots(graph: &FrozenGraph, id: TensorId, inputs: &Inputs<'_>) -> Result<Vec<(usize, usize)>> {
    let t = graph.tensor(id);
    let Some(r) = t.ragged else { return Ok(Vec::new()) };
    let offset = graph.tensor(r.offset);
    let bad = |given: String| {
        Error::new(ErrorCode::BadData, given, "non-negative, non-decreasing offsets within 64 bits").at(label(graph, r.offset))
    };
    let bytes = inputs.get(&offset.uid.unwrap_or_default()).copied().unwrap_or_default();
    let port = crate::sample::int_port(offset);
    let count = usize::try_from(t.dim[0]).unwrap_or(0) + 1;
    let offsets = frostgraph_engines::sdpa::access::read_ints(&port, 0, count, bytes).map_err(crate::sample::data_error)?;
    let mut at = Vec::with_capacity(count);
    for o in &offsets {
        at.push(o.checked_mul(r.multiplier).and_then(|e| usize::try_from(e).ok()).ok_or_else(|| bad(format!("offset {o}")))?);
    }
    let row = t.stride[2].max(1) as usize;
    at.windows(2)
        .map(|w| {
            let room = w[1].checked_sub(w[0]).ok_or_else(|| bad(format!("{} after {}", w[1], w[0])))?;
            Ok((w[0], room / row))
        })
        .collect()
}

/// Shape that a file gives a tensor when it is written.
pub(super) fn file_shape(graph: &FrozenGraph, id: TensorId, inputs: &Inputs<'_>) -> Result<Vec<usize>> {
    let dim = natural(graph, id, &graph.tensor(id).dim)?;
    if graph.tensor(id).ragged.is_none() || dim.len() != 4 {
        return Ok(dim);
    }
    let tokens = slots(graph, id, inputs)?.iter().map(|(_, rows)| rows).sum();
    Ok(vec![tokens, dim[1], dim[3]])
}

/// How a file tensor of this shape maps to the buffer; `None` when the shape is neither the declared nor the packed one.
pub(super) fn blocks(graph: &FrozenGraph, id: TensorId, shape: &[usize], inputs: &Inputs<'_>) -> Result<Option<Vec<Block>>> {
    let t = graph.tensor(id);
    let dim = natural(graph, id, &t.dim)?;
    let stride = natural(graph, id, &t.stride)?;
    if t.ragged.is_none() || dim.len() != 4 {
        let same = shape == dim;
        return Ok(same.then(|| vec![Block { base: 0, from: 0, file: row_major(&dim), dim, stride }]));
    }
    let slots = slots(graph, id, inputs)?;
    let axes = vec![stride[2], stride[1], stride[3]];
    let mut list = Vec::new();
    if shape == dim {
        let file = row_major(&dim);
        for (b, (base, rows)) in slots.into_iter().enumerate() {
            let dim = vec![rows.min(dim[2]), dim[1], dim[3]];
            list.push(Block { base, from: b * file[0], dim, stride: axes.clone(), file: vec![file[2], file[1], file[3]] });
        }
        return Ok(Some(list));
    }
    let tokens: usize = slots.iter().map(|(_, rows)| rows).sum();
    if shape.len() != 3 || shape[0] < tokens || shape[1..] != [dim[1], dim[3]] {
        return Ok(None);
    }
    let file = row_major(shape);
    let mut from = 0;
    for (base, rows) in slots {
        list.push(Block { base, from, dim: vec![rows, dim[1], dim[3]], stride: axes.clone(), file: file.clone() });
        from += rows * file[0];
    }
    Ok(Some(list))
}

impl Block {
    /// Calls `f(buffer element, file element, run)` for runs of elements that lie side by side in both.
    pub fn each(&self, mut f: impl FnMut(usize, usize, usize)) {
        if self.dim.contains(&0) {
            return;
        }
        let last = self.dim.len().saturating_sub(1);
        let joined = self.stride.last().is_none_or(|s| *s == 1);
        let run = if joined { self.dim.last().copied().unwrap_or(1) } else { 1 };
        let mut index = vec![0; self.dim.len()];
        loop {
            let place = |stride: &[usize]| index.iter().zip(stride).map(|(i, s)| i * s).sum::<usize>();
            f(self.base + place(&self.stride), self.from + place(&self.file), run);
            // Odometer: the innermost axis is one run when it is joined.
            let mut axis = if joined { last } else { last + 1 };
            loop {
                if axis == 0 {
                    return;
                }
                axis -= 1;
                index[axis] += 1;
                if index[axis] < self.dim[axis] {
                    break;
                }
                index[axis] = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Block;

    #[test]
    fn every_element_once_in_order() {
        let block = |stride: Vec<usize>| Block { base: 100, from: 0, dim: vec![2, 3], stride, file: vec![3, 1] };
        let mut seen = Vec::new();
        block(vec![10, 1]).each(|b, f, n| seen.push((b, f, n)));
        assert_eq!(seen, [(100, 0, 3), (110, 3, 3)]);
        seen.clear();
        block(vec![1, 2]).each(|b, f, n| seen.push((b, f, n)));
        assert_eq!(seen, [(100, 0, 1), (102, 1, 1), (104, 2, 1), (101, 3, 1), (103, 4, 1), (105, 5, 1)]);
        seen.clear();
        Block { base: 7, from: 3, dim: vec![], stride: vec![], file: vec![] }.each(|b, f, n| seen.push((b, f, n)));
        assert_eq!(seen, [(7, 3, 1)], "a scalar");
        seen.clear();
        Block { base: 0, from: 0, dim: vec![2, 0], stride: vec![1, 1], file: vec![0, 1] }.each(|b, f, n| seen.push((b, f, n)));
        assert!(seen.is_empty(), "an empty slot");
    }
}
