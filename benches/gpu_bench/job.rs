//! One timed run: a plan of a case with its inputs, and what can be done with it: time it, launch it once.

use crate::device::{Buffers, Gpu};
use crate::rounds::{Own, Take};
use crate::Args;
use frostgraph::engines::Step;
use frostgraph::exec::{Executable, Operand};
use frostgraph::plan::Plan;
use frostgraph::Result;
use serde_json::json;

/// What an operand holds when it is not random bf16.
pub type Given = Box<dyn Fn(&Operand) -> Option<Vec<u8>>>;

/// A plan of a case.
pub struct Job {
    pub case: String,
    /// Name of the plan among the case's: `default`, `sm90`, ….
    pub mode: String,
    pub plan: Plan,
    /// Operations that count, two a multiply-add.
    pub flops: f64,
    pub given: Given,
}

impl Job {
    fn ready(&self, gpu: &Gpu) -> Result<(Executable, Buffers)> {
        let exe = self.plan.compile()?;
        let buffers = Buffers::new(gpu, &exe, exe.workspace_bytes(), |o| (self.given)(o))?;
        Ok((exe, buffers))
    }

    /// Compiled, with its buffers filled, to take turns; what fails is a result.
    pub fn own(self, gpu: &Gpu) -> Own<'_> {
        let plan = self.plan.to_string();
        let (about, turn): (_, Option<Take>) = match self.ready(gpu) {
            Ok((exe, buffers)) => (
                json!({ "plan": plan, "workspace_bytes": exe.workspace_bytes() }),
                Some(Box::new(move |turn| buffers.turn(gpu, &exe, turn).map_err(|e| e.to_string()))),
            ),
            Err(e) => (json!({ "plan": plan, "error": e.to_string() }), None),
        };
        Own { name: self.mode, about, flops: self.flops, turn }
    }

    /// Entry points of the kernels, in launch order.
    pub fn kernels(&self) -> Result<Vec<String>> {
        let lowered = self.plan.lower()?;
        let steps = lowered.nodes.iter().flat_map(|n| &n.launches.steps);
        Ok(steps
            .filter_map(|s| match s {
                Step::Kernel(launch) => Some(launch.kernel.entry.to_owned()),
                Step::Host(_) => None,
            })
            .collect())
    }

    /// Launches the plan once, for a profiler around this program.
    pub fn once(&self, gpu: &Gpu) -> Result<()> {
        let (exe, buffers) = self.ready(gpu)?;
        gpu.stream.synchronize()?;
        exe.execute(&crate::device::stream(gpu), &mut buffers.bindings(), &mut buffers.workspace())?;
        gpu.stream.synchronize()
    }
}

/// Keeps the modes that `--modes` names.
pub fn wanted(args: &Args, jobs: Vec<Job>) -> Vec<Job> {
    jobs.into_iter().filter(|j| args.wants_mode(&j.mode)).collect()
}
