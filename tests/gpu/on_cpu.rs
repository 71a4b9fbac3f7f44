//! The harness itself, tried on the CPU engine: inputs, layouts, oracle, yardstick and comparison need no GPU to be wrong.

use crate::build::graph;
use crate::cases::Case;
use crate::judge::judge;
use crate::problem::{port_of, prepare, POISON};
use frostgraph::exec::{Bindings, HostWorkspace, Stream};
use frostgraph::plan::BuildOptions;
use frostgraph::{Device, Error, ErrorCode, Result};

/// Runs a case on the CPU and gives the worst error.
pub fn run(case: &Case, seed: u64) -> Result<f64> {
    let case = Case { knobs: Vec::new(), ..case.clone() };
    let built = graph(&case)?.build_with(&Device::cpu(), &BuildOptions::all_engines())?;
    let exe = built.best()?.compile()?;
    let prepared = prepare(&case, built.nodes()[0].facts(), seed)?;
    let mut tensors = prepared.tensors.clone();
    let mut scratch = HostWorkspace::new(exe.workspace_bytes());
    let scratch = scratch.as_mut().ok_or_else(|| Error::new(ErrorCode::Workspace, "too large", "a workspace that fits"))?;
    let mut bindings = Bindings::new();
    for (&uid, bytes) in &mut tensors {
        if prepared.owned.contains_key(&uid) {
            bindings.write(uid, bytes.as_mut_slice());
        } else {
            bindings.read(uid, bytes.as_slice());
        }
    }
    exe.execute(&Stream::cpu(), &mut bindings, &mut scratch.workspace())?;
    let mut worst = 0.0f64;
    for (&uid, owned) in &prepared.owned {
        worst = worst.max(judge(&case, &prepared, uid, &tensors[&uid])?.frobenius);
        let mut spoilt = tensors[&uid].clone();
        if let Some(i) = owned.iter().position(|&mine| mine) {
            // The comparison must be able to fail: an element left as poison is one that was not written.
            let width = port_of(&prepared.facts, uid)?.0.dtype.bytes().unwrap_or(1) as usize;
            spoilt[i..i + width].fill(POISON);
            if judge(&case, &prepared, uid, &spoilt).is_ok() {
                let given = format!("uid {uid} with an unwritten element passed");
                return Err(Error::new(ErrorCode::CheckFailed, given, "a comparison that fails"));
            }
        }
        let before = &prepared.tensors[&uid];
        if let Some(i) = (0..owned.len()).find(|&i| !owned[i] && tensors[&uid][i] != before[i]) {
            return Err(Error::new(ErrorCode::CheckFailed, format!("uid {uid}: byte {i} changed"), "only elements are written"));
        }
    }
    Ok(worst)
}
