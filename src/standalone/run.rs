//! What every call comes down to: an executable that is kept, and one execution of it.

use super::cache::Cache;
use super::operand::Operand;
use crate::exec::{Bindings, Executable, Stream, Workspace};
use crate::plan::{BuildOptions, EngineSwitches, Plan};
use crate::{Device, Result};
use std::sync::Arc;

/// Executables by device, engine switches, and what else a call's plan depends on.
pub(super) type Kept<A> = Cache<(Device, EngineSwitches, A)>;

/// The executable of a call, planned now if it is not kept. Engines that a graph would have to opt in to are offered: a call names its
/// operation explicitly.
pub(super) fn executable<A: PartialEq>(
    kept: &Kept<A>,
    device: &Device,
    workspace_limit: Option<u64>,
    call: A,
    plan: impl FnOnce(&BuildOptions) -> Result<Plan>,
) -> Result<Arc<Executable>> {
    let options = BuildOptions { enable_opt_in: Some(true), workspace_limit, ..BuildOptions::default() };
    let key = (device.clone(), EngineSwitches::resolve(&options)?, call);
    kept.get(key, || plan(&options)?.compile())
}

/// Binds the operands under the uids 1, 2 and so on, which the graph of every call gives in this order, and executes. Absent operands bind
/// nothing.
pub(super) fn execute<'a>(
    exe: &Executable,
    stream: &Stream,
    operands: impl IntoIterator<Item = Operand<'a>>,
    workspace: &mut Workspace<'_>,
) -> Result<()> {
    let mut bindings = Bindings::new();
    for (uid, operand) in (1..).zip(operands) {
        operand.bind(uid, &mut bindings);
    }
    exe.execute(stream, &mut bindings, workspace)
}
