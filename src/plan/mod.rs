//! Planning: a frozen graph becomes ranked plans, one list per node, with every decline kept.
//!
//! [`Graph::build`](crate::Graph::build) freezes and analyses the graph, matches every offered row of the node's family against the facts and lets the
//! family's heuristics rank what is left. Nothing here knows an engine by name: everything follows from `MANIFEST`.
//!
//! A graph of several nodes has one ranked list per node. Its plans are enumerated lazily: plan 0 takes the best entry of every
//! node; the further ones vary one node at a time, so that a graph of n nodes has O(n) plans rather than a product.

mod built;
mod env;
mod layout;
mod options;
mod rank;
mod record;
mod select;
mod text;
mod tune;
mod walk;

pub use built::{Built, NodePlans, Ranked};
pub use layout::{Lowered, LoweredNode, VirtualTensor};
pub use options::BuildOptions;
pub(crate) use options::EngineSwitches;
pub use record::PlanRecord;
pub use select::BuildOutcome;
pub use tune::{Timing, Tuned};
pub use walk::Plan;
