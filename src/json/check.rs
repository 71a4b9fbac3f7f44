//! Checks objects against the key tables: unknown keys, missing keys, wrong values, each with its JSON pointer.

use super::tables::{Key, Kind};
use super::{Strictness, Warning};
use crate::{DType, Error, ErrorCode, Result};
use serde_json::{Map, Value};

/// One object of the file with its place.
#[derive(Clone)]
pub(super) struct Obj<'a> {
    pub map: &'a Map<String, Value>,
    pub pointer: String,
}

/// State of one reading.
pub(super) struct Checker {
    pub strictness: Strictness,
    /// Version 1.0: ports name tensors by key, tensors are an object.
    pub v1: bool,
    pub warnings: Vec<Warning>,
}

impl Checker {
    /// Checks every key of an object; afterwards the getters of [`Obj`] find what the table promises.
    pub fn object(&mut self, obj: &Obj<'_>, tables: &[&[Key]]) -> Result<()> {
        let keys = || tables.iter().flat_map(|t| t.iter());
        for (name, value) in obj.map {
            let pointer = child(&obj.pointer, name);
            match keys().find(|k| k.name == name) {
                Some(k) if k.nullable && value.is_null() => {}
                Some(k) => self.value(value, &pointer, k.kind)?,
                None if self.strictness == Strictness::Strict => {
                    return Err(Error::new(
                        ErrorCode::JsonUnknownKey,
                        format!("unknown key \"{name}\""),
                        one_of(keys().map(|k| k.name)),
                    )
                    .at(pointer)
                    .help("Remove the key, or read without --strict to ignore it"));
                }
                None => self.warnings.push(Warning { pointer, message: format!("unknown key \"{name}\" is ignored") }),
            }
        }
        match keys().find(|k| k.required && !obj.map.contains_key(k.name)) {
            None => Ok(()),
            Some(k) => Err(Error::new(
                ErrorCode::JsonMissingKey,
                format!("no key \"{}\"", k.name),
                format!("one ({})", k.doc.trim_end_matches('.')),
            )
            .at(place(&obj.pointer))),
        }
    }

    fn value(&self, v: &Value, pointer: &str, kind: Kind) -> Result<()> {
        let fail = |expected: String| Err(Error::new(ErrorCode::JsonValue, brief(v), expected).at(pointer));
        match kind {
            Kind::Int(min) if v.as_i64().is_some_and(|i| i >= min) => Ok(()),
            // `gid` counts in unsigned 64 bits.
            Kind::Int(min) if min >= 0 && v.is_u64() && pointer == "/gid" => Ok(()),
            Kind::Int(i64::MIN) => fail("a 64-bit integer".into()),
            Kind::Int(min) => fail(format!("a 64-bit integer of at least {min}")),
            Kind::Bool if v.is_boolean() => Ok(()),
            Kind::Bool => fail("true or false".into()),
            Kind::False if v == &Value::Bool(false) => Ok(()),
            Kind::False => fail("false; quantised attention has its own tags".into()),
            Kind::Text if v.is_string() => Ok(()),
            Kind::Text => fail("a string".into()),
            Kind::HexFloat => float(v, pointer).map(|_| ()),
            Kind::DType if v.as_str().is_some_and(|s| DType::from_json(s).is_some()) => Ok(()),
            Kind::DType => fail(format!("an element type: {}", one_of(DType::ALL.iter().map(|d| d.json())))),
            Kind::Choice(list) if v.as_str().is_some_and(|s| list.contains(&s)) => Ok(()),
            Kind::Choice(list) => fail(one_of(list.iter().copied())),
            Kind::Ints if v.as_array().is_some_and(|a| a.iter().all(|i| i.as_i64().is_some())) => Ok(()),
            Kind::Ints => fail("an array of 64-bit integers".into()),
            Kind::Scalar if v.is_object() => Ok(()),
            Kind::Scalar => fail("null or {\"index\": i, \"value\": v}".into()),
            Kind::Inputs(ports) => self.ports(v, pointer, || ports.iter().map(|p| p.json())),
            Kind::Outputs(ports) => self.ports(v, pointer, || ports.iter().map(|p| p.json())),
            Kind::Ports(ports) => self.ports(v, pointer, || ports.iter().copied()),
            Kind::Nested => Ok(()),
        }
    }

