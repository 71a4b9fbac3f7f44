//! Whether a launch fits the hardware and the kernel that was compiled for it: asked when a chain is made, never when it runs.

use super::{MAX_ARGS, MAX_MAPS};
use crate::engines::{Arg, Launch, Target};
use crate::runtime::compile::Cubin;
use crate::{Error, ErrorCode, Result};

pub(super) fn bug(launch: &str, given: String, expected: &str) -> Error {
    Error::new(ErrorCode::KernelBudget, given, expected.to_owned()).at(format!("launch {launch}"))
}

pub(super) fn limits(launch: &Launch) -> Result<()> {
    let [x, y, z] = launch.grid;
    let product = |e: [u32; 3]| e.iter().map(|&n| u64::from(n)).product::<u64>();
    if x == 0 || y == 0 || z == 0 || x > i32::MAX as u32 || y > 65_535 || z > 65_535 {
        return Err(bug(launch.name, format!("a grid of {x}x{y}x{z}"), "1 to 2^31 - 1 along x, 1 to 65535 along y and z"));
    }
    if product(launch.block) == 0 || product(launch.block) > 1024 {
        return Err(bug(launch.name, format!("a block of {:?}", launch.block), "1 to 1024 threads"));
    }
    let fits = (0..3).all(|i| launch.cluster[i] > 0 && launch.grid[i].is_multiple_of(launch.cluster[i]));
    if !fits || product(launch.cluster) > 16 {
        let given = format!("a cluster of {:?} for a grid of {:?}", launch.cluster, launch.grid);
        return Err(bug(launch.name, given, "at most 16 blocks that divide the grid"));
    }
    if launch.args.len() > MAX_ARGS || launch.args.iter().filter(|a| matches!(a, Arg::Map(_))).count() > MAX_MAPS {
        let given = format!("{} parameters", launch.args.len());
        return Err(bug(launch.name, given, &format!("at most {MAX_ARGS} parameters, {MAX_MAPS} of them maps")));
    }
    Ok(())
}

/// Bytes of a parameter.
pub(super) fn size_of(arg: &Arg) -> u32 {
    match arg {
        Arg::Ptr(_) | Arg::Null | Arg::I64(_) => 8,
        Arg::I32(_) | Arg::F32(_) => 4,
        Arg::Map(_) | Arg::NoMap => 128,
    }
}

/// Compares a launch with the kernel that was really compiled: parameter list, block, shared memory.
///
/// # Errors
/// FG6006 naming the launch and the first difference.
pub fn check_launch(launch: &Launch, cubin: &Cubin, target: &Target) -> Result<()> {
    limits(launch)?;
    let have: Vec<u32> = launch.args.iter().map(size_of).collect();
    let want: Vec<u32> = cubin.info.params.iter().map(|p| p.size).collect();
    if have != want {
        let at = have.iter().zip(&want).position(|(a, b)| a != b).unwrap_or(have.len().min(want.len()));
        let name = launch.names.get(at).copied().unwrap_or("");
        let size = |s: &[u32]| s.get(at).map_or("none".into(), |n| format!("{n} bytes"));
        let given = format!("{} parameters, number {at} '{name}' of {}", have.len(), size(&have));
        return Err(bug(launch.name, given, &format!("{} parameters as compiled, number {at} of {}", want.len(), size(&want))));
    }
    let threads: u32 = launch.block.iter().product();
    if cubin.info.max_threads.is_some_and(|max| threads > max) {
        let given = format!("{threads} threads");
        return Err(bug(launch.name, given, &format!("at most {} by its launch bounds", cubin.info.max_threads.unwrap_or(0))));
    }
    let Target::Cuda { smem_optin, .. } = target else { return Ok(()) };
    let smem = launch.smem.saturating_add(cubin.info.static_smem);
    if smem > *smem_optin {
        return Err(bug(
            launch.name,
            format!("{smem} bytes of shared memory"),
            &format!("at most {smem_optin} on {}", target.name()),
        ));
    }
    Ok(())
}
