//! Tensors of a graph under construction.

use crate::DType;

/// Handle of a tensor in the graph that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(pub(crate) u32);

/// Element order inside a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reordering {
    /// Plain strides.
    #[default]
    None,
    /// cuDNN's INT8x32 order.
    Int8x32,
    /// cuDNN's F16x16 order.
    F16x16,
    /// Block-scale atom of 128 rows by 4 blocks.
    F8_128x4,
}

/// A value given at graph-build time for a pass-by-value tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ScalarValue {
    /// JSON variant index 0.
    I64(i64),
    /// JSON variant index 1.
    I32(i32),
    /// JSON variant index 2, as f16 bits.
    F16(u16),
    /// JSON variant index 3.
    F32(f32),
    /// JSON variant index 4.
    F64(f64),
    /// JSON variant index 5, as bf16 bits.
    BF16(u16),
}

impl ScalarValue {
    /// Element type of the value.
    pub const fn dtype(self) -> DType {
        match self {
            ScalarValue::I64(_) => DType::I64,
            ScalarValue::I32(_) => DType::I32,
            ScalarValue::F16(_) => DType::F16,
            ScalarValue::F32(_) => DType::F32,
            ScalarValue::F64(_) => DType::F64,
            ScalarValue::BF16(_) => DType::BF16,
        }
    }
}

/// Makes a tensor ragged (packed, THD).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RaggedOffset {
    /// Tensor of B + 1 offsets.
    pub offset: TensorId,
    /// Elements per unit of offset.
    pub multiplier: i64,
}

/// A tensor: extents, strides in elements, element type and how it lives.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Label; duplicates are legal but then ambiguous for lookup.
    pub name: String,
    /// Extents; empty until inferred for an operation's output.
    pub dim: Vec<i64>,
    /// Strides in elements; empty means row-major, or inferred for an operation's output.
    pub stride: Vec<i64>,
    /// Element type; `None` takes the graph's io type (intermediate type when virtual).
    pub dtype: Option<DType>,
    /// Identifier chosen by the user; otherwise the smallest unused one at freeze.
    pub uid: Option<i64>,
    /// Lives only inside the graph. Operation outputs are virtual unless marked by `Graph::output`.
    pub is_virtual: bool,
    /// A host scalar handed over by value.
    pub pass_by_value: bool,
    /// The scalar, when it is known at build time.
    pub value: Option<ScalarValue>,
    /// Packed batches.
    pub ragged: Option<RaggedOffset>,
    /// Guaranteed base alignment in bytes.
    pub alignment: i64,
    /// Element order.
    pub reordering: Reordering,
}

impl Tensor {
    /// A row-major tensor of the graph's io type.
    pub fn new(name: impl Into<String>, dim: impl Into<Vec<i64>>) -> Tensor {
        Tensor {
            name: name.into(),
            dim: dim.into(),
            stride: Vec::new(),
            dtype: None,
            uid: None,
            is_virtual: false,
            pass_by_value: false,
            value: None,
            ragged: None,
            alignment: 16,
            reordering: Reordering::None,
        }
    }

    /// Sets strides in elements.
    #[must_use]
    pub fn strides(mut self, stride: impl Into<Vec<i64>>) -> Tensor {
        self.stride = stride.into();
        self
    }

    /// Sets the element type.
    #[must_use]
    pub fn dtype(mut self, dtype: DType) -> Tensor {
        self.dtype = Some(dtype);
        self
    }

    /// Sets the identifier (at least 1).
    #[must_use]
    pub fn uid(mut self, uid: i64) -> Tensor {
        self.uid = Some(uid);
        self
    }

    /// Makes the tensor ragged: batch b begins at element `offset[b] * multiplier`.
    #[must_use]
    pub fn ragged(mut self, offset: TensorId, multiplier: i64) -> Tensor {
        self.ragged = Some(RaggedOffset { offset, multiplier });
        self
    }

    /// Sets the guaranteed base alignment in bytes.
    #[must_use]
    pub fn alignment(mut self, bytes: i64) -> Tensor {
        self.alignment = bytes;
        self
    }
}
