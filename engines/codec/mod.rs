//! Low-precision number formats in pure Rust, bit for bit as the CUDA side converts them.
//!
//! | format | values | rounding | overflow and Inf | NaN |
//! |---|---|---|---|---|
//! | [`e2m1`] | ±{0, 0.5, 1, 1.5, 2, 3, 4, 6} | nearest, ties to even | ±6 | +6 (the format has none) |
//! | [`e4m3`] | ±448, smallest 2^-9 | nearest, ties to even | ±448 | 0x7F |
//! | [`e5m2`] | ±57344, smallest 2^-16 | nearest, ties to even | ±57344 (the format has Inf; a conversion never makes one) | 0x7F |
//! | [`e8m0`] | 2^-127 to 2^127 | up, or nearest | 2^127 | 0xFF |
//!
//! These are the rules of PTX `cvt.rn.satfinite` (`cvt.rp.satfinite` for E8M0) on a single-precision source. The sign of a zero is kept.
//! [`nvfp4`] builds the block fake-quantisation of attention training on top; [`half`] rounds to f16 and bf16.

pub mod e2m1;
pub mod e4m3;
pub mod e5m2;
pub mod e8m0;
mod minifloat;
pub mod nvfp4;

#[cfg(test)]
mod nvfp4_tests;
#[cfg(test)]
mod tests;
