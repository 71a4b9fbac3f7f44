//! What a row must show beside its cases, and the record of one such test.

use crate::cases::{HOPPER, PREFILL};
use crate::run::Gpu;
use frostgraph::Result;

/// What a special shows. All but `Other` are asked of every row ([`missing`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shows {
    /// 50 runs with equal bits, idle and beside a busy stream.
    FiftyRuns,
    /// A captured execution follows inputs and lengths.
    Replay,
    /// Misaligned operands are typed errors.
    Misaligned,
    /// Offsets above 2^31 and 2^32 elements (rule S7).
    Far,
    /// Work goes to the caller's stream alone.
    Streams,
    /// Two threads, one executable.
    Threads,
    /// Workspace faults leave the device usable.
    Workspace,
    /// `execute` allocates nothing on the host (I5).
    Allocations,
    /// Device 0, device 1, device 0, then both at once.
    Devices,
    /// A context that is lost on purpose.
    Fault,
    Other,
}

/// One test, in a process of its own.
pub struct Special {
    /// The row it is about: with `--engine` only that row's run.
    pub engine: &'static str,
    pub shows: Shows,
    pub name: &'static str,
    /// Gets the row's name and a seed.
    pub run: fn(&Gpu, &'static str, u64) -> Result<()>,
}

pub const fn of(
    engine: &'static str,
    shows: Shows,
    name: &'static str,
    run: fn(&Gpu, &'static str, u64) -> Result<()>,
) -> Special {
    Special { engine, shows, name, run }
}

/// Beside what a special may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    /// Cases and other specials.
    All,
    /// Cases, but no other one of its kind: together they would not fit the device's memory.
    Cases,
    /// Nothing: a time is compared, or a context is lost.
    Nothing,
}

impl Special {
    pub fn beside(&self) -> Beside {
        match self.shows {
            Shows::Far => Beside::Cases,
            Shows::Streams | Shows::Fault => Beside::Nothing,
            Shows::FiftyRuns
            | Shows::Replay
            | Shows::Misaligned
            | Shows::Threads
            | Shows::Workspace
            | Shows::Allocations
            | Shows::Devices
            | Shows::Other => Beside::All,
        }
    }
}

/// What no special of the list shows of this row.
pub fn missing(engine: &str, list: &[Special]) -> Vec<Shows> {
    use Shows::{Allocations, Devices, Far, FiftyRuns, Misaligned, Replay, Streams, Threads, Workspace};
    let asked = [FiftyRuns, Replay, Misaligned, Far, Streams, Threads, Allocations, Devices, Workspace];
    // A forward without split keys has no workspace.
    let asked = asked.into_iter().filter(|s| *s != Workspace || ![PREFILL, HOPPER].contains(&engine));
    asked.filter(|s| !list.iter().any(|x| x.engine == engine && x.shows == *s)).collect()
}
