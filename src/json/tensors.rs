//! Tensor objects of a file, scalars among them, and how ports refer to tensors.

use super::check::{brief, child, float, Checker, Obj};
use super::spelling;
use super::tables::{TENSOR, TENSOR_V1};
use crate::graph::{RaggedOffset, Reordering, ScalarValue, Tensor, TensorId};
use crate::{Error, ErrorCode, Result};
use serde_json::Value;
use std::collections::BTreeMap;

/// Tensors in file order, with the ways a port may refer to them.
#[derive(Default)]
pub(super) struct Tensors {
    pub list: Vec<Tensor>,
    pointers: Vec<String>,
    by_uid: BTreeMap<i64, TensorId>,
    by_key: BTreeMap<String, TensorId>,
    /// Tensor index, reference to its offset tensor, multiplier.
    ragged: Vec<(usize, Value, i64)>,
}

impl Tensors {
    pub fn add(&mut self, c: &mut Checker, key: Option<&str>, obj: &Obj<'_>) -> Result<()> {
        let id = TensorId(self.list.len() as u32);
        // Version 1.0 writes uid 0 for a tensor that has none yet.
        let unassigned = c.v1 && obj.map.get("uid_assigned") == Some(&Value::Bool(false));
        if unassigned {
            let mut without = obj.map.clone();
            without.insert("uid".into(), Value::from(1));
            c.object(&Obj { map: &without, pointer: obj.pointer.clone() }, &[TENSOR, TENSOR_V1])?;
        } else {
            c.object(obj, if c.v1 { &[TENSOR, TENSOR_V1] } else { &[TENSOR] })?;
            let uid = obj.int("uid").unwrap_or_default();
            if let Some(other) = self.by_uid.insert(uid, id) {
                let first = &self.pointers[other.0 as usize];
                return Err(Error::new(
                    ErrorCode::JsonUid,
                    format!("uid {uid} again"),
                    format!("a uid that {first} does not have"),
                )
                .at(obj.child("uid")));
            }
        }
        if let Some(key) = key {
            self.by_key.insert(key.to_string(), id);
        }
        let multiplier = obj.int("ragged_offset_multiplier").unwrap_or(1);
        let offset = obj.get("ragged_offset_uid").or_else(|| obj.get("ragged_offset_name").filter(|_| c.v1));
        match offset {
            Some(reference) => self.ragged.push((self.list.len(), reference.clone(), multiplier)),
            None => {
                if let Some(key) = ["ragged_offset_multiplier", "ragged_offset_name"].into_iter().find(|k| obj.get(k).is_some()) {
                    return Err(Error::new(
                        ErrorCode::JsonMissingKey,
                        format!("\"{key}\" alone"),
                        "\"ragged_offset_uid\" beside it",
                    )
                    .at(obj.child(key)));
                }
            }
        }
        self.pointers.push(obj.pointer.clone());
        self.list.push(Tensor {
            name: obj.text("name").unwrap_or("").into(),
            dim: obj.ints("dim"),
            stride: obj.ints("stride"),
            dtype: obj.dtype("data_type"),
            uid: if unassigned { None } else { obj.int("uid") },
            is_virtual: obj.flag("is_virtual"),
            pass_by_value: obj.flag("is_pass_by_value"),
            value: obj.get("pass_by_value").map(|v| scalar(v, obj.child("pass_by_value"))).transpose()?,
            ragged: None,
            alignment: obj.int("alignment").unwrap_or(16),
            reordering: obj.text("reordering_type").and_then(spelling::reordering).unwrap_or(Reordering::None),
        });
        Ok(())
    }

    /// Offsets may stand after the tensors that use them.
    pub fn resolve_ragged(&mut self) -> Result<()> {
        for (index, reference, multiplier) in std::mem::take(&mut self.ragged) {
            let key = if reference.is_string() { "ragged_offset_name" } else { "ragged_offset_uid" };
            let offset = self.find(&reference, || child(&self.pointers[index], key))?;
            self.list[index].ragged = Some(RaggedOffset { offset, multiplier });
        }
        Ok(())
    }

    pub fn find(&self, reference: &Value, pointer: impl Fn() -> String) -> Result<TensorId> {
        let found = match (reference.as_i64(), reference.as_str()) {
            (Some(uid), _) => self.by_uid.get(&uid),
            (None, Some(key)) => self.by_key.get(key),
            (None, None) => None,
        };
        found.copied().ok_or_else(|| {
            let given = match reference.as_str() {
                Some(key) => format!("tensor key \"{key}\""),
                None => format!("uid {reference}"),
            };
            Error::new(ErrorCode::JsonUid, given, "a tensor of \"tensors\"").at(pointer())
        })
    }
}

/// `{"index": i, "value": v}`; the index says which C++ type the value has.
fn scalar(v: &Value, pointer: String) -> Result<ScalarValue> {
    let obj = Obj::of(v, pointer)?;
    let value = obj.map.get("value").unwrap_or(&Value::Null);
    let at = obj.child("value");
    let fail = |expected: &str| Error::new(ErrorCode::JsonValue, brief(value), expected).at(&at);
    // The narrow floats travel as the bits of the single-precision float with the same value.
    let narrow = |to_bits: fn(f32) -> u16, to_f32: fn(u16) -> f32, name: &str| {
        let wide = float(value, &at)?;
        let bits = to_bits(wide);
        let back = to_f32(bits);
        if back == wide || (back.is_nan() && wide.is_nan()) {
            Ok(bits)
        } else {
            Err(fail(&format!("a value that {name} can hold")))
        }
    };
    match obj.int("index") {
        Some(0) => value.as_i64().map(ScalarValue::I64).ok_or_else(|| fail("a 64-bit integer")),
        Some(1) => {
            value.as_i64().and_then(|i| i32::try_from(i).ok()).map(ScalarValue::I32).ok_or_else(|| fail("a 32-bit integer"))
        }
        Some(2) => narrow(|x| half::f16::from_f32(x).to_bits(), |b| half::f16::from_bits(b).to_f32(), "half precision")
            .map(ScalarValue::F16),
        Some(3) => float(value, &at).map(ScalarValue::F32),
        Some(4) => value.as_f64().map(ScalarValue::F64).ok_or_else(|| fail("a number")),
        Some(5) => narrow(|x| half::bf16::from_f32(x).to_bits(), |b| half::bf16::from_bits(b).to_f32(), "bfloat16")
            .map(ScalarValue::BF16),
        Some(_) | None => Err(Error::new(
            ErrorCode::JsonValue,
            brief(obj.map.get("index").unwrap_or(&Value::Null)),
            "index 0 int64, 1 int32, 2 half, 3 float, 4 double or 5 bfloat16",
        )
        .at(obj.child("index"))),
    }
}
