//! Rule S7 for the plain product: a block of 256 rows is repeated until an operand is long, wherever its rows are read from and written to.

use crate::cases::Case;
use crate::data::{inputs, span};
use crate::device::Gpu;
use crate::repeated::Repeated;
use crate::{lower, run};
use frostgraph::engines::moe_grouped_matmul::MoeMode;
use frostgraph::engines::Uid;
use frostgraph::Result;
use std::collections::BTreeMap;

/// Rows of a block.
const ROWS: i64 = 256;

/// Which operand is long.
#[derive(Clone, Copy)]
pub enum Long {
    /// Token and output: so many blocks of one expert, which in scatter mode change places.
    Rows(MoeMode, i64),
    /// The token alone, of which the last block is gathered.
    Token(i64),
    /// Weights: so many experts with a block of rows each.
    Experts(i64),
}

impl Long {
    fn of(self, block: &Case) -> Case {
        match self {
            Long::Rows(mode, n) => Case { mode, tokens: n * ROWS, routed: n * ROWS, ..block.clone() },
            Long::Token(n) => Case { mode: MoeMode::Gather, tokens: n * ROWS, ..block.clone() },
            Long::Experts(n) => Case { tokens: n * ROWS, routed: n * ROWS, experts: n, groups: n, ..block.clone() },
        }
    }

    /// How often token, weights and output repeat the block's.
    fn copies(self) -> [u64; 3] {
        match self {
            Long::Rows(_, n) => [n as u64, 1, n as u64],
            Long::Token(n) => [n as u64, 1, 1],
            Long::Experts(n) => [n as u64; 3],
        }
    }

    /// Offsets and indices by uid.
    fn routing(self, case: &Case) -> BTreeMap<Uid, Vec<u8>> {
        let ints = |list: &mut dyn Iterator<Item = i64>| list.flat_map(|x| (x as i32).to_ne_bytes()).collect::<Vec<u8>>();
        let (rows, step) = (case.routed, case.routed / case.groups);
        let mut out = BTreeMap::from([(5, ints(&mut (0..=case.groups).map(|g| g * step)))]);
        match case.mode {
            MoeMode::None => {}
            MoeMode::Gather => {
                out.insert(6, ints(&mut (0..rows).map(|r| case.tokens - rows + r)));
            }
            MoeMode::Scatter => {
                out.insert(6, ints(&mut (0..rows).map(|r| (r + rows / 2) % rows)));
                out.insert(7, ints(&mut (0..rows).map(|_| 0)));
            }
        }
        out
    }
}

/// Runs the long problem; the error of the block alone.
pub fn check(gpu: &Gpu, block: &Case, long: Long, seed: u64) -> Result<f64> {
    let error = run::case(gpu, block, seed)?;
    let (facts, plan) = lower(block, gpu.device.target())?;
    let data = inputs(block, facts.expect_moe(), seed);
    let want = run::results(gpu, &facts, &plan, &data)?[&21].clone();
    let case = long.of(block);
    let (facts, plan) = lower(&case, gpu.device.target())?;
    let f = facts.expect_moe();
    let [token, weights, output] = long.copies();
    let mut problem = Repeated::new(gpu);
    for (uid, bytes) in long.routing(&case) {
        problem.input(uid, &bytes, 1)?;
    }
    for (uid, copies) in [(1, token), (2, weights), (3, token), (4, weights)] {
        if let Some(bytes) = data.get(&uid) {
            problem.input(uid, bytes, copies)?;
        }
    }
    for (_, port, _) in f.ports.all().filter(|p| p.2) {
        problem.output(port.uid, span(f, port.uid) as u64)?;
    }
    problem.run(&plan)?;
    problem.compare(21, &want, output, |got| got == want)?;
    Ok(error)
}
