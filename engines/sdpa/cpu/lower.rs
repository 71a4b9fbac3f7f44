//! What every CPU row does when it lowers a node: checks of its outputs, regions, one host step.

use crate::launch::Step;
use crate::sdpa::layout::writable_ok;
use crate::{Decline, DeclineCode, HostCall, LaunchPlan, Port};

/// The plan, unless an output overlaps itself or the workspace size does not fit 64 bits.
///
/// # Errors
/// [`Decline`] D08 for an output whose strides overlap, D14 for the size.
pub fn checked(engine: &'static str, outputs: &[&Option<Port>], plan: Option<LaunchPlan>) -> Result<LaunchPlan, Decline> {
    if let Some(port) = outputs.iter().filter_map(|p| p.as_ref()).find(|p| !writable_ok(p)) {
        return Err(Decline {
            engine,
            code: DeclineCode::Layout,
            reason: format!(
                "output {} has strides {:?} for extents {:?}: elements share a place",
                port.name, port.stride, port.dim
            ),
            fact: format!("stride={:?}", port.stride),
        });
    }
    plan.ok_or_else(|| Decline {
        engine,
        code: DeclineCode::Resources,
        reason: "the workspace size does not fit 64 bits".into(),
        fact: "workspace=overflow".into(),
    })
}

/// One host step over a workspace of f32 regions, given by name and number of elements; `None` when its size does not fit 64 bits.
pub fn host_plan<const N: usize>(call: HostCall, names: [&'static str; N], floats: [u64; N]) -> Option<LaunchPlan> {
    let mut plan = LaunchPlan::default();
    for (name, floats) in names.into_iter().zip(floats) {
        plan.region(name, floats.checked_mul(4)?)?;
    }
    plan.steps.push(Step::Host(call));
    Some(plan)
}
