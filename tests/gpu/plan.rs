//! From a case to its plan on a device, present or described.

use crate::build::graph;
use crate::cases::Case;
use frostgraph::engines::{row_by_name, Knobs};
use frostgraph::plan::{BuildOptions, Built, Plan};
use frostgraph::{Device, Error, ErrorCode, Result};

/// What the planner says to a case.
pub enum Planned {
    Ready(Box<(Built, Plan)>),
    /// The engine's own words.
    Declined(String),
}

/// The planned graph and the best plan of the case's engine, or the one with the case's knobs.
pub fn plan(case: &Case, device: &Device) -> Result<Planned> {
    let Some(row) = row_by_name(case.engine) else {
        return Ok(Planned::Declined(format!("{}: no row of MANIFEST", case.engine)));
    };
    let options = BuildOptions { allow_empty: true, ..BuildOptions::all_engines() };
    let built = graph(case)?.build_with(device, &options)?;
    if let Some(d) = built.declined().find(|d| d.engine == case.engine) {
        return Ok(Planned::Declined(format!("{} {}: {}", d.engine, d.code.code(), d.reason)));
    }
    if !case.knobs.is_empty() {
        // Knobs that the shape does not have are declined here or when the launches are made.
        return match built.create_plan(row.id, &Knobs::new(&case.knobs)).and_then(|plan| plan.lower().map(|_| plan)) {
            Ok(plan) => Ok(Planned::Ready(Box::new((built, plan)))),
            Err(e) if matches!(e.code, ErrorCode::Declined | ErrorCode::BadKnob) => Ok(Planned::Declined(knob_reason(case, &e))),
            Err(e) => Err(e),
        };
    }
    let best = built.plans().find(|p| p.entries().all(|e| e.row.id == row.id));
    match best {
        Some(plan) => Ok(Planned::Ready(Box::new((built, plan)))),
        None => Err(Error::new(ErrorCode::NoPlan, format!("no {} plan and no decline", case.engine), "one of the two")),
    }
}

/// Short, so that cases with other numbers count together.
fn knob_reason(case: &Case, e: &Error) -> String {
    let names: Vec<&str> = case.knobs.iter().map(|(k, _)| k.name()).collect();
    format!("{} {}: these values of {} do not exist for the shape", case.engine, e.code.code(), names.join(", "))
}
