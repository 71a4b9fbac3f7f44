//! A tensor handed to a standalone function: geometry and memory together.

use crate::exec::{Bindings, DeviceBuffer};
use crate::DType;
use bytemuck::Pod;
use frostgraph_engines::Uid;

/// Element types that a slice can be handed over in.
pub trait Element: Pod {
    /// The graph's name for it.
    const DTYPE: DType;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
}
impl Element for half::f16 {
    const DTYPE: DType = DType::F16;
}
impl Element for half::bf16 {
    const DTYPE: DType = DType::BF16;
}
impl Element for i32 {
    const DTYPE: DType = DType::I32;
}
impl Element for i64 {
    const DTYPE: DType = DType::I64;
}

#[derive(Debug, Default)]
enum Memory<'a> {
    /// Geometry only: enough for asking about workspace.
    #[default]
    None,
    Read(&'a [u8]),
    Write(&'a mut [u8]),
    Device(DeviceBuffer),
}

/// A rank-4 tensor: element type, extents (B, H, S, D), strides in elements, memory. The default is absent.
#[derive(Debug, Default)]
pub struct Operand<'a> {
    pub(super) shape: Option<Shape>,
    memory: Memory<'a>,
}

/// The part of an operand that decides about the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub dtype: DType,
    pub dim: [i64; 4],
    pub stride: [i64; 4],
}

impl Shape {
    /// The first extents with their strides, of an operand whose others must be 1; else all extents as text.
    pub fn leading(&self, rank: usize) -> Result<(Vec<i64>, Vec<i64>), String> {
        match self.dim[rank..].iter().all(|d| *d == 1) {
            true => Ok((self.dim[..rank].to_vec(), self.stride[..rank].to_vec())),
            false => Err(format!("extents {:?}", self.dim)),
        }
    }
}

fn row_major(dim: [i64; 4]) -> [i64; 4] {
    // Wrapping is harmless: extents whose product overflows are refused when the graph is frozen.
    let sd = dim[2].wrapping_mul(dim[3]);
    [dim[1].wrapping_mul(sd), sd, dim[3], 1]
}

impl<'a> Operand<'a> {
    fn new(dtype: DType, dim: [i64; 4], memory: Memory<'a>) -> Operand<'a> {
        Operand { shape: Some(Shape { dtype, dim, stride: row_major(dim) }), memory }
    }

    /// Geometry without memory.
    pub fn shape(dtype: DType, dim: [i64; 4]) -> Operand<'a> {
        Operand::new(dtype, dim, Memory::None)
    }

    /// A host slice that is read; row-major unless [`Operand::strides`] follows.
    pub fn read<T: Element>(data: &'a [T], dim: [i64; 4]) -> Operand<'a> {
        Operand::new(T::DTYPE, dim, Memory::Read(bytemuck::cast_slice(data)))
    }

    /// A host slice that is written; row-major unless [`Operand::strides`] follows.
    pub fn write<T: Element>(data: &'a mut [T], dim: [i64; 4]) -> Operand<'a> {
        Operand::new(T::DTYPE, dim, Memory::Write(bytemuck::cast_slice_mut(data)))
    }

    /// Host bytes that are read, of an element type that Rust has no name for: FP8, packed FP4 (extents in values), scales.
    pub fn read_bytes(dtype: DType, data: &'a [u8], dim: [i64; 4]) -> Operand<'a> {
        Operand::new(dtype, dim, Memory::Read(data))
    }

    /// Host bytes that are written; see [`Operand::read_bytes`].
    pub fn write_bytes(dtype: DType, data: &'a mut [u8], dim: [i64; 4]) -> Operand<'a> {
        Operand::new(dtype, dim, Memory::Write(data))
    }

    /// Device memory by address and length in bytes; see [`Bindings::device`] for what the caller promises.
    pub fn device(dtype: DType, dim: [i64; 4], address: u64, bytes: u64) -> Operand<'a> {
        Operand::new(dtype, dim, Memory::Device(DeviceBuffer { address, bytes }))
    }

    /// Sets strides in elements.
    #[must_use]
    pub fn strides(mut self, stride: [i64; 4]) -> Operand<'a> {
        if let Some(s) = &mut self.shape {
            s.stride = stride;
        }
        self
    }

    /// Whether the operand is given.
    pub fn is_some(&self) -> bool {
        self.shape.is_some()
    }

    /// The bytes of a host slice that is read.
    pub(super) fn host(&self) -> Option<&[u8]> {
        match &self.memory {
            Memory::Read(bytes) => Some(bytes),
            Memory::None | Memory::Write(_) | Memory::Device(_) => None,
        }
    }

    /// Hands the memory over under a uid; absent memory is found missing by the executor, with the tensor's name.
    pub(super) fn bind(self, uid: Uid, bindings: &mut Bindings<'a>) {
        match self.memory {
            Memory::None => {}
            Memory::Read(r) => {
                bindings.read(uid, r);
            }
            Memory::Write(w) => {
                bindings.write(uid, w);
            }
            Memory::Device(d) => {
                bindings.device(uid, d.address, d.bytes);
            }
        }
    }
}
