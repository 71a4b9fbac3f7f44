//! Execution: what a caller hands over (bindings, workspace, stream) and the compiled plan that uses it.
//!
//! Every call checks what it was given before the first byte is touched; each fault has its own code of [`crate::ErrorCode`]:
//! FG4001 missing binding, FG4002 size, FG4003 alignment, FG4004 overlap, FG4005 workspace, FG4006 contradictory data, FG4007 wrong device.

mod bindings;
mod bound;
mod check;
mod executable;
mod host;
pub(crate) mod operand;
mod overlap;
mod stream;
mod workspace;

pub use bindings::{Bindings, DeviceBuffer};
pub use executable::Executable;
pub use operand::Operand;
pub use stream::Stream;
pub use workspace::{HostWorkspace, Workspace};
