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

/// The divisors of a positive `n`, largest first, in steps that grow with the root of `n`: a group may have as many heads as a file claims.
pub fn divisors(n: i64) -> Vec<i64> {
    let small: Vec<i64> = (1..).take_while(|d| d * d <= n).filter(|d| n % d == 0).collect();
    let large = small.iter().map(|d| n / d);
    let mut all: Vec<i64> = large.chain(small.iter().rev().copied()).collect();
    all.dedup();
    all
}

/// The product, unless it leaves 64 bits.
pub fn product(factors: &[i64]) -> Option<i64> {
    factors.iter().try_fold(1i64, |p, &x| p.checked_mul(x))
}

#[cfg(test)]
mod tests {
    use super::divisors;

    #[test]
    fn divisors_descend_once_each() {
        for n in 1..200 {
            assert_eq!(divisors(n), (1..=n).rev().filter(|d| n % d == 0).collect::<Vec<_>>(), "{n}");
        }
        assert_eq!(divisors(i64::from(i32::MAX)), [i64::from(i32::MAX), 1]);
    }
}
