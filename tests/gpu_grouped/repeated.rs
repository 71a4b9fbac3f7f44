//! Problems whose operands hold one block so many times that offsets pass 2^31 and 2^32 elements (rule S7). The block alone is judged against the oracle;
//! every repetition must give its results.

use crate::device::{fault, Gpu, POISON};
use frostgraph::engines::{LaunchPlan, Uid};
use frostgraph::runtime::{DeviceBuffer, DeviceRange, Program};
use frostgraph::Result;
use std::collections::BTreeMap;

/// The buffers of such a problem.
pub struct Repeated<'a> {
    gpu: &'a Gpu,
    buffers: BTreeMap<Uid, DeviceBuffer>,
}

impl<'a> Repeated<'a> {
    pub fn new(gpu: &'a Gpu) -> Repeated<'a> {
        Repeated { gpu, buffers: BTreeMap::new() }
    }

    /// An operand that holds `block` so many times.
    pub fn input(&mut self, uid: Uid, block: &[u8], copies: u64) -> Result<()> {
        let all = block.len() as u64 * copies;
        let buffer = DeviceBuffer::new(&self.gpu.device, all)?;
        buffer.write(0, block)?;
        let mut done = block.len() as u64;
        while done < all {
            let take = done.min(all - done);
            buffer.copy(&self.gpu.stream, done, DeviceRange { bytes: take, ..buffer.range() })?;
            done += take;
        }
        self.gpu.stream.synchronize()?;
        self.buffers.insert(uid, buffer);
        Ok(())
    }

    /// A result of so many bytes, poisoned.
    pub fn output(&mut self, uid: Uid, bytes: u64) -> Result<()> {
        let buffer = DeviceBuffer::new(&self.gpu.device, bytes)?;
        buffer.fill(&self.gpu.stream, 0, buffer.bytes(), POISON)?;
        self.buffers.insert(uid, buffer);
        Ok(())
    }

    /// Runs the plan once.
    pub fn run(&self, plan: &LaunchPlan) -> Result<()> {
        let program = Program::compile(&self.gpu.device, &[plan])?;
        let workspace = DeviceBuffer::new(&self.gpu.device, program.workspace_bytes() + 256)?;
        let operand = |uid| self.buffers.get(&uid).map(DeviceBuffer::range);
        program.execute(self.gpu.stream.raw(), &operand, workspace.range())?;
        self.gpu.stream.synchronize()
    }

    /// Compares repetitions of a block of results by `same`: those at both ends and around 2^31 to 2^33 bytes.
    pub fn compare(&self, uid: Uid, block: &[u8], copies: u64, same: impl Fn(&[u8]) -> bool) -> Result<()> {
        let one = block.len() as u64;
        let near =
            [1u64 << 31, 1 << 32, 1 << 33].into_iter().map(|at| at / one).flat_map(|at| [at.saturating_sub(1), at, at + 1]);
        let mut got = vec![0; block.len()];
        for place in near.chain([0, copies / 2, copies - 1]).filter(|p| *p < copies) {
            self.buffers[&uid].read(place * one, &mut got)?;
            if !same(&got) {
                return Err(fault(format!("block {place} of output {uid} is not what the block alone gives")));
            }
        }
        Ok(())
    }
}
