//! FNV-1a with 128 bits: an identity of texts, not a defence against someone who wants a collision.

const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const PRIME: u128 = (1 << 88) + 0x13b;

/// Running state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fnv128(u128);

impl Fnv128 {
    /// The state before any byte.
    pub const fn new() -> Fnv128 {
        Fnv128(OFFSET)
    }

    /// Adds bytes; how they are cut into calls does not matter.
    pub fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.0 = (self.0 ^ u128::from(b)).wrapping_mul(PRIME);
        }
    }

    /// The hash of everything written.
    pub const fn finish(self) -> u128 {
        self.0
    }
}

impl Default for Fnv128 {
    fn default() -> Fnv128 {
        Fnv128::new()
    }
}

/// The hash of one byte string.
pub fn fnv1a_128(bytes: &[u8]) -> u128 {
    let mut h = Fnv128::new();
    h.write(bytes);
    h.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_vectors() {
        // Test vectors of draft-eastlake-fnv.
        assert_eq!(fnv1a_128(b""), 0x6c62272e07bb014262b821756295c58d);
        assert_eq!(fnv1a_128(b"a"), 0xd228cb696f1a8caf78912b704e4a8964);
        assert_eq!(fnv1a_128(b"foobar"), 0x343e1662793c64bf6f0d3597ba446f18);
    }

    #[test]
    fn cuts_do_not_matter() {
        let mut h = Fnv128::new();
        h.write(b"foo");
        h.write(b"bar");
        assert_eq!(h.finish(), fnv1a_128(b"foobar"));
    }
}
