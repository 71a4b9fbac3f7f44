//! `BLOCK_SCALE_DEQUANTIZE` beside `MOE_GROUPED_MATMUL`: folded into the product on reading, unfolded on writing.

use super::check::{child, Checker, Obj};

use super::tables::DEQUANTIZE;
use super::tensors::Tensors;
use super::write::{dtype, tensor_value};
use crate::graph::{Dequantized, Graph, InPort, Node, Op, Tensor, TensorId};
use crate::{Error, ErrorCode, Result};
use serde_json::{json, Value};
use std::collections::{BTreeMap, BTreeSet};

/// The operands of a product that may come from a dequantisation, each with the port of its scales.
const SIDES: [(InPort, InPort); 2] = [(InPort::Token, InPort::Sfa), (InPort::Weight, InPort::Sfb)];

fn reference<'a>(obj: &Obj<'a>, key: &str, port: &str) -> Option<&'a Value> {
    obj.map.get(key)?.as_object()?.get(port).filter(|v| !v.is_null())
}

/// For every node whether it is a dequantisation whose result one or more products read as token or weights, and nobody else reads.
pub(super) fn foldable(nodes: &[Obj<'_>]) -> Vec<bool> {
    let is = |obj: &Obj<'_>, tag: &str| obj.map.get("tag").and_then(Value::as_str) == Some(tag);
    // Most files have none.
    if !nodes.iter().any(|n| is(n, DEQUANTIZE.tag)) {
        return vec![false; nodes.len()];
    }
    // By the text of the reference: a uid, or in version 1.0 a key.
    let (mut wanted, mut others) = (BTreeMap::new(), BTreeMap::new());
    for obj in nodes {
        let inputs = obj.map.get("inputs").and_then(Value::as_object);
        for (port, value) in inputs.into_iter().flatten().filter(|(_, v)| !v.is_null()) {
            let fits = is(obj, "MOE_GROUPED_MATMUL") && SIDES.iter().any(|s| s.0.json() == port);
            *if fits { &mut wanted } else { &mut others }.entry(value.to_string()).or_insert(0) += 1;
        }
    }
    let folds = |obj: &Obj<'_>| {
        let y = reference(obj, "outputs", "Y").map(Value::to_string);
        is(obj, DEQUANTIZE.tag) && y.is_some_and(|y| wanted.contains_key(&y) && !others.contains_key(&y))
    };
    nodes.iter().map(folds).collect()
}

/// A dequantisation as read: operands, blocks, place in the file, and what is only kept.
struct Found {
    x: TensorId,
    scale: TensorId,
    block: Vec<i64>,
    pointer: String,
    kept: Dequantized,
}

/// Dequantisations by their result.
#[derive(Default)]
pub(super) struct Scaled {
    by_result: BTreeMap<TensorId, Found>,
}

impl Scaled {
    /// Reads one dequantisation.
    pub fn add(&mut self, c: &mut Checker, tensors: &Tensors, obj: &Obj<'_>) -> Result<()> {
        c.object(obj, &[DEQUANTIZE.keys])?;
        if obj.flag("is_negative_scale") {
            let e = Error::new(ErrorCode::JsonValue, "true", "false: scales are not negated");
            return Err(e.at(obj.child("is_negative_scale")));
        }
        let find = |key: &str, port: &str| {
            let at = child(&obj.child(key), port);
            let missing =
                || Error::new(ErrorCode::JsonMissingKey, format!("no port \"{port}\""), "X, scale and Y").at(obj.child(key));
            tensors.find(reference(obj, key, port).ok_or_else(missing)?, || at.clone())
        };
        let (x, scale, y) = (find("inputs", "X")?, find("inputs", "scale")?, find("outputs", "Y")?);
        let (from, result) = (&tensors.list[x.0 as usize], &tensors.list[y.0 as usize]);
        let at = || child(&obj.child("outputs"), "Y");
        if !result.is_virtual {
            let given = format!("tensor '{}' visible to the caller", result.name);
            return Err(Error::new(ErrorCode::JsonValue, given, "a virtual tensor: dequantised values are never stored").at(at()));
        }
        if !result.dim.is_empty() && result.dim != from.dim {
            let given = format!("extents {:?}", result.dim);
            return Err(Error::new(ErrorCode::JsonValue, given, format!("those of X, {:?}", from.dim)).at(at()));
        }
        if result.ragged.is_some() {
            let given = format!("tensor '{}' with ragged offsets", result.name);
            return Err(Error::new(ErrorCode::JsonValue, given, "a dense tensor").at(at()));
        }
        let kept = Dequantized {
            name: obj.text("name").unwrap_or("").into(),
            compute_dtype: obj.dtype("compute_data_type"),
            result: result.clone(),
        };
        let one = Found { x, scale, block: obj.ints("block_size"), pointer: obj.pointer.clone(), kept };
        match self.by_result.insert(y, one) {
            None => Ok(()),
            Some(other) => {
                let given = format!("a result that {} has too", other.pointer);
                Err(Error::new(ErrorCode::JsonUid, given, "a result of its own").at(at()))
            }
        }
    }

