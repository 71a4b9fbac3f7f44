//! Rule S7: operands whose offsets pass 2^31 and 2^32 elements. A block of 256 rows, or an expert, that is judged against the oracle is repeated until
//! the operand is that long; every repetition must give the block's results.

use crate::cases::Case;
use crate::device::{fault, Gpu};
use crate::inputs::inputs;
use crate::repeated::repeated;
use crate::{lower, run};
use frostgraph::engines::{DType, Uid};
use frostgraph::runtime::{DeviceBuffer, Program};
use frostgraph::Result;
use std::collections::BTreeMap;

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

/// Runs the long problem and compares blocks at both ends and around 2^31 and 2^32 elements and bytes.
pub fn check(gpu: &Gpu, block: &Case, long: Long, seed: u64) -> Result<f64> {
    let error = run::case(gpu, block, seed)?;
    let want = run::results(gpu, block, seed)?;
    let case = long.of(block);
    let (facts, plan) = lower(&case, gpu.device.target())?;
    let program = Program::compile(&gpu.device, &[&plan])?;
    let mut buffers: BTreeMap<Uid, DeviceBuffer> = BTreeMap::new();
    for (uid, bytes) in inputs(block, seed) {
        let bytes = if uid == 8 { case.ends.iter().flat_map(|e| e.to_ne_bytes()).collect() } else { bytes };
        buffers.insert(uid, repeated(&gpu.device, &gpu.stream, &bytes, if uid == 8 { 1 } else { long.copies(uid) })?);
    }
    for (_, port, _) in facts.expect_grouped_gemm().ports.all().filter(|p| p.2) {
        let bytes = port.dim.iter().product::<i64>() * i64::from(port.dtype.bits()) / 8;
        let buffer = DeviceBuffer::new(&gpu.device, bytes as u64)?;
        buffer.fill(&gpu.stream, 0, buffer.bytes(), crate::device::POISON)?;
        buffers.insert(port.uid, buffer);
    }
    let workspace = DeviceBuffer::new(&gpu.device, program.workspace_bytes() + 256)?;
    program.execute(gpu.stream.raw(), &|uid| buffers.get(&uid).map(DeviceBuffer::range), workspace.range())?;
    gpu.stream.synchronize()?;
    let mut compared = 0;
    for (uid, block) in want.iter().filter(|(uid, _)| OF_ROWS.contains(uid) || OF_EXPERTS.contains(uid)) {
        let (one, copies) = (block.len() as u64, long.copies(*uid));
        let near =
            [1u64 << 31, 1 << 32, 1 << 33].into_iter().flat_map(|at| [(at / one).saturating_sub(1), at / one, at / one + 1]);
        let mut places: Vec<u64> = near.chain([0, copies / 2, copies - 1]).filter(|p| *p < copies).collect();
        places.sort_unstable();
        places.dedup();
        for place in places {
            let mut got = vec![0; block.len()];
            buffers[uid].read(place * one, &mut got)?;
            if !same(&case, *uid, &got, block) {
                return Err(fault(format!("block {place} of output {uid} is not what the block alone gives")));
            }
            compared += 1;
        }
    }
    if compared == 0 {
        return Err(fault("nothing was compared"));
    }
    Ok(error)
}
