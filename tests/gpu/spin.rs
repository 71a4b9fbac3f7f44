//! Kernels that keep a device busy, store their parameters or fault: `kernels/test`.

use frostgraph::engines::launch::{Arg, KernelSpec, Launch, LaunchPlan, Step};
use frostgraph::runtime::{CudaDevice, CudaStream, DeviceRange, Program};
use frostgraph::Result;

/// A kernel of test/spin.cu with these parameters.
pub fn test_plan(entry: &'static str, grid: u32, smem: u32, args: Vec<Arg>) -> LaunchPlan {
    let mut plan = test_kernel("test/spin.cu", entry, [grid, 1, 1], 32, args);
    if let Some(Step::Kernel(launch)) = plan.steps.first_mut() {
        launch.smem = smem;
    }
    plan
}

/// A test kernel with these parameters.
pub fn test_kernel(source: &'static str, entry: &'static str, grid: [u32; 3], block: u32, args: Vec<Arg>) -> LaunchPlan {
    let launch = Launch {
        name: entry,
        kernel: KernelSpec { source, entry, defines: Vec::new() },
        grid,
        cluster: [1, 1, 1],
        block: [block, 1, 1],
        smem: 0,
        pdl: false,
        names: vec!["value"; args.len()],
        args,
    };
    LaunchPlan { steps: vec![Step::Kernel(launch)], ..LaunchPlan::default() }
}

/// Keeps `blocks` SMs busy for so many milliseconds; the shared memory makes each block take an SM of its own.
pub fn spin(device: &CudaDevice, blocks: u32, ms: i64) -> Result<Program> {
    Program::compile(device, &[&test_plan("fg_test_spin", blocks, 200 << 10, vec![Arg::I64(ms * 1_000_000)])])
}

pub fn launch(program: &Program, stream: &CudaStream) -> Result<()> {
    program.execute(stream.raw(), &|_| None, DeviceRange::default())
}

pub fn sm_count(device: &CudaDevice) -> u32 {
    match device.target() {
        frostgraph::engines::Target::Cuda { sm_count, .. } => *sm_count,
        frostgraph::engines::Target::Cpu => 1,
    }
}
