//! One timed run: a plan of a case with its inputs, and what can be done with it: time it, launch it once.

use crate::device::{Buffers, Gpu};
use crate::Args;
use frostgraph::engines::Step;
use frostgraph::exec::Operand;
use frostgraph::plan::Plan;
use frostgraph::Result;
use serde_json::{json, Value};

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
    /// Milliseconds under this key, throughput and workspace; what fails is a result.
    pub fn timed(&self, gpu: &Gpu, key: &str, budget_ms: f64) -> Value {
        self.time(gpu, key, budget_ms).unwrap_or_else(|e| json!({ "plan": self.plan.to_string(), "error": e.to_string() }))
    }

    fn time(&self, gpu: &Gpu, key: &str, budget_ms: f64) -> Result<Value> {
        let exe = self.plan.compile()?;
        let buffers = Buffers::new(gpu, &exe, exe.workspace_bytes(), |o| (self.given)(o))?;
        let ms = buffers.time(gpu, &exe, budget_ms)?;
        Ok(json!({
            "plan": self.plan.to_string(), key: ms, "tflops": self.flops / ms / 1e9, "workspace_bytes": exe.workspace_bytes(),
        }))
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
        let exe = self.plan.compile()?;
        let buffers = Buffers::new(gpu, &exe, exe.workspace_bytes(), |o| (self.given)(o))?;
        gpu.stream.synchronize()?;
        exe.execute(&crate::device::stream(gpu), &mut buffers.bindings(), &mut buffers.workspace())?;
        gpu.stream.synchronize()
    }
}

/// Keeps the modes that `--modes` names.
pub fn wanted(args: &Args, jobs: Vec<Job>) -> Vec<Job> {
    jobs.into_iter().filter(|j| args.wants_mode(&j.mode)).collect()
}
