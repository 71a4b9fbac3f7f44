//! Tensor maps: from the plan's description to the 128 opaque bytes that TMA reads.

use super::DeviceRange;
use crate::engines::{DType, TensorMapSpec};
use crate::{Error, ErrorCode, Result};
use cudarc::driver::sys;

/// The 128 bytes.
pub(crate) type TensorMap = sys::CUtensorMap;

/// Highest rank TMA knows.
const RANK: usize = 5;

/// Arguments of one encoding, all but the address and the open extent fixed at compile time of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MapRequest {
    pub address: u64,
    pub dtype: sys::CUtensorMapDataType,
    pub rank: u32,
    pub dim: [u64; RANK],
    pub stride: [u64; RANK],
    pub tile: [u32; RANK],
    pub swizzle: sys::CUtensorMapSwizzle,
    /// Axis whose extent follows from the bound bytes, with the element width.
    open: Option<(usize, u64)>,
}

fn refuse(what: &str, given: impl std::fmt::Display, expected: &str) -> Error {
    Error::new(ErrorCode::BufferAlignment, format!("a tensor map with {what} {given}"), expected.to_owned())
}

impl MapRequest {
    /// Checks a description against TMA's rules once, so that a later encoding can only fail for its address.
    ///
    /// # Errors
    /// FG4003 naming the rule.
    pub(crate) fn new(spec: &TensorMapSpec) -> Result<MapRequest> {
        use sys::CUtensorMapDataType::*;
        let rank = spec.dim.len();
        if !(1..=RANK).contains(&rank) || spec.stride_bytes.len() + 1 != rank || spec.tile.len() != rank {
            let given = format!("{rank} extents, {} strides, {} box extents", spec.stride_bytes.len(), spec.tile.len());
            return Err(refuse("", given, "1 to 5 extents, one stride fewer, as many box extents"));
        }
        let dtype = match spec.dtype {
            DType::BF16 => CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            DType::F16 => CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            DType::F32 => CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
            DType::F64 => CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
            DType::I32 => CU_TENSOR_MAP_DATA_TYPE_INT32,
            DType::I64 => CU_TENSOR_MAP_DATA_TYPE_INT64,
            DType::U8 | DType::I8 | DType::F8E4M3 | DType::F8E5M2 | DType::F8E8M0 | DType::F8E5M3 | DType::ByteBool => {
                CU_TENSOR_MAP_DATA_TYPE_UINT8
            }
            DType::I8x4
            | DType::U8x4
            | DType::I8x32
            | DType::Bool
            | DType::FastF8
            | DType::F4E2M1
            | DType::I4
            | DType::C64
            | DType::C128 => return Err(refuse("element type", spec.dtype, "a type that TMA moves")),
        };
        let width = u64::from(spec.dtype.bits() / 8);
        let swizzle = match spec.swizzle {
            0 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
            32 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_32B,
            64 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
            128 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            other => return Err(refuse("a swizzle of", other, "0, 32, 64 or 128 bytes")),
        };
        let (mut dim, mut stride, mut tile, mut open) = ([1; RANK], [0; RANK], [1; RANK], None);
        for axis in 0..rank {
            match spec.dim[axis] {
                Some(n @ 1..=0xffff_ffff) => dim[axis] = n,
                Some(n) => return Err(refuse("an extent of", n, "1 to 2^32 - 1 elements")),
                None if axis > 0 && open.is_none() => open = Some((axis, width)),
                None => return Err(refuse("an open axis", axis, "at most one open axis, not the innermost")),
            }
            tile[axis] = spec.tile[axis];
            if !(1..=256).contains(&tile[axis]) {
                return Err(refuse("a box extent of", tile[axis], "1 to 256 elements"));
            }
        }
        for (axis, &bytes) in spec.stride_bytes.iter().enumerate() {
            stride[axis + 1] = bytes;
            if bytes % 16 != 0 || bytes >= 1 << 40 || bytes == 0 {
                return Err(refuse("a stride in bytes of", bytes, "a positive multiple of 16 below 2^40"));
            }
        }
        let row = u64::from(tile[0]) * width;
        if row % 16 != 0 || (spec.swizzle > 0 && row > u64::from(spec.swizzle)) {
            return Err(refuse("a box row in bytes of", row, "a multiple of 16 within the swizzle span"));
        }
        Ok(MapRequest { address: 0, dtype, rank: rank as u32, dim, stride, tile, swizzle, open })
    }

    /// The request for a bound range: address set, open extent as large as the range allows.
    ///
    /// # Errors
    /// FG4003 for an address that is no multiple of 16; FG4002 for a range that does not hold one row of the open axis.
    pub(crate) fn bind(mut self, range: DeviceRange) -> Result<MapRequest> {
        if !range.address.is_multiple_of(16) {
            let given = format!("a base address that is {} past a multiple of 16", range.address % 16);
            return Err(Error::new(ErrorCode::BufferAlignment, given, "a base aligned to 16 bytes, which TMA needs"));
        }
        self.address = range.address;
        if let Some((axis, width)) = self.open {
            // Bytes from the first to one past the last element with an extent of one on the open axis.
            let others = (1..self.rank as usize).filter(|&a| a != axis);
            let one =
                others.map(|a| (self.dim[a] - 1).saturating_mul(self.stride[a])).fold(self.dim[0] * width, u64::saturating_add);
            let Some(rest) = range.bytes.checked_sub(one) else {
                return Err(Error::new(
                    ErrorCode::BufferSize,
                    format!("a packed tensor in {} bytes", range.bytes),
                    format!("at least {one} bytes, one token of every head"),
                ));
            };
            self.dim[axis] = (rest / self.stride[axis] + 1).min(0xffff_ffff);
        }
        Ok(self)
    }
}

