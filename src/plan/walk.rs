//! Plans: one choice per node, enumerated lazily.

use super::built::Inner;
use super::layout::{Lowered, LoweredNode};
use super::{Built, PlanRecord, Ranked};
use crate::{Device, Error, ErrorCode, Result};
use frostgraph_engines::{Decline, DeclineCode, Feature, KernelSpec, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

/// One choice per node of a built graph. Cheap to make; lowered to launches when first asked for.
#[derive(Debug, Clone)]
pub struct Plan {
    pub(crate) built: Arc<Inner>,
    /// Position in the node list → entry; nodes that are not named take their best one.
    pub(super) chosen: BTreeMap<usize, Ranked>,
    lowered: OnceLock<Arc<Lowered>>,
}

impl Built {
    /// Number of plans in the list.
    pub fn plan_count(&self) -> usize {
        if self.inner.nodes.is_empty() || self.inner.nodes.iter().any(|n| n.ranked.is_empty()) {
            return 0;
        }
        self.inner.starts[self.inner.nodes.len()]
    }

    /// Plans, best first. Plan 0 takes every node's best entry, the further ones vary one node at a time; nothing is lowered or
    /// compiled until asked for.
    pub fn plans(&self) -> impl ExactSizeIterator<Item = Plan> + '_ {
        (0..self.plan_count()).map(|i| self.nth(i))
    }

    /// Plan `i` of the list; `i` is below `plan_count`.
    pub(super) fn nth(&self, i: usize) -> Plan {
        let mut chosen = BTreeMap::new();
        if i > 0 {
            let at = self.inner.starts.partition_point(|s| *s <= i) - 1;
            // Nodes without alternatives share a start with their successor; partition_point lands on the last of them.
            let entry = i - self.inner.starts[at] + 1;
            chosen.insert(at, self.inner.nodes[at].ranked[entry].clone());
        }
        self.plan_of(chosen)
    }

    pub(super) fn plan_of(&self, chosen: BTreeMap<usize, Ranked>) -> Plan {
        Plan { built: Arc::clone(&self.inner), chosen, lowered: OnceLock::new() }
    }

    /// A plan whose nodes the caller has already lowered.
    pub(super) fn plan_with(&self, chosen: BTreeMap<usize, Ranked>, nodes: Vec<LoweredNode>) -> Plan {
        let plan = self.plan_of(chosen);
        let _first_and_only = plan.lowered.set(Arc::new(assemble(&self.inner, nodes)));
        plan
    }
}

impl std::fmt::Display for Plan {
    /// `engine[KNOB=value,..]`, knobs by name; several nodes joined with ` + ` in execution order.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, entry) in self.entries().enumerate() {
            let sep = if i == 0 { "" } else { " + " };
            write!(f, "{sep}{entry}")?;
        }
        Ok(())
    }
}

impl Plan {
    /// The chosen entry of each node in execution order.
    pub fn entries(&self) -> impl Iterator<Item = &Ranked> {
        self.built.nodes.iter().enumerate().map(|(i, n)| self.chosen.get(&i).unwrap_or_else(|| &n.ranked[0]))
    }

    /// The choice as numbers that replay later: one record per node in execution order; see [`Built::replay`].
    pub fn records(&self) -> Vec<PlanRecord> {
        self.entries().map(PlanRecord::of).collect()
    }

    /// The device that the plan is for.
    pub fn device(&self) -> &Device {
        &self.built.device
    }

    /// Whether equal inputs give equal bits in every run: every node's row is reproducible by nature, as all CPU rows and the forward
    /// passes are, or was asked to be deterministic, which rows that cannot be decline (field report 66: a flag is wired or refused).
    /// Rows of a scattered grouped product that are written to one place twice have no defined value, deterministic or not.
    pub fn is_deterministic(&self) -> bool {
        self.entries()
            .zip(&self.built.nodes)
            .all(|(entry, n)| entry.row.reproducible || n.facts.features().has(Feature::Deterministic))
    }

