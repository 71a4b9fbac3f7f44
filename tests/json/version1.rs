//! Version 1.0 (T1, facts §1.1): tensors are an object keyed by tensor, ports name those keys, names are always written, no `gid`.

use super::{case, without_gid, SDPA_CASES};
use frostgraph::graph::Graph;
use frostgraph::json::{from_str, Strictness};
use serde_json::{Map, Value};

/// The 1.0 form of a 2.0 sample. `by_uid` leaves ports as uids, which is read as well.
fn downgrade(text: &str, by_uid: bool) -> String {
    let mut v = without_gid(text);
    v["json_version"] = "1.0".into();
    v["context"]["name"] = "".into();
    let mut keys = Map::new();
    let mut key_of = std::collections::BTreeMap::new();
    for mut t in v["tensors"].take().as_array().unwrap().clone() {
        let key = t["name"].as_str().unwrap().to_string();
        key_of.insert(t["uid"].as_i64().unwrap(), key.clone());
        t["uid_assigned"] = true.into();
        keys.insert(key, t);
    }
    v["tensors"] = Value::Object(keys);
    if !by_uid {
        for side in ["inputs", "outputs"] {
            for uid in v["nodes"][0][side].as_object_mut().unwrap().values_mut() {
                *uid = key_of[&uid.as_i64().unwrap()].clone().into();
            }
        }
    }
    v.to_string()
}

#[test]
fn version_1_reads_as_version_2_does() {
    for name in SDPA_CASES {
        let text = case(name);
        for by_uid in [false, true] {
            let loaded = from_str(&downgrade(&text, by_uid), Strictness::Strict).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(without_gid(&loaded.graph.to_json().unwrap()), without_gid(&text), "{name}");
        }
    }
}

#[test]
fn unassigned_uids_are_given_at_writing() {
    let mut v: Value = serde_json::from_str(&downgrade(&case("json_sdpa_bwd.json"), false)).unwrap();
    for t in v["tensors"].as_object_mut().unwrap().values_mut() {
        t["uid"] = 0.into();
        t["uid_assigned"] = false.into();
    }
    let g = Graph::from_json(&v.to_string()).unwrap();
    assert!(g.tensors().all(|(_, t)| t.uid.is_none()));
    let written = without_gid(&g.to_json().unwrap());
    let uids: Vec<i64> = written["tensors"].as_array().unwrap().iter().map(|t| t["uid"].as_i64().unwrap()).collect();
    assert_eq!(uids, (1..=9).collect::<Vec<_>>());
    let name_of = |uid: &Value| written["tensors"][uid.as_i64().unwrap() as usize - 1]["name"].as_str().unwrap().to_string();
    assert_eq!(name_of(&written["nodes"][0]["inputs"]["dO"]), "dO");
    assert_eq!(name_of(&written["nodes"][0]["outputs"]["dV"]), "sdpa_bwd::dV");
}

#[test]
fn version_2_ports_are_uids_only() {
    let text = case("json_sdpa_bwd.json").replace("\"Q\": 1", "\"Q\": \"q\"");
    let e = Graph::from_json(&text).unwrap_err();
    assert_eq!(e.to_string(), "FG2004 at /nodes/0/inputs/Q: string \"q\"; expected a uid of at least 1");
}

#[test]
fn a_key_that_names_no_tensor_is_an_error() {
    let text = downgrade(&case("json_sdpa_bwd.json"), false).replace("\"Q\":\"q\"", "\"Q\":\"qq\"");
    let e = Graph::from_json(&text).unwrap_err();
    assert_eq!(e.to_string(), "FG2006 at /nodes/0/inputs/Q: tensor key \"qq\"; expected a tensor of \"tensors\"");
}
