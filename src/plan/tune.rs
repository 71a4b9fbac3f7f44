//! Timing plans on the caller's data, and the fastest of a list.

use super::{Built, Plan};
use crate::exec::{Bindings, Executable, Stream, Workspace};
use crate::{Error, ErrorCode, Result};
use std::time::{Duration, Instant};

/// Executions of one plan at most, however short they are.
const MOST_RUNS: usize = 10_000;
/// Executions of one plan at least, however long they are, so that a median means something.
const LEAST_RUNS: usize = 3;

/// What one plan took.
#[derive(Debug, Clone)]
pub struct Timing {
    /// The plan.
    pub plan: Plan,
    /// Bytes of workspace that it needs.
    pub workspace_bytes: u64,
    /// Every execution, ascending; at least three.
    pub times: Vec<Duration>,
}

impl Timing {
    /// The middle of the times (of an even number the later of the two).
    pub fn median(&self) -> Duration {
        self.times.get(self.times.len() / 2).copied().unwrap_or(Duration::MAX)
    }

    /// The shortest time.
    pub fn fastest(&self) -> Duration {
        self.times.first().copied().unwrap_or(Duration::MAX)
    }
}

/// What [`Built::tune`] found: at least one plan that runs.
#[derive(Debug)]
pub struct Tuned {
    /// By median, shortest first; equal ones in the order of the list.
    pub timings: Vec<Timing>,
    /// Plans that do not run here, in the order of the list, and why.
    pub failed: Vec<(Plan, Error)>,
}

impl Tuned {
    /// The fastest plan. Its [`records`](Plan::records) can be kept and replayed later with [`Built::replay`].
    pub fn best(&self) -> &Plan {
        &self.timings[0].plan
    }
}

impl Plan {
    /// Compiles the plan and executes it for about this long after one execution that is not counted: at least three times, at most
    /// ten thousand. Outputs are written over; each execution is waited for.
    ///
    /// Errors: those of [`Plan::compile`] and [`Executable::execute`].
    pub fn time(
        &self,
        stream: &Stream,
        bindings: &mut Bindings<'_>,
        workspace: &mut Workspace<'_>,
        budget: Duration,
    ) -> Result<Timing> {
        let executable: Executable = self.compile()?;
        executable.execute_timed(stream, bindings, workspace)?;
        let (started, mut times) = (Instant::now(), Vec::new());
        while times.len() < LEAST_RUNS || (started.elapsed() < budget && times.len() < MOST_RUNS) {
            times.push(executable.execute_timed(stream, bindings, workspace)?);
        }
        times.sort_unstable();
        Ok(Timing { plan: self.clone(), workspace_bytes: executable.workspace_bytes(), times })
    }
}

impl Built {
    /// Times every plan of the list on the caller's buffers, each for about `budget`, and orders them by their medians.
    ///
    /// Knobs change speed and not results, but plans of different engines may round differently. Outputs are written over. The workspace
    /// must be large enough for every plan that is to take part: [`Built::tune_workspace_bytes`] is enough for all of them.
    ///
    /// Errors: that of [`Built::best`] when the list is empty; that of the first plan when none runs. A plan that fails beside others that
    /// run is in [`Tuned::failed`].
    ///
    /// ```
    /// # use frostgraph::prelude::*;
    /// # use std::time::Duration;
    /// # fn main() -> frostgraph::Result<()> {
    /// let mut g = Graph::new(GraphOptions { io: DType::F32, ..Default::default() });
    /// let q = g.tensor(Tensor::new("Q", [1, 2, 4, 8]));
    /// let out = g.sdpa(q, q, q, Sdpa { attn_scale: Some(AttnScale::Value(0.35)), ..Default::default() })?;
    /// g.output(out.o)?;
    /// let built = g.build(&Device::cpu())?;
    /// let (x, mut o) = (vec![1.0f32; 64], vec![0.0f32; 64]);
    /// let mut bindings = Bindings::new();
    /// bindings.read(built.uid(q)?, &x).write(built.uid(out.o)?, &mut o);
    /// let mut workspace = HostWorkspace::new(built.tune_workspace_bytes()).expect("memory");
    /// let tuned = built.tune(&Stream::cpu(), &mut bindings, &mut workspace.workspace(), Duration::from_millis(1))?;
    /// let records = tuned.best().records(); // keep these
    /// let plan = built.replay(&records)?; // in a later process, on an equal graph
    /// # assert_eq!(plan.to_string(), tuned.best().to_string());
    /// # Ok(())
    /// # }
    /// ```
    pub fn tune(
        &self,
        stream: &Stream,
        bindings: &mut Bindings<'_>,
        workspace: &mut Workspace<'_>,
        budget: Duration,
    ) -> Result<Tuned> {
        if self.plan_count() == 0 {
            // Selecting gives the error with every decline.
            self.best()?;
        }
        let (mut timings, mut failed) = (Vec::new(), Vec::new());
        for plan in self.plans() {
            match plan.time(stream, bindings, workspace, budget) {
                Ok(t) => timings.push(t),
                Err(e) => failed.push((plan, e)),
            }
        }
        if timings.is_empty() {
            let first = failed.into_iter().next().map(|(_, e)| e);
            return Err(
                first.unwrap_or_else(|| Error::new(ErrorCode::NoPlan, "no plan to time", "a graph that some engine serves"))
            );
        }
        timings.sort_by_key(Timing::median);
        Ok(Tuned { timings, failed })
    }

    /// The largest workspace of all plans that lower, bytes; see [`Plan::workspace_bytes`].
    pub fn tune_workspace_bytes(&self) -> u64 {
        self.plans().filter_map(|p| p.workspace_bytes().ok()).max().unwrap_or(0)
    }
}