    /// The launches of every node with the workspace laid out; computed once.
    ///
    /// Errors: [`ErrorCode::Declined`] when an engine declines at lowering or the workspace limit is exceeded.
    pub fn lower(&self) -> Result<Arc<Lowered>> {
        if let Some(l) = self.lowered.get() {
            return Ok(Arc::clone(l));
        }
        let l = Arc::new(self.lower_now()?);
        Ok(Arc::clone(self.lowered.get_or_init(|| l)))
    }

    /// Bytes of workspace that an execution needs, virtual tensors included.
    pub fn workspace_bytes(&self) -> Result<u64> {
        Ok(self.lower()?.workspace_bytes)
    }

    /// The different kernels of the plan, sorted: what a compile ahead of time makes. Empty for CPU plans.
    pub fn kernels(&self) -> Result<Vec<KernelSpec>> {
        let lowered = self.lower()?;
        let specs: BTreeSet<&KernelSpec> = lowered
            .nodes
            .iter()
            .flat_map(|n| &n.launches.steps)
            .filter_map(|s| match s {
                Step::Kernel(l) => Some(&l.kernel),
                Step::Host(_) => None,
            })
            .collect();
        Ok(specs.into_iter().cloned().collect())
    }

    fn lower_now(&self) -> Result<Lowered> {
        let mut nodes = Vec::with_capacity(self.built.nodes.len());
        for (at, entry) in self.entries().enumerate() {
            nodes.push(lower_entry(&self.built, at, entry).map_err(|d| declined(&self.built, at, &d))?);
        }
        Ok(assemble(&self.built, nodes))
    }
}

/// Puts lowered nodes together. Every node was lowered against the whole virtual area, so the sum cannot overflow.
pub(super) fn assemble(built: &Inner, nodes: Vec<LoweredNode>) -> Lowered {
    let base = built.virtuals.bytes;
    let scratch = nodes.iter().map(|n| n.scratch_bytes).max().unwrap_or(0);
    Lowered { nodes, virtuals: built.virtuals.tensors.clone(), scratch_offset: base, workspace_bytes: base + scratch }
}

/// Lowers one node's entry; also the test that the build policies walk the list with.
pub(super) fn lower_entry(built: &Inner, at: usize, entry: &Ranked) -> Result<LoweredNode, Decline> {
    let n = &built.nodes[at];
    let base = built.virtuals.bytes;
    let mut launches = (entry.row.lower)(&n.facts, &entry.knobs, &built.device.target)?;
    let scratch_bytes = launches.workspace_bytes;
    let Some(total) = base.checked_add(scratch_bytes) else {
        let fact = format!("workspace_bytes={base}+{scratch_bytes}");
        return Err(entry.row.decline(DeclineCode::Resources, fact, "the workspace exceeds 64 bits"));
    };
    if let Some(limit) = built.workspace_limit.filter(|l| total > *l) {
        let reason = format!("needs {total} workspace bytes ({base} of them virtual tensors); the limit is {limit}");
        return Err(entry.row.decline(DeclineCode::WorkspaceLimit, format!("workspace_bytes={total}"), reason));
    }
    // From here on offsets count from the start of the whole workspace; nodes run in turn and share the area behind the virtual tensors.
    launches.workspace_bytes = total;
    for r in &mut launches.regions {
        r.offset += base;
    }
    let facts = Arc::clone(&n.facts);
    Ok(LoweredNode { node: n.node, row: entry.row, knobs: entry.knobs.clone(), facts, launches, scratch_bytes })
}

pub(super) fn declined(built: &Inner, at: usize, d: &Decline) -> Error {
    let n = &built.nodes[at];
    Error::new(ErrorCode::Declined, d.to_string(), format!("a plan that its engine builds on {}", built.device.target.name()))
        .at(n.place())
        .help("A pinned plan is never replaced: choose another index, or best()")
}
