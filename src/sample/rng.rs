//! A small generator: values depend on seed and tensor only, so that giving one input changes no other.

/// splitmix64.
pub(super) struct Rng(u64);

impl Rng {
    /// The stream of one tensor.
    pub fn new(seed: u64, uid: i64) -> Rng {
        let mut rng = Rng(seed ^ (uid as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93));
        rng.next();
        rng
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// In `lo..=hi`.
    pub fn between(&mut self, lo: i64, hi: i64) -> i64 {
        let span = (hi.max(lo) - lo) as u64 + 1;
        lo + (self.next() % span) as i64
    }

    /// Two independent standard normal values (Box-Muller).
    pub fn normals(&mut self) -> [f32; 2] {
        // 24 bits each, the first never 0, so that the logarithm is finite.
        let u = ((self.next() >> 40) as f32 + 1.0) / (1u32 << 24) as f32;
        let v = (self.next() >> 40) as f32 / (1u32 << 24) as f32;
        let r = (-2.0 * u.ln()).sqrt();
        let (sin, cos) = (std::f32::consts::TAU * v).sin_cos();
        [r * cos, r * sin]
    }
}
