//! What forward and backward attention share: facts, masks, layout rules, the Stats classifier, host access, the oracle.

#[cfg(test)]
pub mod abi;
pub mod access;
pub(crate) mod arith;
pub mod cpu;
pub mod dense;
pub mod facts;
#[cfg(test)]
pub mod goldens;
pub mod layout;
pub mod lengths;
pub mod mask;
pub mod matching;
pub mod oracle;
pub(crate) mod params;
pub mod ranking;
#[cfg(test)]
mod rows_tests;
pub mod stats;
#[cfg(test)]
pub mod testing;

pub use facts::{Direction, Recipe, Scale, SdpaFacts, SdpaPorts};
pub use lengths::Lengths;
pub use mask::Mask;
pub use stats::{thd_stats_packing, StatsPacking};
