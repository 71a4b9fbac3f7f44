//! The output against the f64 oracle: every element within the rounding of its type and of single-precision sums, everything else untouched.

use crate::device::POISON;
use frostgraph::engines::grouped_gemm::oracle::element;
use frostgraph::engines::moe_grouped_matmul::oracle::Oracle;
use frostgraph::engines::moe_grouped_matmul::MoeFacts;
use frostgraph::engines::{DType, Uid};
use std::collections::BTreeMap;

/// Largest error of a sum relative to the sum of its magnitudes: products are exact, and the tensor core's fp32 accumulation drops bits relative
/// to the largest summand.
const ACCUMULATION: f64 = 4e-6;

/// Half a unit of the last place, and the smallest subnormal's.
fn rounding(d: DType, x: f64) -> f64 {
    let (bits, least) = match d {
        DType::BF16 => (9, -134),
        DType::F16 => (12, -25),
        _ => (25, -150),
    };
    (x.abs() * 2f64.powi(-bits + 1)).max(2f64.powi(least)) * 1.0001
}

/// The relative Frobenius error of the output.
pub fn judge(f: &MoeFacts, want: &Oracle, out: &BTreeMap<Uid, Vec<u8>>) -> Result<f64, String> {
    let bytes = &out[&21];
    let (n, width) = (f.n as usize, f.output.bytes().unwrap_or(4) as usize);
    let row = f.ports.output.as_ref().map_or(n, |p| p.stride[1] as usize);
    let mut sums = [0.0f64; 2];
    for (r, values) in want.rows.iter().enumerate() {
        let (at, end) = (r * row * width, ((r + 1) * row * width).min(bytes.len()));
        let untouched = if values.is_some() { at + n * width..end } else { at..end };
        if let Some(i) = bytes[untouched].iter().position(|&b| b != POISON) {
            return Err(format!("byte {i} of row {r} that belongs to nobody was written"));
        }
        for (c, &x) in values.iter().flatten().enumerate() {
            let got = element(f.output, bytes, r * row + c);
            let slack = ACCUMULATION * want.sizes[r][c] + rounding(f.output, x);
            // Past f16's range results are infinite.
            let beyond = f.output == DType::F16 && x.abs() + slack >= 65_504.0 && got.is_infinite() && got.signum() == x.signum();
            if !beyond && ((got - x).abs() > slack || got.is_nan()) {
                return Err(format!("({r}, {c}) is {got:e}, expected {x:e} within {slack:e}"));
            }
            if !beyond {
                sums[0] += (got - x).powi(2);
                sums[1] += x.powi(2);
            }
        }
    }
    if let Some(status) = out.get(&22) {
        let got = i32::from_ne_bytes([status[0], status[1], status[2], status[3]]);
        if got != want.status {
            return Err(format!("status is {got:#x}, expected {:#x}", want.status));
        }
    }
    Ok(if sums[1] == 0.0 { 0.0 } else { (sums[0] / sums[1]).sqrt() })
}
