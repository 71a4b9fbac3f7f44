//! Choosing a plan: by place, by record, or the first that builds.

use super::built::{no_plan, Inner};
use super::layout::LoweredNode;
use super::record::check_knobs;
use super::walk::{declined, lower_entry};
use super::{rank, Built, NodePlans, Plan, PlanRecord, Ranked};
use crate::exec::Executable;
use crate::{Error, ErrorCode, Result};
use frostgraph_engines::{row_by_id, DeclineCode, Knobs, Row, MANIFEST};
use std::collections::BTreeMap;

/// One plan of the list with what compiling it gave.
#[derive(Debug)]
pub struct BuildOutcome {
    /// Place in the list.
    pub index: usize,
    /// The plan.
    pub plan: Plan,
    /// The executable, or why there is none.
    pub result: Result<Executable>,
}

impl Built {
    /// Pins plan `index`: it is used or it fails, never replaced.
    ///
    /// Errors: [`ErrorCode::PlanIndex`]; [`ErrorCode::Declined`] with the engine's reason when it declines at lowering.
    pub fn select_plan(&self, index: usize) -> Result<Plan> {
        let count = self.plan_count();
        if index >= count {
            if let Some(e) = self.first_without_plan() {
                return Err(e);
            }
            let expected = if count == 1 {
                "0, the only plan".to_owned()
            } else {
                format!("an index from 0 to {}", count.saturating_sub(1))
            };
            return Err(Error::new(ErrorCode::PlanIndex, format!("plan index {index}"), expected));
        }
        let plan = self.nth(index);
        plan.lower()?;
        Ok(plan)
    }

    /// The best plan that its engines build: for every node the first entry that does not decline at lowering.
    ///
    /// Errors: [`ErrorCode::NoPlan`] with one line per entry when a node has none.
    pub fn best(&self) -> Result<Plan> {
        if let Some(e) = self.first_without_plan() {
            return Err(e);
        }
        let mut chosen = BTreeMap::new();
        let mut lowered = Vec::with_capacity(self.inner.nodes.len());
        for (at, n) in self.inner.nodes.iter().enumerate() {
            let (entry, node) = first_that_builds(&self.inner, at, n)?;
            if entry > 0 {
                chosen.insert(at, n.ranked[entry].clone());
            }
            lowered.push(node);
        }
        Ok(self.plan_with(chosen, lowered))
    }

    /// A plan of one engine by id for a graph of one node; see [`Built::create_plan_for`].
    pub fn create_plan(&self, engine_id: u32, knobs: &Knobs) -> Result<Plan> {
        let n = self.inner.nodes.len();
        if n != 1 {
            let given = format!("an engine for a graph of {n} nodes");
            return Err(Error::new(ErrorCode::UnknownEngine, given, "a graph of one node").help("Name the node: create_plan_for"));
        }
        self.create_plan_for(0, engine_id, knobs)
    }

    /// A plan that uses this engine for node `at` (position in [`Built::nodes`]) and the best entries elsewhere. Knobs that are left
    /// out take the heuristics' value.
    ///
    /// Errors: [`ErrorCode::UnknownEngine`] for an id that no engine has or that is switched off, [`ErrorCode::BadKnob`],
    /// [`ErrorCode::Declined`] with the engine's reason.
    pub fn create_plan_for(&self, at: usize, engine_id: u32, knobs: &Knobs) -> Result<Plan> {
        let entry = self.entry(at, engine_id, knobs)?;
        if let Some((_, n)) = self.inner.nodes.iter().enumerate().find(|(i, n)| *i != at && n.ranked.is_empty()) {
            return Err(no_plan(n, &self.inner.device));
        }
        let plan = self.plan_of(BTreeMap::from([(at, entry)]));
        plan.lower()?;
        Ok(plan)
    }

    /// The plan that records name, one per node in execution order. Strict: what cannot be honoured exactly is an error.
    pub fn replay(&self, records: &[PlanRecord]) -> Result<Plan> {
        let want = self.inner.nodes.len();
        if records.len() != want {
            let given = format!("{} plan records", records.len());
            return Err(Error::new(ErrorCode::UnknownEngine, given, format!("{want}, one for each node in execution order")));
        }
        let mut chosen = BTreeMap::new();
        for (at, r) in records.iter().enumerate() {
            if let Some(row) = row_by_id(r.engine_id).filter(|row| !r.engine.is_empty() && row.name != r.engine) {
                let given = format!("engine id {} recorded as '{}'", r.engine_id, r.engine);
                return Err(Error::new(ErrorCode::UnknownEngine, given, format!("'{}', the name of that id", row.name)));
            }
            chosen.insert(at, self.entry(at, r.engine_id, &r.knobs()?)?);
        }
        let plan = self.plan_of(chosen);
        plan.lower()?;
        Ok(plan)
    }

