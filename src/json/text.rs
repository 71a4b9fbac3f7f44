//! From text to one JSON value: bare JSON, or the graph line of a cudnn-frontend log.

use crate::{Error, ErrorCode, Result};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// The graph found in a text.
pub(super) struct Found {
    pub value: Value,
    /// How many graphs the text holds.
    pub graphs: usize,
}

/// Braces that turn out not to begin an object are skipped at most this often: the bound keeps hostile text linear.
const MAX_RETRIES: usize = 64;

/// Parses bare JSON; failing that, takes the first balanced object that has a `"context"` key out of the surrounding text.
pub(super) fn find(text: &str) -> Result<Found> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let bare = match parse(text) {
        Ok(value) => return Ok(Found { value, graphs: 1 }),
        Err(e) => e,
    };
    let (mut first, mut graphs, mut inner) = (None, 0, None);
    let (mut at, mut retries) = (0, 0);
    while let Some(start) = text[at..].find('{').map(|i| at + i) {
        if let Some(len) = balanced(&text.as_bytes()[start..]) {
            let object = &text[start..start + len];
            match object.contains("\"context\"").then(|| parse(object)) {
                Some(Err(e)) => {
                    // Braces of prose are no object; a quote after the brace is.
                    if object[1..].trim_start().starts_with('"') {
                        let line = 1 + text[..start].matches('\n').count();
                        inner.get_or_insert(syntax(&e).at(format!("object that begins on line {line}")));
                    }
                }
                parsed => {
                    if let Some(Ok(value)) = parsed.filter(|v| v.as_ref().is_ok_and(|v| v.get("context").is_some())) {
                        graphs += 1;
                        first.get_or_insert(value);
                    }
                    at = start + len;
                    continue;
                }
            }
        }
        // Not an object: the graph may stand inside what looked like one.
        retries += 1;
        if retries > MAX_RETRIES {
            break;
        }
        at = start + 1;
    }
    match first {
        Some(value) => Ok(Found { value, graphs }),
        // A text that begins as an object was meant as bare JSON, so its own error is the useful one.
        None if text.trim_start().starts_with('{') => Err(syntax(&bare)),
        None => Err(inner.unwrap_or_else(|| syntax(&bare))),
    }
}

/// Length of the balanced object at the start of `bytes`; `None` when it never closes.
fn balanced(bytes: &[u8]) -> Option<usize> {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for (i, &b) in bytes.iter().enumerate() {
        if in_string {
            match b {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                // JSON strings hold no raw newline: this quote was prose, not JSON.
                b'\n' => return None,
                _ => {}
            }
            continue;
        }
        match b {
            b'"' => in_string = true,
            b'{' => depth += 1,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(i + 1);
                }
            }
            _ => {}
        }
    }
    None
}

fn parse(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str::<Unique>(text).map(|u| u.0)
}

fn syntax(e: &serde_json::Error) -> Error {
    let place = format!("line {}, column {}", e.line(), e.column());
    let full = e.to_string();
    let what = full.split(" at line ").next().unwrap_or("").to_string();
    Error::new(ErrorCode::JsonSyntax, what, "one JSON object holding a cudnn-frontend graph, or a log line with one").at(place)
}

/// A JSON value whose objects hold no key twice; serde_json alone would silently keep the last one.
struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Unique, D::Error> {
        d.deserialize_any(UniqueVisitor).map(Unique)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(Unique(v)) = seq.next_element()? {
            items.push(v);
        }
        Ok(Value::Array(items))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            let Unique(v) = access.next_value()?;
            if map.contains_key(&key) {
                return Err(serde::de::Error::custom(format!("key \"{key}\" occurs twice in one object")));
            }
            map.insert(key, v);
        }
        Ok(Value::Object(map))
    }
}
