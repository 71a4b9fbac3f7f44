//! Layout classifiers of facts §3.2.

use crate::Port;

/// Up to four axes; no allocation, because analysis and matching run these rules for every operand.
#[derive(PartialEq)]
struct Axes {
    list: [usize; 4],
    len: usize,
}

impl Axes {
    /// The axes of `order` without extents of 1 and without those in `skip`.
    fn kept(p: &Port, order: [usize; 4], skip: &[usize]) -> Axes {
        let mut a = Axes { list: [0; 4], len: 0 };
        for axis in order {
            if p.dim[axis] != 1 && !skip.contains(&axis) {
                a.list[a.len] = axis;
                a.len += 1;
            }
        }
        a
    }
}

impl IntoIterator for Axes {
    type Item = usize;
    type IntoIter = std::iter::Take<std::array::IntoIter<usize, 4>>;
    fn into_iter(self) -> Self::IntoIter {
        self.list.into_iter().take(self.len)
    }
}

/// Axes sorted by (stride, extent) ascending, extents of 1 dropped, axes listed in `skip` dropped.
fn stride_order(p: &Port, skip: &[usize]) -> Axes {
    let mut axes = Axes::kept(p, [0, 1, 2, 3], skip);
    axes.list[..axes.len].sort_by_key(|&a| (p.stride[a], p.dim[a]));
    axes
}

fn in_bshd_order(p: &Port, skip: &[usize]) -> bool {
    stride_order(p, skip) == Axes::kept(p, [3, 1, 2, 0], skip)
}

/// Order D, H, S, B by ascending stride after dropping extents of 1; padded strides pass.
pub fn bshd_layout_ok(p: &Port) -> bool {
    in_bshd_order(p, &[])
}

/// As [`bshd_layout_ok`] with the batch axis ignored: a packed tensor's batch stride is never read.
pub fn packed_layout_ok(p: &Port) -> bool {
    in_bshd_order(p, &[0])
}

/// "dense_flex": unit head-dim stride and, walking ascending strides, no overlap. Zero strides fail, padding passes.
pub fn dense_layout_ok(p: &Port) -> bool {
    if p.dim[3] != 1 && p.stride[3] != 1 {
        return false;
    }
    let mut span: i64 = 1;
    for a in stride_order(p, &[]) {
        if p.stride[a] < span {
            return false;
        }
        match p.stride[a].checked_mul(p.dim[a]) {
            Some(s) => span = s,
            None => return false,
        }
    }
    true
}

/// Whether no two elements share an address: walking ascending strides, each covers what lies below it. Any order and any head-dim
/// stride; batch is ignored for a packed tensor, whose batches begin where its offsets say. Sufficient, not necessary.
pub fn distinct_ok(p: &Port) -> bool {
    let skip: &[usize] = if p.ragged.is_some() { &[0] } else { &[] };
    let mut span: i64 = 1;
    for a in stride_order(p, skip) {
        if p.stride[a] < span {
            return false;
        }
        match p.stride[a].checked_mul(p.dim[a]) {
            Some(s) => span = s,
            None => return false,
        }
    }
    true
}

/// [`dense_layout_ok`] for a packed tensor: unit head-dim stride and no overlap of tokens and heads; the batch stride is never read.
pub fn packed_flex_ok(p: &Port) -> bool {
    (p.dim[3] == 1 || p.stride[3] == 1) && distinct_ok(p)
}

/// The 16-byte rule by the operand's own element width: outer strides of extents above 1 (a packed tensor's batch stride is never read),
/// and the base alignment.
pub fn aligned_16_ok(p: &Port) -> bool {
    let Some(bytes) = p.dtype.bytes() else { return false };
    let unit = (16 / bytes.min(16)) as i64;
    let first = if p.ragged.is_some() { 1 } else { 0 };
    (first..3).all(|a| p.dim[a] == 1 || p.stride[a] % unit == 0) && p.alignment % 16 == 0
}

/// Whether every element of an output has a place of its own: strides, walked in ascending order, step over what lies below them.
///
/// Padding and any axis order pass; zero strides and interleaved axes do not (two threads would write one place: field report 35).
/// The batch and row axes of a packed tensor are not looked at: how many rows there are is known at execution only.
pub fn writable_ok(p: &Port) -> bool {
    let skip: &[usize] = if p.ragged.is_some() { &[0, 2] } else { &[] };
    let mut last: i64 = 0;
    for a in stride_order(p, skip) {
        if p.stride[a] <= last {
            return false;
        }
        match (p.dim[a] - 1).checked_mul(p.stride[a]).and_then(|s| s.checked_add(last)) {
            Some(s) => last = s,
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::aligned_16_ok;
    use crate::sdpa::testing::port;
    use crate::DType;

    /// Rule S5: eight elements are 16 bytes of a half and 8 of a byte; four are 16 of a float.
    #[test]
    fn alignment_counts_the_operands_own_element_width_s5() {
        for (dtype, least) in [(DType::F32, 4), (DType::BF16, 8), (DType::F16, 8), (DType::F8E4M3, 16)] {
            for step in [4, 8, 16] {
                let mut p = port(1, "O", [2, 3, 5, 64], dtype);
                p.stride[2] = 64 + step;
                p.stride[1] = 5 * p.stride[2];
                p.stride[0] = 3 * p.stride[1];
                assert_eq!(aligned_16_ok(&p), step % least == 0, "{dtype} rows {step} elements apart beyond 64");
            }
        }
    }
}