    /// Gives a product the operands behind its dequantised ones.
    pub fn fold(&self, node: &mut Node, obj: &Obj<'_>) -> Result<()> {
        let Op::MoeGroupedMatmul(attrs) = &mut node.op else { return Ok(()) };
        for (port, scale_port) in SIDES {
            let Some(d) = node.inputs.get(&port).and_then(|id| self.by_result.get(id)) else { continue };
            // One value above 1 along K: the last extent of a token, the one before it of weights.
            let (along, rest) = match (port, d.block.as_slice()) {
                (InPort::Token, [rest @ .., k]) => (*k, rest.to_vec()),
                (_, [rest @ .., k, n]) => (*k, [rest, &[*n]].concat()),
                (_, _) => (0, Vec::new()),
            };
            if along < 1 || !(1..=2).contains(&rest.len()) || rest.iter().any(|b| *b != 1) {
                let expected = if port == InPort::Token { "[1, 16] or [1, 32]" } else { "[16, 1] or [32, 1]" };
                let e = Error::new(ErrorCode::JsonValue, format!("{:?} of {}", d.block, port.json()), expected);
                return Err(e.at(format!("{}/block_size", d.pointer)));
            }
            if attrs.sf_vec_size != 0 && attrs.sf_vec_size != along {
                let given = format!("blocks of {} and of {along}", attrs.sf_vec_size);
                return Err(Error::new(ErrorCode::JsonValue, given, "one block size of token and weights").at(&obj.pointer));
            }
            attrs.sf_vec_size = along;
            attrs.dequantized.insert(port, d.kept.clone());
            node.inputs.insert(port, d.x);
            node.inputs.insert(scale_port, d.scale);
        }
        Ok(())
    }

    /// Takes the dequantised tensors out of the graph: nothing reads or writes them any more.
    pub fn drop_results(&self, graph: &mut Graph) {
        if self.by_result.is_empty() {
            return;
        }
        // Ascending, as the map's keys are.
        let gone: Vec<u32> = self.by_result.keys().map(|id| id.0).collect();
        let moved = |id: TensorId| TensorId(id.0 - gone.partition_point(|g| *g < id.0) as u32);
        let tensors = std::mem::take(&mut graph.tensors).into_iter().zip(0u32..);
        graph.tensors = tensors.filter(|(_, i)| gone.binary_search(i).is_err()).map(|(t, _)| t).collect();
        for t in &mut graph.tensors {
            if let Some(r) = &mut t.ragged {
                r.offset = moved(r.offset);
            }
        }
        for node in &mut graph.nodes {
            node.inputs.values_mut().for_each(|id| *id = moved(*id));
            node.outputs.values_mut().for_each(|id| *id = moved(*id));
        }
    }
}

/// A written tensor under its uid, and the dequantisation that makes it.
type Written = ((i64, Value), Value);

/// Gives products their dequantisations back. One that several products share, as read from a file, is written once.
pub(super) struct Unfold<'g> {
    graph: &'g Graph,
    uids: &'g [i64],
    taken: BTreeSet<i64>,
    /// First uid that neither a tensor nor a kept result has.
    free: i64,
    /// By uid of their result.
    made: BTreeMap<i64, Value>,
}

impl<'g> Unfold<'g> {
    pub fn new(graph: &'g Graph, uids: &'g [i64]) -> Unfold<'g> {
        let kept = graph.nodes().iter().filter_map(|n| match &n.op {
            Op::MoeGroupedMatmul(a) => Some(a.dequantized.values().filter_map(|d| d.result.uid)),
            Op::Sdpa(_) | Op::SdpaBackward(_) | Op::Nvfp4Qat(_) | Op::Nvfp4QatBackward(_) | Op::GroupedGemmDsrelu(_) => None,
        });
        let highest = kept.flatten().chain(uids.iter().copied()).max().unwrap_or(0);
        let taken = uids.iter().copied().collect();
        Unfold { graph, uids, taken, free: highest.saturating_add(1), made: BTreeMap::new() }
    }

    /// The dequantisations of a product's operands, as nodes and tensors of the file; `value`, the product's node, then reads their results.
    pub fn operands(&mut self, node: &Node, value: &mut Value) -> Result<Vec<Written>> {
        let Op::MoeGroupedMatmul(attrs) = &node.op else { return Ok(Vec::new()) };
        let mut out = Vec::new();
        for (port, scale_port) in SIDES {
            if let Some(inputs) = value["inputs"].as_object_mut() {
                inputs.remove(scale_port.json());
            }
            let uid = |p: InPort| node.inputs.get(&p).and_then(|id| self.uids.get(id.0 as usize)).copied();
            let Some(scale) = uid(scale_port) else { continue };
            let Some(x) = uid(port) else {
                let given = format!("scales without {}", port.json());
                return Err(
                    Error::new(ErrorCode::BadAttribute, given, "the operand that they scale").at(format!("node '{}'", node.name))
                );
            };
            let kept = attrs.dequantized.get(&port).cloned().unwrap_or_else(|| {
                let name = format!("{}::dequantize_{}", node.name, port.json().to_lowercase());
                let mut result = Tensor::new(format!("{name}::Y"), Vec::new());
                result.is_virtual = true;
                Dequantized { name, compute_dtype: None, result }
            });
            let block = if port == InPort::Token { [1, attrs.sf_vec_size] } else { [attrs.sf_vec_size, 1] };
            let dequantize = |y: i64| {
                json!({
                    "block_size": block, "compute_data_type": dtype(kept.compute_dtype), "inputs": { "X": x, "scale": scale },
                    "is_negative_scale": false, "name": kept.name, "outputs": { "Y": y }, "tag": DEQUANTIZE.tag,
                })
            };
            let wanted = kept.result.uid.filter(|y| !self.taken.contains(y));
            let shared = wanted.filter(|y| self.made.get(y) == Some(&dequantize(*y)));
            let y = shared.or(wanted.filter(|y| !self.made.contains_key(y))).unwrap_or(self.free);
            value["inputs"][port.json()] = y.into();
            if shared.is_some() {
                continue;
            }
            self.free = self.free.max(y.saturating_add(1));
            self.made.insert(y, dequantize(y));
            out.push(((y, tensor_value(self.graph, &kept.result, y, self.uids)?), dequantize(y)));
        }
        Ok(out)
    }
}
