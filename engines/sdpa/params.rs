//! Kernel parameter lists: a value and its name, pushed together so that they cannot part.

use crate::{Arg, Base, DType, Port, TensorMapSpec};

/// A parameter list under construction.
#[derive(Debug, Default)]
pub struct Params {
    args: Vec<Arg>,
    names: Vec<&'static str>,
}

impl Params {
    /// Appends one parameter.
    pub fn push(&mut self, name: &'static str, arg: Arg) {
        self.args.push(arg);
        self.names.push(name);
    }

    /// Appends a 64-bit integer.
    pub fn i64(&mut self, name: &'static str, value: i64) {
        self.push(name, Arg::I64(value));
    }

    /// Appends a 32-bit integer.
    pub fn i32(&mut self, name: &'static str, value: i32) {
        self.push(name, Arg::I32(value));
    }

    /// Appends 32-bit extents.
    pub fn sizes(&mut self, list: &[(&'static str, i64)]) {
        for &(name, value) in list {
            self.i32(name, narrow(value));
        }
    }

    /// Appends batch, head and sequence strides of a port; zeros when it is absent.
    pub fn strides(&mut self, names: [&'static str; 3], port: &Option<Port>) {
        let s = port.as_ref().map_or([0; 4], |p| p.stride);
        for (name, axis) in names.into_iter().zip(0..3) {
            self.i64(name, s[axis]);
        }
    }

    /// Arguments and names.
    pub fn done(self) -> (Vec<Arg>, Vec<&'static str>) {
        (self.args, self.names)
    }

    /// A tensor map with every extent known; strides in bytes of dimensions 1 and up.
    pub fn map(base: Base, dtype: DType, dim: &[i64], stride_bytes: &[i64], tile: &[i64], swizzle: i64) -> Arg {
        Arg::Map(TensorMapSpec {
            base,
            dtype,
            dim: dim.iter().map(|&d| Some(d as u64)).collect(),
            stride_bytes: stride_bytes.iter().map(|&s| s as u64).collect(),
            tile: tile.iter().map(|&t| t as u32).collect(),
            swizzle: swizzle as u32,
        })
    }
}

/// Pointer to an operand, null when the node lacks it.
pub fn ptr(port: &Option<Port>) -> Arg {
    port.as_ref().map_or(Arg::Null, |p| Arg::Ptr(Base::Tensor(p.uid)))
}

/// 32 bits, saturating: extents were checked to fit, and a bound beyond them masks nothing.
pub fn narrow(value: i64) -> i32 {
    value.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32
}

/// Map of a four-dimensional io operand: `(d, sequence, head, batch)` with boxes of `chunk` columns by `rows` rows.
///
/// Extents are the real ones, so that reads past them are zero-filled by hardware. A packed operand has one batch and as many tokens as
/// the bound buffer holds. The stride of an extent of 1 is never used to address, but has to be legal: the row's bytes are.
pub fn tile_map(port: &Option<Port>, thd: bool, chunk: i64, rows: i64, swizzle: i64) -> Arg {
    let Some(p) = port else { return Arg::NoMap };
    let [b, h, s, d] = p.dim;
    let item = p.dtype.bytes().unwrap_or(2);
    let bytes = |axis: usize, extent: i64| if extent == 1 { d as u64 * item } else { p.stride[axis] as u64 * item };
    Arg::Map(TensorMapSpec {
        base: Base::Tensor(p.uid),
        dtype: p.dtype,
        dim: vec![Some(d as u64), if thd { None } else { Some(s as u64) }, Some(h as u64), Some(if thd { 1 } else { b as u64 })],
        stride_bytes: vec![
            if thd { p.stride[2] as u64 * item } else { bytes(2, s) },
            bytes(1, h),
            if thd { d as u64 * item } else { bytes(0, b) },
        ],
        tile: vec![chunk as u32, rows as u32, 1, 1],
        swizzle: swizzle as u32,
    })
}
