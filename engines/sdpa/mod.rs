//! What forward and backward attention share: facts, masks, layout rules, the Stats classifier.

pub mod facts;
pub mod layout;
pub mod mask;
pub mod matching;
pub mod ranking;
pub mod stats;

pub use facts::{Direction, Scale, SdpaFacts, SdpaPorts};
pub use mask::Mask;
pub use stats::{thd_stats_packing, StatsPacking};
