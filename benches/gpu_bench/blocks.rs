//! Block-scaled operands: random normal values, quantised, with every scale where its block is.

use frostgraph::engines::codec::{e2m1, e4m3, e8m0};
use frostgraph::engines::grouped_gemm::scales::ScaleMatrix;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Rows that repeat: whole atoms of scales, and what every M and N of the suites is a multiple of.
const ROWS: usize = 256;

/// What goes in and comes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// E4M3 with E8M0 scales per 32 in, E4M3 with both sets of scales out.
    Mxfp8,
    /// E2M1 with E4M3 scales per 16 in, bf16 and amax out.
    Nvfp4,
}

impl Format {
    pub fn vec(self) -> usize {
        match self {
            Format::Mxfp8 => 32,
            Format::Nvfp4 => 16,
        }
    }

    /// Appends the payload of a block and returns its scale.
    fn quantise(self, block: &[f32], payload: &mut Vec<u8>) -> u8 {
        let amax = block.iter().fold(0f32, |m, x| m.max(x.abs()));
        match self {
            Format::Mxfp8 => {
                let code = e8m0::encode_up(amax / 448.0);
                payload.extend(block.iter().map(|x| e4m3::encode(x / e8m0::decode(code))));
                code
            }
            Format::Nvfp4 => {
                let code = e4m3::encode(amax / 6.0);
                let scale = e4m3::decode(code);
                payload.extend(block.chunks(2).map(|p| e2m1::encode(p[0] / scale) | e2m1::encode(p[1] / scale) << 4));
                code
            }
        }
    }
}

/// [`ROWS`] rows, which an operand repeats.
pub struct Quantised {
    pub payload: Vec<u8>,
    /// In atoms.
    pub scales: Vec<u8>,
}

/// Rows of `k` random normal values; made once for each format, length and seed.
pub fn quantised(format: Format, k: usize, seed: u64) -> Arc<Quantised> {
    static KNOWN: Mutex<BTreeMap<(Format, usize, u64), Arc<Quantised>>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.entry((format, k, seed)).or_insert_with(|| Arc::new(made(format, k, seed))).clone()
}

fn made(format: Format, k: usize, seed: u64) -> Quantised {
    let matrix = ScaleMatrix::of(ROWS, k, format.vec());
    let (mut payload, mut scales) = (Vec::new(), vec![0; matrix.bytes()]);
    for (n, block) in crate::device::normals(ROWS * k, seed).chunks(format.vec()).enumerate() {
        scales[matrix.index(n / matrix.blocks, n % matrix.blocks)] = format.quantise(block, &mut payload);
    }
    Quantised { payload, scales }
}