    fn ports<I: Iterator<Item = &'static str>>(&self, v: &Value, pointer: &str, known: impl Fn() -> I) -> Result<()> {
        let Some(map) = v.as_object() else {
            return Err(Error::new(ErrorCode::JsonValue, brief(v), "an object of port to uid").at(pointer));
        };
        for (port, uid) in map {
            let at = child(pointer, port);
            // An operand that is left out changes the result, so unlike attributes it is never ignored.
            if !known().any(|k| k == port) {
                return Err(Error::new(ErrorCode::JsonValue, format!("unknown port \"{port}\""), one_of(known())).at(at));
            }
            let good = uid.is_null() || uid.as_i64().is_some_and(|i| i >= 1) || (self.v1 && uid.is_string());
            if !good {
                let expected = if self.v1 { "a tensor key or uid" } else { "a uid of at least 1" };
                return Err(Error::new(ErrorCode::JsonValue, brief(uid), expected).at(at));
            }
        }
        Ok(())
    }
}

impl<'a> Obj<'a> {
    /// The value as an object.
    pub fn of(v: &'a Value, pointer: String) -> Result<Obj<'a>> {
        match v.as_object() {
            Some(map) => Ok(Obj { map, pointer }),
            None => Err(Error::new(ErrorCode::JsonValue, brief(v), "an object").at(place(&pointer))),
        }
    }

    /// Pointer of a key of this object.
    pub fn child(&self, key: &str) -> String {
        child(&self.pointer, key)
    }

    /// The value of a key that is present and not null.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    pub fn int(&self, key: &str) -> Option<i64> {
        self.get(key)?.as_i64()
    }

    pub fn flag(&self, key: &str) -> bool {
        self.get(key).and_then(Value::as_bool).unwrap_or(false)
    }

    pub fn text(&self, key: &str) -> Option<&'a str> {
        self.get(key)?.as_str()
    }

    pub fn dtype(&self, key: &str) -> Option<DType> {
        DType::from_json(self.text(key)?)
    }

    pub fn ints(&self, key: &str) -> Vec<i64> {
        self.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_i64).collect()
    }

    /// A scale or a probability: NaN and infinities are refused, since every engine would have to.
    pub fn finite(&self, key: &str) -> Result<Option<f32>> {
        let Some(v) = self.get(key) else { return Ok(None) };
        let value = float(v, &self.child(key))?;
        if value.is_finite() {
            return Ok(Some(value));
        }
        Err(Error::new(ErrorCode::BadAttribute, format!("{} ({value})", brief(v)), "a finite number").at(self.child(key)))
    }
}

/// A C++ float: eight hexadecimal digits of its bits, or a plain number within single precision's range.
pub(super) fn float(v: &Value, pointer: &str) -> Result<f32> {
    if let Some(s) = v.as_str() {
        if s.len() == 8 && s.bytes().all(|b| b.is_ascii_hexdigit()) {
            if let Ok(bits) = u32::from_str_radix(s, 16) {
                return Ok(f32::from_bits(bits));
            }
        }
    } else if let Some(x) = v.as_f64() {
        let single = x as f32;
        if single.is_finite() {
            return Ok(single);
        }
    }
    Err(Error::new(
        ErrorCode::JsonValue,
        brief(v),
        "eight hexadecimal digits of a float's bits, such as \"3E000000\" for 0.125, or a number",
    )
    .at(pointer))
}

/// Appends a key or an index to a JSON pointer.
pub(super) fn child(pointer: &str, key: &str) -> String {
    format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// A pointer for people: the document itself has an empty one.
pub(super) fn place(pointer: &str) -> String {
    if pointer.is_empty() {
        "the document".into()
    } else {
        pointer.into()
    }
}

/// A value short enough for one line.
pub(super) fn brief(v: &Value) -> String {
    const MAX: usize = 60;
    let (kind, s) = match v {
        Value::Array(a) => ("array of", format!("{} items", a.len())),
        Value::Object(o) => ("object of", format!("{} keys", o.len())),
        Value::String(_) => ("string", v.to_string()),
        Value::Number(_) => ("number", v.to_string()),
        Value::Bool(_) | Value::Null => ("", v.to_string()),
    };
    let short: String = s.chars().take(MAX).collect();
    let dots = if short.len() < s.len() { "…" } else { "" };
    format!("{kind} {short}{dots}").trim_start().to_string()
}

fn one_of(names: impl Iterator<Item = &'static str>) -> String {
    let list: Vec<&str> = names.collect();
    match list.as_slice() {
        [one] => (*one).to_string(),
        _ => format!("one of {}", list.join(" ")),
    }
}
