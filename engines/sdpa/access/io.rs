//! Elements to f32 and back: f32, f16, bf16 at any byte address.

use super::fault;
use crate::{DType, HostError, Port};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Element types that the engines read and write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Io {
    F32,
    F16,
    BF16,
}

impl Io {
    pub(super) fn of(port: &Port) -> Result<Io, HostError> {
        match port.dtype {
            DType::F32 => Ok(Io::F32),
            DType::F16 => Ok(Io::F16),
            DType::BF16 => Ok(Io::BF16),
            other => Err(fault(&port.name, format!("element type {other}"), "f32, f16 or bf16")),
        }
    }

    /// Bytes of an element.
    pub(super) fn size(self) -> usize {
        match self {
            Io::F32 => 4,
            Io::F16 | Io::BF16 => 2,
        }
    }
}

/// The first element of a slice.
pub(super) fn decode(dtype: Io, b: &[u8]) -> f32 {
    match dtype {
        Io::F16 => f16::from_ne_bytes([b[0], b[1]]).to_f32(),
        Io::BF16 => bf16::from_ne_bytes([b[0], b[1]]).to_f32(),
        Io::F32 => f32::from_ne_bytes([b[0], b[1], b[2], b[3]]),
    }
}

/// Rounds values to contiguous elements, to nearest and ties to even.
pub(super) fn write_unit(dtype: Io, row: &[f32], out: &mut [u8]) {
    match dtype {
        Io::F16 => {
            for (row, out) in row.chunks(64).zip(out.chunks_mut(128)) {
                let mut halves = [f16::ZERO; 64];
                halves[..row.len()].convert_from_f32_slice(row);
                out.chunks_exact_mut(2).zip(halves).take(row.len()).for_each(|(o, x)| o.copy_from_slice(&x.to_ne_bytes()));
            }
        }
        Io::BF16 => out.chunks_exact_mut(2).zip(row).for_each(|(o, &x)| o.copy_from_slice(&bf16::from_f32(x).to_ne_bytes())),
        Io::F32 => out.chunks_exact_mut(4).zip(row).for_each(|(o, x)| o.copy_from_slice(&x.to_ne_bytes())),
    }
}

/// Contiguous elements to f32; the buffer may start at any byte.
pub(super) fn read_unit(dtype: Io, src: &[u8], out: &mut [f32]) {
    match dtype {
        Io::F16 => {
            for (s, o) in src.chunks(128).zip(out.chunks_mut(64)) {
                let mut halves = [f16::ZERO; 64];
                for (h, b) in halves.iter_mut().zip(s.chunks_exact(2)) {
                    *h = f16::from_ne_bytes([b[0], b[1]]);
                }
                halves[..o.len()].convert_to_f32_slice(o);
            }
        }
        Io::BF16 => {
            for (o, b) in out.iter_mut().zip(src.chunks_exact(2)) {
                *o = f32::from_bits((u16::from_ne_bytes([b[0], b[1]]) as u32) << 16);
            }
        }
        Io::F32 => {
            for (o, b) in out.iter_mut().zip(src.chunks_exact(4)) {
                *o = f32::from_ne_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
    }
}
