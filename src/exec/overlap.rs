//! Whether two strided buffers share a byte.
//!
//! Gradients of packed projections interleave: dQ, dK and dV of one (B, S, 3, H, D) buffer have overlapping address *ranges* and
//! share no byte. Refusing them would refuse the commonest training layout, so ranges that overlap are looked at more closely.

/// A strided buffer: base address, bytes from its first to one past its last byte, element width, (extent, stride in bytes).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strided<'a> {
    pub base: u64,
    pub bytes: u64,
    pub element: u64,
    pub lattice: &'a [(u64, u64)],
}

impl Strided<'_> {
    /// One past the last byte.
    pub fn end(&self) -> u64 {
        self.base.saturating_add(self.bytes)
    }

    /// Bytes covered within one pitch when every stride is either a multiple of the pitch or stays inside it; `None` otherwise.
    fn within(&self, pitch: u64) -> Option<u64> {
        let mut inner = self.element;
        for &(extent, stride) in self.lattice {
            if !stride.is_multiple_of(pitch) {
                inner = inner.checked_add((extent - 1).checked_mul(stride)?)?;
            }
        }
        (inner <= pitch).then_some(inner)
    }
}

/// Whether the two may share a byte. Exact for disjoint ranges and for buffers interleaved on a common pitch; otherwise yes.
pub(crate) fn may_overlap(a: Strided<'_>, b: Strided<'_>) -> bool {
    if a.bytes == 0 || b.bytes == 0 || a.end() <= b.base || b.end() <= a.base {
        return false;
    }
    let pitches = a.lattice.iter().chain(b.lattice).map(|(_, s)| *s).filter(|s| *s > 0);
    for pitch in pitches {
        let (Some(x), Some(y)) = (a.within(pitch), b.within(pitch)) else { continue };
        let d = (b.base % pitch + pitch - a.base % pitch) % pitch;
        if d >= x && d + y <= pitch {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Byte sets by enumeration: the oracle of the closed form.
    fn shares(a: Strided<'_>, b: Strided<'_>) -> bool {
        let bytes = |s: Strided<'_>| {
            let mut at = vec![s.base];
            for &(n, st) in s.lattice {
                at = at.iter().flat_map(|x| (0..n).map(move |i| x + i * st)).collect();
            }
            at.iter().flat_map(|x| (0..s.element).map(move |i| x + i)).collect::<std::collections::BTreeSet<u64>>()
        };
        bytes(a).intersection(&bytes(b)).next().is_some()
    }

    fn span(base: u64, element: u64, lattice: &[(u64, u64)]) -> Strided<'_> {
        let bytes = element + lattice.iter().map(|(n, s)| (n - 1) * s).sum::<u64>();
        Strided { base, bytes, element, lattice }
    }

    #[test]
    fn interleaved_packed_gradients_do_not_overlap() {
        // (S=5, 3, H=2, D=4) in 2-byte elements: pitch 48 bytes.
        let lat = [(5, 48), (2, 8), (4, 2)];
        let (q, k, v) = (span(1024, 2, &lat), span(1040, 2, &lat), span(1056, 2, &lat));
        assert!(!may_overlap(q, k) && !may_overlap(k, v) && !may_overlap(q, v) && !may_overlap(v, q));
        assert!(may_overlap(q, span(1038, 2, &lat)), "shifted by seven elements: the last element of a head is shared");
    }

    #[test]
    fn never_says_disjoint_when_a_byte_is_shared() {
        let mut seen = (0, 0);
        for pitch in [6u64, 8, 12] {
            for inner in 1..=4u64 {
                for shift in 0..30u64 {
                    let (la, lb) = ([(3, pitch), (inner, 2)], [(2, pitch * 2), (2, 2)]);
                    let (a, b) = (span(100, 2, &la), span(100 + shift, 2, &lb));
                    let truth = shares(a, b);
                    assert!(!truth || may_overlap(a, b), "{a:?} {b:?}");
                    seen = (seen.0 + u32::from(truth), seen.1 + u32::from(!may_overlap(a, b)));
                }
            }
        }
        assert!(seen.0 > 50 && seen.1 > 50, "both answers occur: {seen:?}");
    }
}
