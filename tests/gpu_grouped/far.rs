//! Rule S7 for the block-scaled product: a block of 256 rows, or an expert, is repeated until the operand is long.

use crate::cases::Case;
use crate::device::{fault, Gpu};
use crate::inputs::inputs;
use crate::repeated::Repeated;
use crate::{lower, run};
use frostgraph::engines::{DType, Uid};
use frostgraph::Result;

/// Rows of a block.
const ROWS: i64 = 256;
/// Operands with one row, or one part of it, a row of A; and with one part an expert.
const OF_ROWS: [Uid; 8] = [1, 3, 4, 10, 21, 22, 24, 27];
const OF_EXPERTS: [Uid; 4] = [2, 5, 9, 26];

/// Which operand is long.
#[derive(Clone, Copy)]
pub enum Long {
    /// A and everything else that has its rows: so many blocks of one expert.
    Rows(i64),
    /// B: so many experts with a block of rows each.
    Experts(i64),
}

impl Long {
    fn of(self, block: &Case) -> Case {
        match self {
            Long::Rows(n) => Case { m: n * ROWS, ends: vec![(n * ROWS) as i32], ..block.clone() },
            Long::Experts(n) => Case { m: n * ROWS, ends: (1..=n).map(|e| (e * ROWS) as i32).collect(), ..block.clone() },
        }
    }

    /// How often a block's operand is repeated.
    fn copies(self, uid: Uid) -> u64 {
        let (rows, experts) = match self {
            Long::Rows(n) => (n as u64, 1),
            Long::Experts(n) => (n as u64, n as u64),
        };
        if OF_ROWS.contains(&uid) {
            rows
        } else if OF_EXPERTS.contains(&uid) {
            experts
        } else {
            1
        }
    }
}

/// Values of fp32 and bf16 results, whose last bits depend on how a tile's k is shared out.
fn values(d: DType, bytes: &[u8]) -> Vec<f64> {
    match d {
        DType::F32 => bytes.chunks_exact(4).map(|b| f64::from(f32::from_ne_bytes([b[0], b[1], b[2], b[3]]))).collect(),
        _ => bytes.chunks_exact(2).map(|b| f64::from(half::bf16::from_ne_bytes([b[0], b[1]]).to_f32())).collect(),
    }
}

/// Equal bits; within a rounding where tiles are split along k.
fn same(case: &Case, uid: Uid, got: &[u8], want: &[u8]) -> bool {
    if case.cluster == 1 || got == want {
        return got == want;
    }
    let d = if uid == 21 || uid == 22 { case.d } else { DType::F32 };
    let (got, want) = (values(d, got), values(d, want));
    let most = want.iter().fold(0f64, |m, x| m.max(x.abs()));
    got.iter().zip(&want).all(|(g, w)| (g - w).abs() <= w.abs() / 128.0 + most * 1e-3)
}

/// Runs the long problem; the error of the block alone.
pub fn check(gpu: &Gpu, block: &Case, long: Long, seed: u64) -> Result<f64> {
    let error = run::case(gpu, block, seed)?;
    let mut want = run::results(gpu, block, seed)?;
    want.retain(|uid, _| OF_ROWS.contains(uid) || OF_EXPERTS.contains(uid));
    if want.is_empty() {
        return Err(fault("no output is long"));
    }
    let case = long.of(block);
    let (facts, plan) = lower(&case, gpu.device.target())?;
    let mut problem = Repeated::new(gpu);
    for (uid, bytes) in inputs(block, seed) {
        if uid == 8 {
            problem.input(uid, &case.ends.iter().flat_map(|e| e.to_ne_bytes()).collect::<Vec<_>>(), 1)?;
        } else {
            problem.input(uid, &bytes, long.copies(uid))?;
        }
    }
    for (_, port, _) in facts.expect_grouped_gemm().ports.all().filter(|p| p.2) {
        problem.output(port.uid, (port.dim.iter().product::<i64>() * i64::from(port.dtype.bits()) / 8) as u64)?;
    }
    problem.run(&plan)?;
    for (&uid, block) in &want {
        problem.compare(uid, block, long.copies(uid), |got| same(&case, uid, got, block))?;
    }
    Ok(error)
}