/// Encodes through the driver; no device work, no allocation.
///
/// # Errors
/// FG6003.
pub(crate) fn encode(request: &MapRequest) -> Result<TensorMap> {
    let mut map = TensorMap { opaque: [0; 16] };
    let ones = [1u32; RANK];
    // SAFETY: arrays of at least `rank` elements (strides: one fewer), a live out-pointer aligned by its type; the address is only stored.
    let status = unsafe {
        sys::cuTensorMapEncodeTiled(
            &mut map,
            request.dtype,
            request.rank,
            request.address as *mut std::ffi::c_void,
            request.dim.as_ptr(),
            request.stride[1..].as_ptr(),
            request.tile.as_ptr(),
            ones.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            request.swizzle,
            // Rows of a tile are neighbours in memory and whole tiles are read: let one miss fetch 256 bytes.
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            // Out-of-range elements read as zeros: the head-dim envelope and sequence tails rely on it.
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    super::driver::check("cuTensorMapEncodeTiled", status)?;
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::launch::Base;

    fn spec() -> TensorMapSpec {
        TensorMapSpec {
            base: Base::Tensor(1),
            dtype: DType::BF16,
            dim: vec![Some(128), Some(1000), Some(8), Some(2)],
            stride_bytes: vec![2048, 256, 2_048_000],
            tile: vec![64, 64, 1, 1],
            swizzle: 128,
        }
    }

    #[test]
    fn a_dense_request_keeps_extents_strides_and_box() {
        let r = MapRequest::new(&spec()).unwrap().bind(DeviceRange { address: 4096, bytes: 1 }).unwrap();
        assert_eq!((r.address, r.rank, r.dim), (4096, 4, [128, 1000, 8, 2, 1]));
        assert_eq!((r.stride, r.tile), ([0, 2048, 256, 2_048_000, 0], [64, 64, 1, 1, 1]));
    }

    /// Packed tokens: as many as the buffer holds, the last one only up to its last head (report 25: no token more).
    #[test]
    fn an_open_axis_takes_what_the_buffer_holds() {
        let open = TensorMapSpec { dim: vec![Some(128), None, Some(8), Some(1)], ..spec() };
        let tokens = |bytes| MapRequest::new(&open).unwrap().bind(DeviceRange { address: 256, bytes }).map(|r| r.dim[1]);
        assert_eq!(tokens(2048 * 10).unwrap(), 10);
        assert_eq!(tokens(2048 * 10 - 1).unwrap(), 9);
        assert_eq!(tokens(2048).unwrap(), 1);
        assert_eq!(tokens(2047).unwrap_err().code, ErrorCode::BufferSize);
        // Head-major: head stride above the token stride.
        let head_major =
            TensorMapSpec { dim: vec![Some(64), None, Some(4), Some(1)], stride_bytes: vec![128, 12_800, 12_800], ..spec() };
        let r = MapRequest::new(&head_major).unwrap().bind(DeviceRange { address: 0, bytes: 4 * 12_800 }).unwrap();
        assert_eq!(r.dim[1], 100);
        // A stride above 2^32 bytes (rule S7).
        let far = TensorMapSpec { dim: vec![Some(64), None, Some(1), Some(1)], stride_bytes: vec![1 << 33, 128, 128], ..spec() };
        let r = MapRequest::new(&far).unwrap().bind(DeviceRange { address: 0, bytes: (1 << 33) * 3 + 128 }).unwrap();
        assert_eq!(r.dim[1], 4);
    }

    /// Report 45: an address that is aligned too little is an error before any launch.
    #[test]
    fn a_misaligned_base_is_named_45() {
        for off in [2, 4, 8, 14] {
            let e = MapRequest::new(&spec()).unwrap().bind(DeviceRange { address: 4096 + off, bytes: 1 }).unwrap_err();
            assert_eq!(e.code, ErrorCode::BufferAlignment);
            assert!(e.given.contains(&format!("{off} past a multiple of 16")), "{e}");
        }
    }

    #[test]
    fn tma_rules_are_checked_by_name() {
        let bad = [
            (TensorMapSpec { dtype: DType::F4E2M1, ..spec() }, "element type"),
            (TensorMapSpec { swizzle: 48, ..spec() }, "a swizzle of 48"),
            (TensorMapSpec { tile: vec![128, 64, 1, 1], ..spec() }, "a box row in bytes of 256"),
            (TensorMapSpec { tile: vec![64, 257, 1, 1], ..spec() }, "a box extent of 257"),
            (TensorMapSpec { stride_bytes: vec![2048, 250, 2_048_000], ..spec() }, "a stride in bytes of 250"),
            (TensorMapSpec { stride_bytes: vec![2048, 256, 1 << 40], ..spec() }, "a stride in bytes of 1099511627776"),
            (TensorMapSpec { dim: vec![Some(128), None, None, Some(1)], ..spec() }, "an open axis 2"),
            (TensorMapSpec { dim: vec![Some(1 << 32), Some(1), Some(1), Some(1)], ..spec() }, "an extent of 4294967296"),
            (TensorMapSpec { dim: vec![Some(128)], ..spec() }, "1 extents, 3 strides, 4 box extents"),
        ];
        for (spec, what) in bad {
            let e = MapRequest::new(&spec).unwrap_err();
            assert!(e.given.contains(what), "{e}");
        }
    }
}
