//! Checked arithmetic on extents, and the stride rule of small operands, for rules and lowerings.

use crate::Port;

/// Row-major without gaps; strides of extents of 1 do not matter.
pub fn contiguous(p: &Port) -> bool {
    let mut expect = 1i64;
    (0..4).rev().all(|a| {
        let ok = p.dim[a] == 1 || p.stride[a] == expect;
        expect = expect.saturating_mul(p.dim[a]);
        ok
    })
}

/// `a / b`, rounded up.
pub fn ceil_div(a: i64, b: i64) -> i64 {
    a / b + i64::from(a % b != 0)
}

/// The product, unless it leaves 64 bits.
pub fn product(factors: &[i64]) -> Option<i64> {
    factors.iter().try_fold(1i64, |p, &x| p.checked_mul(x))
}
