//! The committed JSON Schema is the one the key tables give, and it agrees with the reader.

use super::{case, edited, SDPA_CASES};
use frostgraph::json::{from_str, schema, Strictness};
use serde_json::{json, Value};

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/schema/frostgraph-graph.schema.json");

/// Rewrites a stale file and fails once; with CI set it only fails.
#[test]
fn committed_schema_is_current() {
    let fresh = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
    let committed = std::fs::read_to_string(PATH).unwrap_or_default();
    if committed == fresh {
        return;
    }
    if std::env::var_os("CI").is_some() {
        panic!("schema/frostgraph-graph.schema.json is stale: run `cargo test --test json schema` and commit it");
    }
    std::fs::write(PATH, fresh).unwrap();
    panic!("schema/frostgraph-graph.schema.json was stale and has been rewritten: run again and commit it");
}

/// The part of JSON Schema that our schema uses; anything else is a fault of this test.
fn valid(root: &Value, s: &Value, v: &Value) -> bool {
    s.as_object().unwrap().iter().all(|(keyword, arg)| match keyword.as_str() {
        "$schema" | "$defs" | "title" | "description" => true,
        "$ref" => valid(root, root.pointer(&arg.as_str().unwrap()[1..]).expect("a definition"), v),
        "type" => match arg.as_str().unwrap() {
            "object" => v.is_object(),
            "array" => v.is_array(),
            "string" => v.is_string(),
            "boolean" => v.is_boolean(),
            "integer" => v.is_i64() || v.is_u64(),
            "number" => v.is_number(),
            "null" => v.is_null(),
            other => panic!("type {other}"),
        },
        "enum" => arg.as_array().unwrap().contains(v),
        "const" => arg == v,
        "minimum" => v.as_i64().is_none_or(|i| i >= arg.as_i64().unwrap()),
        "maximum" => v.as_i64().is_none_or(|i| i <= arg.as_i64().unwrap()),
        "pattern" => {
            assert_eq!(arg, "^[0-9A-Fa-f]{8}$");
            v.as_str().is_none_or(|t| t.len() == 8 && t.bytes().all(|b| b.is_ascii_hexdigit()))
        }
        "items" => v.as_array().is_none_or(|a| a.iter().all(|i| valid(root, arg, i))),
        "anyOf" => arg.as_array().unwrap().iter().any(|s| valid(root, s, v)),
        "oneOf" => arg.as_array().unwrap().iter().filter(|s| valid(root, s, v)).count() == 1,
        "required" => v.as_object().is_none_or(|o| arg.as_array().unwrap().iter().all(|k| o.contains_key(k.as_str().unwrap()))),
        "properties" => v.as_object().is_none_or(|o| o.iter().all(|(k, v)| arg.get(k).is_none_or(|s| valid(root, s, v)))),
        "additionalProperties" => {
            assert_eq!(arg, false);
            v.as_object().is_none_or(|o| o.keys().all(|k| s["properties"].get(k).is_some()))
        }
        other => panic!("keyword {other}"),
    })
}

fn schema_takes(text: &str) -> bool {
    let root = schema();
    valid(&root, &root, &serde_json::from_str(text).unwrap())
}

#[test]
fn schema_takes_the_served_samples_only() {
    for f in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/graphs/cudnn")).unwrap() {
        let name = f.unwrap().file_name().into_string().unwrap();
        let served = SDPA_CASES.contains(&name.as_str()) || name == "json_moe.json";
        assert_eq!(schema_takes(&case(&name)), served, "{name}");
    }
}

/// One value after another is replaced: the schema takes the result exactly when the strict reader does, uids aside, which a schema
/// cannot follow, and values whose range depends on another value.
#[test]
fn schema_and_reader_agree_on_every_value() {
    let values = [
        Value::Null,
        json!(true),
        json!(-1),
        json!(3),
        json!(0.5),
        json!("FLOAT"),
        json!("3E000000"),
        json!([1, 2]),
        json!({"index": 3, "value": "3E000000"}),
        json!({}),
        json!([null]),
    ];
    for name in ["json_sdpa_fwd_thd.json", "json_sdpa_bwd.json", "json_moe.json"] {
        let base: Value = serde_json::from_str(&case(name)).unwrap();
        let mut pointers = Vec::new();
        for place in ["", "/context", "/nodes/0", "/tensors/0", "/nodes/0/inputs"] {
            pointers.extend(base.pointer(place).unwrap().as_object().unwrap().keys().map(|k| format!("{place}/{k}")));
        }
        let mut checked = 0;
        for pointer in pointers {
            for value in &values {
                let text = edited(name, |v| *v.pointer_mut(&pointer).unwrap() = value.clone());
                let read = from_str(&text, Strictness::Strict);
                if matches!(&read, Err(e) if e.code.code() == "FG2006") {
                    continue;
                }
                checked += 1;
                assert_eq!(schema_takes(&text), read.is_ok(), "{name} {pointer} = {value}: {read:?}");
            }
        }
        assert!(checked > 300, "{checked}");
    }
}
