//! The JSON Schema, printed from the key tables that the reader checks against.

use super::tables::{Key, Kind, CONTEXT, DEQUANTIZE, ENVELOPE, OPERATIONS, TENSOR};
use crate::DType;
use serde_json::{json, Map, Value};

/// JSON Schema (draft 2020-12) of the graph files that are written and, in version 2.0, read.
///
/// Stricter than the reader in one way: keys that the format does not define are refused, as under [`super::Strictness::Strict`].
pub fn schema() -> Value {
    let mut root =
        object_schema(ENVELOPE, "An operation graph in cudnn-frontend's JSON format 2.0, as frostgraph reads and writes it.");
    root["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    root["title"] = "frostgraph graph".into();
    let properties = &mut root["properties"];
    properties["json_version"] = json!({ "const": "2.0", "description": "Version of the format." });
    properties["context"] = json!({ "$ref": "#/$defs/context" });
    properties["nodes"] = json!({
        "description": "Operations in insertion order.",
        "items": { "oneOf": OPERATIONS.iter().chain([&DEQUANTIZE]).map(|o| json!({ "$ref": format!("#/$defs/{}", o.tag) })).collect::<Vec<_>>() },
        "type": "array",
    });
    properties["tensors"] = json!({
        "description": "Tensors; written by ascending uid.",
        "items": { "$ref": "#/$defs/tensor" },
        "type": "array",
    });
    root["$defs"] = json!({
        "context": object_schema(CONTEXT, "Graph-wide defaults."),
        "tensor": object_schema(TENSOR, "A tensor."),
    });
    for o in OPERATIONS.iter().chain([&DEQUANTIZE]) {
        root["$defs"][o.tag] = object_schema(o.keys, o.doc);
    }
    root
}

fn object_schema(keys: &[Key], doc: &str) -> Value {
    let properties: Map<String, Value> = keys.iter().map(|k| (k.name.to_string(), key_schema(k))).collect();
    let required: Vec<&str> = keys.iter().filter(|k| k.required).map(|k| k.name).collect();
    json!({
        "additionalProperties": false,
        "description": doc,
        "properties": properties,
        "required": required,
        "type": "object",
    })
}

fn key_schema(k: &Key) -> Value {
    let inner = kind_schema(k.kind);
    let mut out = if k.nullable { json!({ "anyOf": [inner, { "type": "null" }] }) } else { inner };
    out["description"] = k.doc.into();
    out
}

fn kind_schema(kind: Kind) -> Value {
    match kind {
        Kind::Int(i64::MIN) => json!({ "type": "integer" }),
        Kind::Int(min) => json!({ "minimum": min, "type": "integer" }),
        Kind::Bool => json!({ "type": "boolean" }),
        Kind::False => json!({ "const": false }),
        Kind::Text => json!({ "type": "string" }),
        Kind::HexFloat => hex_float(),
        Kind::DType => json!({ "enum": DType::ALL.iter().map(|d| d.json()).collect::<Vec<_>>() }),
        Kind::Choice(list) => json!({ "enum": list }),
        Kind::Ints => json!({ "items": { "type": "integer" }, "type": "array" }),
        Kind::Scalar => json!({
            "additionalProperties": false,
            "properties": {
                "index": { "description": "0 int64, 1 int32, 2 half, 3 float, 4 double, 5 bfloat16.", "maximum": 5, "minimum": 0, "type": "integer" },
                "value": hex_float(),
            },
            "required": ["index", "value"],
            "type": "object",
        }),
        Kind::Inputs(ports) => port_schema(ports.iter().map(|p| p.json())),
        Kind::Outputs(ports) => port_schema(ports.iter().map(|p| p.json())),
        Kind::Ports(ports) => port_schema(ports.iter().copied()),
        Kind::Nested => json!({}),
    }
}

fn hex_float() -> Value {
    json!({ "anyOf": [{ "pattern": "^[0-9A-Fa-f]{8}$", "type": "string" }, { "type": "number" }] })
}

fn port_schema(ports: impl Iterator<Item = &'static str>) -> Value {
    let uid = json!({ "anyOf": [{ "minimum": 1, "type": "integer" }, { "type": "null" }] });
    let properties: Map<String, Value> = ports.map(|p| (p.to_string(), uid.clone())).collect();
    json!({ "additionalProperties": false, "properties": properties, "type": "object" })
}
