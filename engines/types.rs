//! Element types and tensor ports: the vocabulary shared by facts, rows and launch plans.

/// Identifier of a tensor in a graph, unique within it and stable in JSON; at least 1.
pub type Uid = i64;

macro_rules! dtypes {
    ($($(#[$doc:meta])* $name:ident = $json:literal, $short:literal, $bits:literal;)*) => {
        /// Element type of a tensor. The spellings are those of cudnn-frontend's graph JSON.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum DType { $($(#[$doc])* $name,)* }
        impl DType {
            /// Every element type, in declaration order.
            pub const ALL: &'static [DType] = &[$(DType::$name,)*];
            /// Spelling in graph JSON, such as `BFLOAT16`.
            pub const fn json(self) -> &'static str { match self { $(DType::$name => $json,)* } }
            /// Short spelling used in tables and messages, such as `bf16`.
            pub const fn short(self) -> &'static str { match self { $(DType::$name => $short,)* } }
            /// Width of one element in bits; vector types count one whole vector.
            pub const fn bits(self) -> u32 { match self { $(DType::$name => $bits,)* } }
            /// The type with this JSON spelling.
            pub fn from_json(s: &str) -> Option<DType> { match s { $($json => Some(DType::$name),)* _ => None } }
        }
    };
}

dtypes! {
    /// IEEE-754 single.
    F32 = "FLOAT", "f32", 32;
    /// IEEE-754 double.
    F64 = "DOUBLE", "f64", 64;
    /// IEEE-754 half.
    F16 = "HALF", "f16", 16;
    /// Signed byte.
    I8 = "INT8", "i8", 8;
    /// Signed 32-bit integer.
    I32 = "INT32", "i32", 32;
    /// Vector of four signed bytes.
    I8x4 = "INT8x4", "i8x4", 32;
    /// Unsigned byte.
    U8 = "UINT8", "u8", 8;
    /// Vector of four unsigned bytes.
    U8x4 = "UINT8x4", "u8x4", 32;
    /// Vector of 32 signed bytes.
    I8x32 = "INT8x32", "i8x32", 256;
    /// bfloat16.
    BF16 = "BFLOAT16", "bf16", 16;
    /// Signed 64-bit integer.
    I64 = "INT64", "i64", 64;
    /// One bit a value in cuDNN's packing; not addressable by the engines.
    Bool = "BOOLEAN", "bool", 8;
    /// One byte a value, 0 or 1.
    ByteBool = "BYTE_BOOLEAN", "bytebool", 8;
    /// FP8 with 4 exponent bits.
    F8E4M3 = "FP8_E4M3", "e4m3", 8;
    /// FP8 with 5 exponent bits.
    F8E5M2 = "FP8_E5M2", "e5m2", 8;
    /// FP8 compute hint of cuDNN.
    FastF8 = "FAST_FLOAT_FOR_FP8", "fastf8", 32;
    /// Power-of-two scale.
    F8E8M0 = "FP8_E8M0", "e8m0", 8;
    /// Unsigned FP8 with 5 exponent and 3 mantissa bits.
    F8E5M3 = "FP8_E5M3", "e5m3", 8;
    /// FP4 with 2 exponent bits, two values a byte.
    F4E2M1 = "FP4_E2M1", "e2m1", 4;
    /// Four-bit integer.
    I4 = "INT4", "i4", 4;
    /// Complex single.
    C64 = "COMPLEX_FP32", "c64", 64;
    /// Complex double.
    C128 = "COMPLEX_FP64", "c128", 128;
}

impl DType {
    /// Whole bytes per element; `None` for types narrower than a byte.
    pub const fn bytes(self) -> Option<u64> {
        if self.bits().is_multiple_of(8) {
            Some((self.bits() / 8) as u64)
        } else {
            None
        }
    }

    /// f16 or bf16: the types of the tensor-core attention kernels.
    pub const fn is_half(self) -> bool {
        matches!(self, DType::F16 | DType::BF16)
    }

    /// E4M3 or E5M2: the FP8 types of values, where others are of scales.
    pub const fn is_fp8(self) -> bool {
        matches!(self, DType::F8E4M3 | DType::F8E5M2)
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.short())
    }
}

/// Where a ragged (packed, THD) tensor's batches begin: batch `b` starts at element `offset[b] * multiplier`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ragged {
    /// Tensor of `B + 1` offsets.
    pub uid: Uid,
    /// i32 or i64.
    pub dtype: DType,
    /// Elements per unit of offset.
    pub multiplier: i64,
}

/// One operand of a node as engines see it: rank 4, logical (B, H, S, D) for attention operands.
///
/// Strides are in elements. Tensors of lower rank are padded with trailing extents of 1 by the analyzer,
/// which records the malformed rank in the facts' `invalid` where the operation needs rank 4.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Identifier in the graph.
    pub uid: Uid,
    /// Label for messages.
    pub name: String,
    /// Extents.
    pub dim: [i64; 4],
    /// Strides in elements.
    pub stride: [i64; 4],
    /// Element type.
    pub dtype: DType,
    /// Guaranteed alignment of the base address in bytes.
    pub alignment: i64,
    /// Lives in the workspace rather than in a caller's buffer.
    pub is_virtual: bool,
    /// Present for packed tensors.
    pub ragged: Option<Ragged>,
}

impl Port {
    /// Elements from the first to one past the last addressed element of a dense tensor, in checked 64-bit.
    ///
    /// `None` on overflow or on a non-positive extent. A ragged tensor's span depends on its offsets: see the host engines.
    pub fn span(&self) -> Option<u64> {
        let mut last: i64 = 0;
        for (&d, &s) in self.dim.iter().zip(&self.stride) {
            if d <= 0 || s < 0 {
                return None;
            }
            last = last.checked_add((d - 1).checked_mul(s)?)?;
        }
        u64::try_from(last).ok()?.checked_add(1)
    }
}