    /// Compiles the best plan that builds (cuDNN's policy HEURISTICS_CHOICE): declines lead to the next entry, any other error is
    /// returned at once.
    pub fn build_first(&self) -> Result<(Plan, Executable)> {
        let plan = self.best()?;
        let exe = plan.compile()?;
        Ok((plan, exe))
    }

    /// Compiles every plan of the list (cuDNN's policy ALL). One failure does not stop the others.
    pub fn build_all(&self) -> Vec<BuildOutcome> {
        self.plans().enumerate().map(|(index, plan)| BuildOutcome { index, result: plan.compile(), plan }).collect()
    }

    /// Checks an engine id and knobs for one node and completes the knobs.
    fn entry(&self, at: usize, engine_id: u32, knobs: &Knobs) -> Result<Ranked> {
        let inner = &*self.inner;
        let n = inner.nodes.get(at).ok_or_else(|| out_of_nodes(at, inner.nodes.len()))?;
        let row = row_by_id(engine_id).ok_or_else(|| unknown_engine(engine_id))?;
        if let Some(off) = inner.switches.off(row) {
            let d = rank::switched_off(row, off);
            return Err(Error::new(ErrorCode::UnknownEngine, format!("engine id {engine_id}: {d}"), "an engine that is offered")
                .at(n.place()));
        }
        check_knobs(row, knobs).map_err(|e| e.at(n.place()))?;
        let family = n.family.filter(|f| f.rows.iter().any(|r| r.id == engine_id)).ok_or_else(|| {
            let reason = format!("serves another operation than {}", n.tag);
            declined(inner, at, &row.decline(DeclineCode::Operation, format!("operation={}", n.tag), reason))
        })?;
        // The row itself is asked first, with the knobs as given: its reason is better than one about completed knobs.
        if let Some(d) = (family.mismatch)(row, &n.facts, knobs, &inner.device.target) {
            return Err(declined(inner, at, &d));
        }
        let knobs = complete(inner, n, family, row, knobs);
        match (family.mismatch)(row, &n.facts, &knobs, &inner.device.target) {
            Some(d) => Err(declined(inner, at, &d)),
            None => Ok(Ranked { row, knobs }),
        }
    }
}

/// Fills the axes that were left out from the heuristics' best proposal that agrees with the given ones, else from its best one.
fn complete(inner: &Inner, n: &NodePlans, family: &frostgraph_engines::Family, row: &'static Row, given: &Knobs) -> Knobs {
    let mut proposals = Vec::new();
    for &mode in &inner.modes {
        proposals.extend((family.recommend)(&n.facts, &inner.device.target, &[row], mode).into_iter().filter(|c| c.id == row.id));
    }
    let agrees = |k: &Knobs| given.iter().all(|(knob, v)| k.get(knob) == Some(v));
    let Some(base) = proposals.iter().find(|c| agrees(&c.knobs)).or(proposals.first()) else {
        return given.clone();
    };
    given.iter().fold(base.knobs.clone(), |k, (knob, v)| k.with(knob, v))
}

fn first_that_builds(inner: &Inner, at: usize, n: &NodePlans) -> Result<(usize, LoweredNode)> {
    let mut failures = Vec::new();
    for (i, entry) in n.ranked.iter().enumerate() {
        match lower_entry(inner, at, entry) {
            Ok(node) => return Ok((i, node)),
            Err(d) => failures.push(format!("[{i}] {entry}: {} [{} {}]", d.reason, d.code.code(), d.fact)),
        }
    }
    let given = format!("no plan of the list builds for {} on {}", n.tag, inner.device.target.name());
    let lines = failures.into_iter().chain(n.declined.iter().map(ToString::to_string));
    Err(Error::new(ErrorCode::NoPlan, given, "one that builds; each plan's reason follows").at(n.place()).details(lines))
}

fn unknown_engine(id: u32) -> Error {
    let known: Vec<String> = MANIFEST.iter().flat_map(|f| f.rows).map(|r| format!("{} {}", r.id, r.name)).collect();
    Error::new(ErrorCode::UnknownEngine, format!("engine id {id}"), format!("one of {}", known.join(", ")))
}

fn out_of_nodes(at: usize, nodes: usize) -> Error {
    Error::new(ErrorCode::PlanIndex, format!("node position {at}"), format!("a position below {nodes}"))
}
