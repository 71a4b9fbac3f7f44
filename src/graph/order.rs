//! How nodes hang together: who produces what, in which order they run. The only user of petgraph.

use super::{Graph, TensorId};
use crate::{Error, ErrorCode, Result};
use petgraph::graph::{DiGraph, NodeIndex};

/// Producers and order of a graph whose handles are all in range.
pub(super) struct Wiring {
    /// Producing node of each tensor.
    pub producer: Vec<Option<u32>>,
    /// Node indices in topological order; insertion order where that is one.
    pub order: Vec<usize>,
}

/// Checks handles, single producers and provided inputs, then sorts the nodes; linear in nodes and operands.
pub(super) fn wire(graph: &Graph) -> Result<Wiring> {
    let producer = producers(graph)?;
    provided(graph, &producer)?;
    let order = sort(graph, &producer)?;
    Ok(Wiring { producer, order })
}

fn in_range(graph: &Graph, id: TensorId, place: impl Fn() -> String) -> Result<()> {
    graph.get(id).map(drop).map_err(|e| e.at(place()).help("A handle is valid only in the graph that returned it"))
}

fn producers(graph: &Graph) -> Result<Vec<Option<u32>>> {
    for t in &graph.tensors {
        if let Some(r) = t.ragged {
            in_range(graph, r.offset, || format!("ragged offset of tensor '{}'", t.name))?;
        }
    }
    let mut producer: Vec<Option<u32>> = vec![None; graph.tensors.len()];
    for (n, node) in graph.nodes.iter().enumerate() {
        for (port, &id) in &node.inputs {
            in_range(graph, id, || format!("{} {}", graph.node_label(n), port.json()))?;
        }
        for (port, &id) in &node.outputs {
            in_range(graph, id, || format!("{} {}", graph.node_label(n), port.json()))?;
            if let Some(first) = producer[id.0 as usize].replace(n as u32) {
                let given = format!(
                    "tensor '{}' is an output of {} and again of {}",
                    graph.tensors[id.0 as usize].name,
                    graph.node_label(first as usize),
                    graph.node_label(n)
                );
                return Err(Error::new(ErrorCode::ProducedTwice, given, "one producing port per tensor"));
            }
        }
    }
    Ok(producer)
}

fn provided(graph: &Graph, producer: &[Option<u32>]) -> Result<()> {
    let check = |id: TensorId, place: &dyn Fn() -> String| {
        let t = &graph.tensors[id.0 as usize];
        if t.is_virtual && producer[id.0 as usize].is_none() {
            let given = format!("virtual tensor '{}', which no node produces", t.name);
            return Err(Error::new(ErrorCode::DanglingTensor, given, "a tensor of the caller or an output of a node").at(place()));
        }
        Ok(())
    };
    for (n, node) in graph.nodes.iter().enumerate() {
        for (port, &id) in &node.inputs {
            check(id, &|| format!("{} {}", graph.node_label(n), port.json()))?;
        }
    }
    for t in &graph.tensors {
        if let Some(r) = t.ragged {
            check(r.offset, &|| format!("ragged offset of tensor '{}'", t.name))?;
        }
    }
    Ok(())
}

/// Tensors a node waits for: its inputs, and the ragged offsets of all its operands.
fn awaited<'a>(graph: &'a Graph, n: usize) -> impl Iterator<Item = TensorId> + 'a {
    let node = &graph.nodes[n];
    let offsets = node.inputs.values().chain(node.outputs.values());
    let offsets = offsets.filter_map(|id| graph.tensors[id.0 as usize].ragged.map(|r| r.offset));
    node.inputs.values().copied().chain(offsets)
}

fn sort(graph: &Graph, producer: &[Option<u32>]) -> Result<Vec<usize>> {
    let n = graph.nodes.len();
    // petgraph's sort reverses a depth-first finish order, so nodes are numbered backwards to come out in insertion order.
    let index = |node: usize| NodeIndex::<u32>::new(n - 1 - node);
    let mut edges = Vec::new();
    for node in 0..n {
        let from = awaited(graph, node).filter_map(|id| producer[id.0 as usize]);
        edges.extend(from.map(|from| (index(from as usize), index(node))));
    }
    if edges.is_empty() {
        return Ok((0..n).collect());
    }
    let mut dag = DiGraph::<(), ()>::with_capacity(n, edges.len());
    for _ in 0..n {
        dag.add_node(());
    }
    dag.extend_with_edges(edges);
    match petgraph::algo::toposort(&dag, None) {
        Ok(order) => Ok(order.into_iter().map(|i| n - 1 - i.index()).collect()),
        Err(cycle) => Err(cycle_error(graph, &dag, cycle.node_id())),
    }
}

fn cycle_error(graph: &Graph, dag: &DiGraph<(), ()>, member: NodeIndex) -> Error {
    const SHOWN: usize = 8;
    let n = graph.nodes.len();
    let components = petgraph::algo::kosaraju_scc(dag);
    let mut nodes: Vec<usize> = components
        .into_iter()
        .find(|c| c.contains(&member))
        .unwrap_or_else(|| vec![member])
        .into_iter()
        .map(|i| n - 1 - i.index())
        .collect();
    nodes.sort_unstable();
    let mut names: Vec<String> = nodes.iter().take(SHOWN).map(|&i| graph.node_label(i)).collect();
    if nodes.len() > SHOWN {
        names.push(format!("{} more", nodes.len() - SHOWN));
    }
    let given = format!("{} waiting for {} own output", names.join(", "), if nodes.len() == 1 { "its" } else { "their" });
    Error::new(ErrorCode::Cycle, given, "nodes that can be put in an order")
}

impl Graph {
    /// How messages call a node: its name, or its index where it has none.
    pub(super) fn node_label(&self, n: usize) -> String {
        match self.nodes[n].name.as_str() {
            "" => format!("node {n}"),
            name => format!("node '{name}'"),
        }
    }
}
