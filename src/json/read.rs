//! From a JSON value to a graph: the document, its version, its context.

use super::check::{brief, child, Checker, Obj};
use super::dequantize::{self, Scaled};
use super::nodes::node;
use super::tables::{self, CONTEXT, ENVELOPE, OPERATIONS};
use super::tensors::Tensors;
use super::{Loaded, Strictness};
use crate::graph::{Graph, GraphOptions};
use crate::{Error, ErrorCode, Result};
use serde_json::Value;

pub(super) fn read(value: &Value, strictness: Strictness) -> Result<Loaded> {
    let doc = Obj::of(value, String::new())?;
    let v1 = version(&doc)?;
    let mut c = Checker { strictness, v1, warnings: Vec::new() };
    c.object(&doc, &[ENVELOPE])?;

    let nodes = nodes(&doc)?;
    let folded = dequantize::foldable(&nodes);
    served(&nodes, &folded)?;
    let options = options(&mut c, &doc)?;
    let mut tensors = Tensors::default();
    for (key, obj) in tensor_objects(&doc, v1)? {
        tensors.add(&mut c, key, &obj)?;
    }
    tensors.resolve_ragged()?;

    let mut graph = Graph::new(options);
    let mut scaled = Scaled::default();
    for (obj, _) in nodes.iter().zip(&folded).filter(|(_, fold)| **fold) {
        scaled.add(&mut c, &tensors, obj)?;
    }
    for (obj, _) in nodes.iter().zip(&folded).filter(|(_, fold)| !**fold) {
        let mut node = node(&mut c, &tensors, obj)?;
        scaled.fold(&mut node, obj)?;
        graph.node(node);
    }
    for tensor in tensors.list {
        graph.tensor(tensor);
    }
    scaled.drop_results(&mut graph);
    Ok(Loaded { graph, warnings: c.warnings })
}

/// Whether this is version 1.0. Checked first: the other keys mean nothing in a version that is not known.
fn version(doc: &Obj<'_>) -> Result<bool> {
    let expected = "json_version \"1.0\" or \"2.0\"";
    match doc.map.get("json_version") {
        Some(Value::String(s)) if tables::VERSIONS.contains(&s.as_str()) => Ok(s == "1.0"),
        Some(v) => Err(Error::new(ErrorCode::JsonVersion, brief(v), expected).at("/json_version")),
        None => Err(Error::new(ErrorCode::JsonVersion, "no key \"json_version\"", expected).at("the document")),
    }
}

fn nodes<'a>(doc: &Obj<'a>) -> Result<Vec<Obj<'a>>> {
    let list = array(doc, "nodes")?;
    list.iter().enumerate().map(|(i, n)| Obj::of(n, format!("/nodes/{i}"))).collect()
}

fn array<'a>(doc: &Obj<'a>, key: &str) -> Result<&'a Vec<Value>> {
    let v = doc.map.get(key).unwrap_or(&Value::Null);
    v.as_array().ok_or_else(|| Error::new(ErrorCode::JsonValue, brief(v), "an array").at(child("", key)))
}

/// Refuses the first node that is not served and lists the others.
fn served(nodes: &[Obj<'_>], folded: &[bool]) -> Result<()> {
    let mut first: Option<Error> = None;
    let mut others = Vec::new();
    for (obj, &fold) in nodes.iter().zip(folded) {
        let tag = match obj.map.get("tag") {
            Some(Value::String(tag)) => tag.as_str(),
            Some(v) => return Err(Error::new(ErrorCode::JsonValue, brief(v), "a node tag").at(obj.child("tag"))),
            None => return Err(Error::new(ErrorCode::JsonMissingKey, "no key \"tag\"", "the node's operation").at(&obj.pointer)),
        };
        if fold || OPERATIONS.iter().any(|o| o.tag == tag) {
            continue;
        }
        let name = obj.text("name").unwrap_or("");
        if first.is_some() {
            others.push(format!("{}: node '{name}' has tag {tag}", obj.child("tag")));
            continue;
        }
        let help = if tables::UNSERVED_TAGS.contains(&tag) {
            "cudnn-frontend defines this operation, but frostgraph does not serve it"
        } else {
            "No operation of cudnn-frontend has this tag"
        };
        let error = Error::new(ErrorCode::JsonTag, format!("node '{name}' has tag {tag}"), served_tags());
        first = Some(error.at(obj.child("tag")).help(help));
    }
    first.map_or(Ok(()), |e| Err(e.details(others)))
}

/// `A, B or C`.
fn served_tags() -> String {
    let tags: Vec<&str> = OPERATIONS.iter().map(|o| o.tag).collect();
    match tags.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => tags.concat(),
    }
}

fn options(c: &mut Checker, doc: &Obj<'_>) -> Result<GraphOptions> {
    let context = Obj::of(doc.map.get("context").unwrap_or(&Value::Null), "/context".into())?;
    c.object(&context, &[CONTEXT])?;
    let unset = GraphOptions::default();
    Ok(GraphOptions {
        name: context.text("name").unwrap_or("").into(),
        io: context.dtype("io_data_type").unwrap_or(unset.io),
        io_set: context.get("io_data_type").is_some(),
        intermediate: context.dtype("intermediate_data_type"),
        compute: context.dtype("compute_data_type"),
        sm_count: context.int("sm_count").unwrap_or(-1),
        dynamic_shape: context.flag("is_dynamic_shape_enabled"),
        compat: unset.compat,
        override_shape: context.flag("is_override_shape_enabled"),
        frontend_version: doc.int("cudnn_frontend_version").unwrap_or(unset.frontend_version),
        backend_version: doc.text("cudnn_backend_version").map_or(unset.backend_version, str::to_string),
    })
}

/// Tensor objects with the key that ports may use in version 1.0.
fn tensor_objects<'a>(doc: &Obj<'a>, v1: bool) -> Result<Vec<(Option<&'a str>, Obj<'a>)>> {
    if !v1 {
        let list = array(doc, "tensors")?;
        return list.iter().enumerate().map(|(i, t)| Ok((None, Obj::of(t, format!("/tensors/{i}"))?))).collect();
    }
    let map = match doc.map.get("tensors") {
        // An empty std::map that was never assigned is written as null.
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(v) => Obj::of(v, "/tensors".into())?.map,
    };
    map.iter().map(|(k, t)| Ok((Some(k.as_str()), Obj::of(t, child("/tensors", k))?))).collect()
}
