//! A cudnn-frontend log that holds the graph loads as well as the bare graph.

use super::{case, without_gid, SDPA_CASES};
use frostgraph::graph::Graph;
use frostgraph::json::{from_str, Strictness};

fn one_line(name: &str) -> String {
    serde_json::from_str::<serde_json::Value>(&case(name)).unwrap().to_string()
}

#[test]
fn a_log_line_loads() {
    for name in SDPA_CASES {
        let json = one_line(name);
        for line in [
            format!("[cudnn_frontend] INFO: {json}"),
            format!("{json} [done]\n"),
            format!("\u{feff}{json}"),
            format!(
                "2026-11-29 12:00:01 {{tid 7}} it's \"quoted {{ text\n[cudnn_frontend] {json} (took 3 us)\n{{}} more }} text"
            ),
            format!("[cudnn_frontend] {{\"plan\": 1}}\n{{\"note\": \"\\\"context\\\"\"}}\n{json}\n"),
        ] {
            let loaded = from_str(&line, Strictness::Strict).unwrap_or_else(|e| panic!("{line}\n{e}"));
            assert_eq!(without_gid(&loaded.graph.to_json().unwrap()), without_gid(&json));
        }
    }
}

#[test]
fn pretty_json_inside_a_log_loads() {
    let text = format!("dump follows\n{}\nend", case("json_sdpa_bwd.json"));
    assert_eq!(Graph::from_json(&text).unwrap(), Graph::from_json(&case("json_sdpa_bwd.json")).unwrap());
}

#[test]
fn the_first_of_several_graphs_is_taken_and_said_so() {
    let log = format!("a {}\nb {}\n", one_line("json_sdpa_fwd.json"), one_line("json_sdpa_bwd.json"));
    let loaded = from_str(&log, Strictness::Lenient).unwrap();
    assert_eq!(loaded.graph, Graph::from_json(&case("json_sdpa_fwd.json")).unwrap());
    let said: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(said, ["the text holds 2 graphs; the first one is taken"]);
    assert_eq!(from_str(&log, Strictness::Strict).unwrap_err().code.code(), "FG2004");
}

/// A graph line that was cut off is a syntax error, not "no graph found"; text without a graph says what was looked for.
#[test]
fn broken_and_missing_graph_lines() {
    let json = one_line("json_sdpa_fwd.json");
    let cut = format!("[log] {}\n", &json[..json.len() / 2]);
    assert_eq!(Graph::from_json(&cut).unwrap_err().code.code(), "FG2001");
    let broken = format!("first\n[log] {}", json.replacen("\"gid\":1", "\"gid\":one", 1));
    let e = Graph::from_json(&broken).unwrap_err();
    assert_eq!(e.at, "object that begins on line 2", "{e}");
    assert_eq!(Graph::from_json("no graph here").unwrap_err().code.code(), "FG2001");
    assert_eq!(Graph::from_json("").unwrap_err().code.code(), "FG2001");
}

/// The scan for the graph object must stay linear on text made of braces and quotes.
#[test]
fn hostile_text_is_scanned_in_linear_time() {
    for unit in ["{", "{\"", "{\"context\"", "\"{", "{}", "{\"a\":{"] {
        let text = format!("x{}", unit.repeat(200_000 / unit.len()));
        let started = std::time::Instant::now();
        assert!(Graph::from_json(&text).is_err());
        assert!(started.elapsed().as_secs() < 10, "{unit}");
    }
}
