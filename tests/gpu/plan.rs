//! From a case to its plan on a device, present or described.

use crate::build::graph;
use crate::cases::Case;
use frostgraph::engines::{row_by_name, Knob, Knobs};
use frostgraph::plan::{BuildOptions, Built, Plan};
use frostgraph::{Device, Error, ErrorCode, Result};

/// The engine under test.
pub const ENGINE: &str = "sdpa_bwd_sm120";

/// The planned graph and the engine's best plan, or the one with the case's tiles. `Ok(None)`: these tiles do not exist for the shape.
pub fn plan(case: &Case, device: &Device) -> Result<Option<(Built, Plan)>> {
    let built = graph(case)?.build_with(device, &BuildOptions::all_engines())?;
    let row = row_by_name(ENGINE).ok_or_else(|| Error::new(ErrorCode::UnknownEngine, ENGINE, "a row of MANIFEST"))?;
    if let Some((m, n)) = case.tiles {
        let knobs = Knobs::new(&[(Knob::TileM, m), (Knob::TileN, n)]);
        // A pair of tiles that no warp partition serves is declined here or when the launches are made.
        return match built.create_plan(row.id, &knobs).and_then(|plan| plan.lower().map(|_| plan)) {
            Ok(plan) => Ok(Some((built, plan))),
            Err(e) if matches!(e.code, ErrorCode::Declined | ErrorCode::BadKnob) => Ok(None),
            Err(e) => Err(e),
        };
    }
    let best = built.plans().find(|p| p.entries().all(|e| e.row.id == row.id));
    match best {
        Some(plan) => Ok(Some((built, plan))),
        None => {
            let reasons: Vec<String> = built.declined().map(|d| d.to_string()).collect();
            Err(Error::new(ErrorCode::NoPlan, format!("no {ENGINE} plan"), "an accepted case").details(reasons))
        }
    }
}
