//! `Graph::build`: from a graph to ranked plans.

use super::layout::{virtual_layout, VirtualLayout};
use super::options::EngineSwitches;
use super::{rank, BuildOptions};
use crate::graph::{FrozenGraph, Graph, TensorId};
use crate::{analyze, Device, Error, ErrorCode, Result};
use frostgraph_engines::{Decline, Facts, Family, Knobs, Row, Uid};
use std::sync::Arc;

/// A proposal that the row accepted.
#[derive(Debug, Clone)]
pub struct Ranked {
    /// Engine.
    pub row: &'static Row,
    /// Complete knobs.
    pub knobs: Knobs,
}

impl std::fmt::Display for Ranked {
    /// Engine and knobs, such as `sdpa_bwd_sm120[TILE_M=64,TILE_N=64]`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.row.name, self.knobs)
    }
}

/// What planning found for one node.
#[derive(Debug, Clone)]
pub struct NodePlans {
    pub(super) node: usize,
    pub(super) name: String,
    pub(super) tag: &'static str,
    pub(super) facts: Arc<Facts>,
    pub(super) family: Option<&'static Family>,
    pub(super) ranked: Vec<Ranked>,
    pub(super) declined: Vec<Decline>,
}

impl NodePlans {
    /// Index into the frozen graph's nodes.
    pub fn node(&self) -> usize {
        self.node
    }

    /// Label of the node; may be empty.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Facts that the planner worked from.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Family whose rows were matched; `None` when no family serves this operation.
    pub fn family(&self) -> Option<&'static str> {
        self.family.map(|f| f.name)
    }

    /// Entries, best first.
    pub fn ranked(&self) -> &[Ranked] {
        &self.ranked
    }

    /// One decline for every row of the family that is not ranked.
    pub fn declined(&self) -> &[Decline] {
        &self.declined
    }

    pub(super) fn place(&self) -> String {
        if self.name.is_empty() {
            format!("node {}", self.node)
        } else {
            format!("node {} '{}'", self.node, self.name)
        }
    }
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub frozen: FrozenGraph,
    pub device: Device,
    pub(super) switches: EngineSwitches,
    pub modes: Vec<frostgraph_engines::Mode>,
    pub workspace_limit: Option<u64>,
    /// In execution order.
    pub nodes: Vec<NodePlans>,
    pub virtuals: VirtualLayout,
    /// Index of the first plan that varies node i (after plan 0); one entry more than nodes.
    pub starts: Vec<usize>,
}

/// A planned graph: frozen, analysed, matched and ranked for one device. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Built {
    pub(super) inner: Arc<Inner>,
}

impl Graph {
    /// Validates, freezes, analyses and ranks for a device, with engine switches from the environment.
    ///
    /// Errors: every validation code (FG1xxx); [`ErrorCode::NoPlan`] when no engine serves some node, with the reason of each.
    pub fn build(&self, device: &Device) -> Result<Built> {
        self.build_with(device, &BuildOptions::default())
    }

    /// As [`Graph::build`] with explicit options.
    pub fn build_with(&self, device: &Device, options: &BuildOptions) -> Result<Built> {
        Built::new(self.freeze()?, device, options)
    }
}

impl Built {
    /// Plans a graph that is already frozen.
    pub fn new(frozen: FrozenGraph, device: &Device, options: &BuildOptions) -> Result<Built> {
        let switches = EngineSwitches::resolve(options)?;
        let mut nodes = Vec::with_capacity(frozen.order().len());
        for &node in frozen.order() {
            let facts = analyze::analyze(&frozen, node);
            let family = rank::family(&facts);
            let (ranked, declined) = match family {
                Some(f) => rank::rank(f, &facts, &device.target, &options.modes, &switches),
                None => (Vec::new(), Vec::new()),
            };
            let (name, tag) = (frozen.nodes()[node].name.clone(), frozen.nodes()[node].op.tag());
            let plans = NodePlans { node, name, tag, facts: Arc::new(facts), family, ranked, declined };
            if plans.ranked.is_empty() && !options.allow_empty {
                return Err(no_plan(&plans, device));
            }
            nodes.push(plans);
        }
        let virtuals = virtual_layout(&frozen)?;
        let mut starts = Vec::with_capacity(nodes.len() + 1);
        let mut next = 1;
        for n in &nodes {
            starts.push(next);
            next += n.ranked.len().saturating_sub(1);
        }
        starts.push(next);
        let inner = Inner {
            frozen,
            device: device.clone(),
            switches,
            modes: options.modes.clone(),
            workspace_limit: options.workspace_limit,
            nodes,
            virtuals,
            starts,
        };
        Ok(Built { inner: Arc::new(inner) })
    }

    /// Nodes in execution order with their own ranked lists and declines.
    pub fn nodes(&self) -> &[NodePlans] {
        &self.inner.nodes
    }

    /// Declines of all nodes in execution order.
    pub fn declined(&self) -> impl Iterator<Item = &Decline> {
        self.inner.nodes.iter().flat_map(|n| &n.declined)
    }

    /// The graph as it was planned: complete and ordered.
    pub fn graph(&self) -> &FrozenGraph {
        &self.inner.frozen
    }

    /// The device that was planned for.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// The uid under which a tensor is bound. Handles are those of the graph that was built; one of a larger graph is
    /// [`ErrorCode::BadTensor`], others cannot be told apart.
    pub fn uid(&self, id: TensorId) -> Result<Uid> {
        let tensors = &self.inner.frozen.tensors;
        tensors.get(id.0 as usize).map(crate::exec::operand::uid_of).ok_or_else(|| {
            let expected = format!("a handle below {} of the graph that was built", tensors.len());
            Error::new(ErrorCode::BadTensor, format!("handle {}", id.0), expected)
        })
    }

    /// The uid of the tensor with this name; `None` when no tensor or several have it.
    pub fn uid_by_name(&self, name: &str) -> Option<Uid> {
        let mut hits = self.inner.frozen.tensors().filter(|(_, t)| t.name == name);
        match (hits.next(), hits.next()) {
            (Some((_, t)), None) => Some(crate::exec::operand::uid_of(t)),
            (None, _) | (Some(_), Some(_)) => None,
        }
    }

    /// The error of a node that has no plan, if there is one.
    pub(super) fn first_without_plan(&self) -> Option<Error> {
        self.inner.nodes.iter().find(|n| n.ranked.is_empty()).map(|n| no_plan(n, &self.inner.device))
    }
}

/// "No plan" with a reason per engine: the bare sentence is the complaint that users of such systems repeat most (field report 123).
pub(super) fn no_plan(n: &NodePlans, device: &Device) -> Error {
    let given = format!("no engine serves {} on {} ({})", n.tag, device.target.name(), super::text::summary(&n.facts));
    let expected = match n.family {
        Some(f) => format!("a graph that one engine of family {} serves; each engine's first reason follows", f.name),
        None => "an operation that some engine family serves".to_owned(),
    };
    Error::new(ErrorCode::NoPlan, given, expected).at(n.place()).details(n.declined.iter().map(ToString::to_string))
}
