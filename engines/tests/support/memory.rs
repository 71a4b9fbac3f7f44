//! Values, guarded buffers, and where the elements of an operand lie in them.

use super::Layout;
use frostgraph_engines::{DType, Port};
use half::{bf16, f16};

/// SplitMix64: values repeat for a seed on every machine.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [-1.7, 1.7]: variance about 1.
    pub fn value(&mut self) -> f64 {
        ((self.next() >> 11) as f64 / (1u64 << 53) as f64 - 0.5) * 3.46
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

pub fn round(x: f64, dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => bf16::from_f32(x as f32).to_f64(),
        DType::F16 => f16::from_f32(x as f32).to_f64(),
        _ => x as f32 as f64,
    }
}

pub fn put(bytes: &mut [u8], at: usize, x: f64, dtype: DType) {
    match dtype {
        DType::BF16 => bytes[at * 2..at * 2 + 2].copy_from_slice(&bf16::from_f32(x as f32).to_ne_bytes()),
        DType::F16 => bytes[at * 2..at * 2 + 2].copy_from_slice(&f16::from_f32(x as f32).to_ne_bytes()),
        _ => bytes[at * 4..at * 4 + 4].copy_from_slice(&(x as f32).to_ne_bytes()),
    }
}

pub fn take(bytes: &[u8], at: usize, dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => bf16::from_ne_bytes([bytes[at * 2], bytes[at * 2 + 1]]).to_f64(),
        DType::F16 => f16::from_ne_bytes([bytes[at * 2], bytes[at * 2 + 1]]).to_f64(),
        _ => f32::from_ne_bytes(bytes[at * 4..at * 4 + 4].try_into().unwrap()) as f64,
    }
}

/// Bytes of guard on either side of every buffer.
pub const GUARD: usize = 256;
const GUARD_BYTE: u8 = 0xa5;

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.len)
    }
}

/// A buffer between guards, 128-byte aligned.
#[derive(Clone)]
pub struct Buffer {
    store: Vec<u8>,
    from: usize,
    len: usize,
}

impl Buffer {
    pub fn filled(len: usize, fill: u8) -> Buffer {
        let mut store = vec![GUARD_BYTE; len + 2 * GUARD + 128];
        let from = GUARD + store[GUARD..].as_ptr().align_offset(128);
        store[from..from + len].fill(fill);
        Buffer { store, from, len }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.store[self.from..self.from + self.len]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.store[self.from..self.from + self.len]
    }

    pub fn check_guards(&self, name: &str) {
        let intact = self.store[..self.from].iter().chain(&self.store[self.from + self.len..]).all(|&x| x == GUARD_BYTE);
        assert!(intact, "{name}: a guard byte changed");
    }
}

/// Where the elements of one operand lie: test-side twin of the engines' access.
#[derive(Debug, Clone)]
pub struct Spot {
    pub port: Port,
    /// First element of each batch entry.
    pub base: Vec<i64>,
    /// Rows that exist for each batch entry.
    pub rows: Vec<usize>,
    /// (page rows, table) of a paged pool.
    pub pages: Option<(usize, Vec<Vec<i64>>)>,
    pub heads: usize,
    pub cols: usize,
    /// Elements of the whole buffer.
    pub span: usize,
}

impl Spot {
    fn at(&self, b: usize, h: usize, s: usize, d: usize) -> usize {
        let t = self.port.stride;
        let head_and_col = h as i64 * t[1] + d as i64 * t[3];
        let at = match &self.pages {
            Some((page, table)) => table[b][s / page] * t[0] + (s % page) as i64 * t[2] + head_and_col,
            None => self.base[b] + s as i64 * t[2] + head_and_col,
        };
        at as usize
    }

    /// (index in the dense array, element in the buffer) of everything that exists.
    pub fn elements(&self, rows: usize) -> Vec<(usize, usize)> {
        let mut out = Vec::new();
        for b in 0..self.rows.len() {
            for h in 0..self.heads {
                for s in 0..self.rows[b] {
                    for d in 0..self.cols {
                        out.push((((b * self.heads + h) * rows + s) * self.cols + d, self.at(b, h, s, d)));
                    }
                }
            }
        }
        out
    }

    pub fn read(&self, bytes: &[u8], rows: usize) -> Vec<f64> {
        let mut out = vec![0.0; self.rows.len() * self.heads * rows * self.cols];
        for (i, at) in self.elements(rows) {
            out[i] = take(bytes, at, self.port.dtype);
        }
        out
    }
}

pub fn strides(layout: Layout, [b, h, s, d]: [usize; 4]) -> [i64; 4] {
    let [b, h, s, d] = [b as i64, h as i64, s as i64, d as i64];
    match layout {
        Layout::Bhsd => [h * s * d, s * d, d, 1],
        Layout::Bshd => [h * s * d, d, h * d, 1],
        Layout::Sbhd => [h * d, d, b * h * d, 1],
        Layout::Padded => [s * (h * (d + 3) + 5) + 7, d + 3, h * (d + 3) + 5, 1],
        Layout::SpreadD => [h * s * d * 2, s * d * 2, d * 2, 2],
        Layout::Bhds => [h * s * d, s * d, 1, s],
    }
}
