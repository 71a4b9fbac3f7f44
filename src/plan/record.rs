//! What is kept of a chosen plan so that it can be chosen again next year: numbers that are append-only (I3).

use super::Ranked;
use crate::{Error, ErrorCode, Result};
use frostgraph_engines::knobs::knob_values;
use frostgraph_engines::{Knob, Knobs, Row};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The choice for one node: engine id and knob values by public number. The name is a check, not the identity.
///
/// A key that is not one of these is refused on reading: a misspelt `knobs` must not choose other knobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanRecord {
    /// Engine id.
    pub engine_id: u32,
    /// Engine name; when not empty it must be the name of that id.
    #[serde(default)]
    pub engine: String,
    /// Values by public knob number; knobs that are left out take the heuristics' value.
    #[serde(default)]
    pub knobs: BTreeMap<u32, i64>,
}

impl PlanRecord {
    pub(super) fn of(entry: &Ranked) -> PlanRecord {
        PlanRecord { engine_id: entry.row.id, engine: entry.row.name.to_owned(), knobs: entry.knobs.to_public() }
    }

    /// Knobs by name instead of number.
    pub(super) fn knobs(&self) -> Result<Knobs> {
        let mut knobs = Knobs::NONE;
        for (&number, &value) in &self.knobs {
            let knob = Knob::from_number(number).ok_or_else(|| {
                let known: Vec<String> = Knob::ALL.iter().map(|k| format!("{} {}", k.number(), k.name())).collect();
                Error::new(ErrorCode::BadKnob, format!("knob number {number}"), format!("one of {}", known.join(", ")))
            })?;
            knobs = knobs.with(knob, value);
        }
        Ok(knobs)
    }
}

/// Refuses knobs that the row does not have and values outside their domain: a knob is honoured or refused, never bent.
pub(super) fn check_knobs(row: &Row, knobs: &Knobs) -> Result<()> {
    match knob_values(row, knobs) {
        None => Ok(()),
        Some(d) => {
            Err(Error::new(ErrorCode::BadKnob, format!("{}: {}", d.engine, d.reason), "knobs of the engine within their domains"))
        }
    }
}
