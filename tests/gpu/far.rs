//! Rule S7: batch entries, tokens, sequences or pages so far apart that an index or a product in 32 bits lands somewhere else. Everything between them is
//! NaN, the wrapped places included, so a narrowed read poisons the result and a narrowed write is seen.

use crate::build::{graph, offsets, DK, DQ, DV, D_O, HIGH, K, O, Q, RAG_KV, RAG_Q, STATS, V};
use crate::cases::{
    Case, Fwd, Lens, MaskKind, Pages, BWD, BWD_SM90, DECODE, HOPPER, QAT_BWD, QAT_BWD_SM90, QAT_FWD, QAT_FWD_SM90,
};
use crate::judge::judge;
use crate::problem::{ints, port_of, prepare, Prepared, POISON};
use crate::rng::Rng;
use crate::run::Gpu;
use frostgraph::engines::sdpa::access::Rows;
use frostgraph::exec::{Bindings, Stream, Workspace};
use frostgraph::plan::{BuildOptions, Plan};
use frostgraph::runtime::DeviceBuffer;
use frostgraph::{DType, Device, Error, ErrorCode, Result};
use std::collections::BTreeMap;
use std::ops::Range;

const FAR: [i64; 10] = [Q, K, V, O, D_O, STATS, DQ, DK, DV, HIGH];

/// What lies far apart, by name.
#[derive(Debug, Clone, Copy)]
pub enum Far {
    /// Batch entries: so many of them, this many elements from one to the next.
    Batches(i64, i64),
    /// Four tokens of one head (report 23).
    Tokens(i64),
    /// Packed sequences: the second one begins this many tokens behind the first (reports 26 and 31).
    Sequences(i64),
    /// Pages of K and V (report 30).
    Pages(i64),
}

/// Blocks of a compact tensor and where each one goes, in bytes.
type Blocks = Vec<(Range<usize>, u64)>;

/// A small problem for one engine.
pub fn small(engine: &'static str) -> Case {
    let (s_q, s_kv, mask) = if engine == DECODE { (2, 70, MaskKind::None) } else { (70, 70, MaskKind::Causal) };
    Case { engine, h_q: 2, h_kv: 1, s_q, s_kv, mask, ..Case::default() }
}

impl Far {
    fn case(self, engine: &'static str, dtype: DType) -> Case {
        let base = Case { dtype, ..small(engine) };
        match self {
            Far::Batches(b, _) => Case { b, ..base },
            Far::Tokens(_) => Case { b: 1, h_q: 1, h_kv: 1, s_q: 4, s_kv: 4, ..base },
            // 8,192 elements a token, so that few tokens reach far.
            Far::Sequences(_) => {
                let lens = Lens::Thd { q: vec![16, 17], kv: vec![17, 16], head_major: false, wide: false };
                Case { h_q: 64, h_kv: 64, s_q: 17, s_kv: 17, d_qk: 128, d_v: 128, lens, ..base }
            }
            Far::Pages(_) => {
                let fwd = Fwd { pages: Some(Pages { rows: 16, nhd: true, spare: 0 }), ..base.fwd };
                Case { b: 1, s_kv: 40, lens: Lens::Padded { q: vec![2], kv: vec![40] }, fwd, ..base }
            }
        }
    }

    /// The axis along which strided operands are apart, their stride in elements, and which they are.
    fn axis(self) -> Option<(usize, i64, &'static [i64])> {
        match self {
            Far::Batches(_, stride) => Some((0, stride, &FAR)),
            Far::Tokens(stride) => Some((2, stride, &FAR)),
            Far::Pages(stride) => Some((0, stride, &[K, V])),
            // Strides stay as they are; the offsets that the sequences are read at do not.
            Far::Sequences(_) => None,
        }
    }

    fn plan(self, case: &Case, device: &Device) -> Result<Plan> {
        let mut g = graph(case)?;
        if let Some((axis, stride, uids)) = self.axis() {
            let ids: Vec<_> = g.tensors().filter(|(_, t)| t.uid.is_some_and(|u| uids.contains(&u))).map(|(id, _)| id).collect();
            for id in ids {
                g.get_mut(id)?.stride[axis] = stride;
            }
        }
        let built = g.build_with(device, &BuildOptions::all_engines())?;
        let plan = built.plans().find(|p| p.entries().all(|e| e.row.name == case.engine));
        plan.ok_or_else(|| {
            let reasons: Vec<String> = built.declined().map(ToString::to_string).collect();
            Error::new(ErrorCode::NoPlan, format!("no plan for {self:?}"), case.engine).details(reasons)
        })
    }

    /// Token offsets of the sequences of a packed side.
    fn starts(self, lens: &[i64]) -> Vec<i64> {
        match self {
            Far::Sequences(tokens) => (0..=lens.len() as i64).map(|i| i * tokens).collect(),
            Far::Batches(..) | Far::Tokens(_) | Far::Pages(_) => Vec::new(),
        }
    }

    /// Where the parts of a tensor go that is `bytes` long when compact.
    fn blocks(self, p: &Prepared, case: &Case, uid: i64, bytes: usize) -> Result<Blocks> {
        let whole = vec![(0..bytes, 0)];
        let Ok((port, rows)) = port_of(&p.facts, uid) else { return Ok(whole) };
        let width = port.dtype.bytes().unwrap_or(1);
        match (self.axis(), &case.lens) {
            (Some((axis, stride, uids)), _) if uids.contains(&uid) => {
                let n = port.dim[axis] as usize;
                let block = bytes / n;
                Ok((0..n).map(|i| (i * block..(i + 1) * block, i as u64 * stride as u64 * width)).collect())
            }
            (None, Lens::Thd { q, kv, .. }) if port.ragged.is_some() => {
                let lens = if matches!(rows, Rows::Query) { q } else { kv };
                let token = (port.dim[1] * port.dim[3]) as u64 * width;
                let near = offsets(lens).into_iter().map(|at| at as usize * token as usize);
                let far = self.starts(lens).into_iter().map(|at| at as u64 * token);
                Ok(lens
                    .iter()
                    .zip(near.zip(far))
                    .map(|(n, (from, to))| (from..from + *n as usize * token as usize, to))
                    .collect())
            }
            _ => Ok(whole),
        }
    }
}

/// Head dims of far problems beside those of [`small`]: one for each kind of tiles that the row has.
pub fn further_dims(engine: &str) -> &'static [(i64, i64)] {
    match engine {
        BWD_SM90 => &[(128, 128), (192, 128), (192, 192), (256, 256)],
        HOPPER => &[(128, 128), (192, 128), (256, 256)],
        QAT_FWD | QAT_FWD_SM90 | QAT_BWD | QAT_BWD_SM90 => &[(128, 128)],
        _ => &[],
    }
}

/// [`check_at`] with each of the further head dims.
pub fn check_further(gpu: &Gpu, engine: &'static str, seed: u64, far: Far, dtype: DType) -> Result<()> {
    further_dims(engine).iter().try_for_each(|&d| check_at(gpu, &mut Rng(seed), engine, far, dtype, d))
}

/// The far problems of an engine can be planned: no GPU needed.
pub fn check_planned(engine: &'static str, device: &Device) -> Result<()> {
    for far in problems(engine) {
        let case = far.case(engine, DType::BF16);
        far.plan(&case, device)?.lower()?;
        for &(d_qk, d_v) in further_dims(engine) {
            far.plan(&Case { d_qk, d_v, ..case.clone() }, device)?.lower()?;
        }
    }
    Ok(())
}

/// What an engine is asked for: strides above 2^32 in bytes and in elements, and smaller ones whose last index reaches above it.
pub fn problems(engine: &'static str) -> Vec<Far> {
    let mut list = vec![Far::Batches(2, (1 << 31) + (1 << 10)), Far::Batches(5, (1 << 30) + (1 << 10)), Far::Tokens(800_000_000)];
    match engine {
        // Two entries of nine tensors would not fit a device of 139 GiB.
        BWD | BWD_SM90 => {}
        // No packed sequences.
        QAT_FWD | QAT_FWD_SM90 | QAT_BWD | QAT_BWD_SM90 => list.push(Far::Batches(2, (1 << 32) + (1 << 10))),
        DECODE => list.extend([Far::Batches(2, (1 << 32) + (1 << 10)), Far::Pages((1 << 30) + (1 << 10))]),
        _ => list.extend([Far::Batches(2, (1 << 32) + (1 << 10)), Far::Sequences(1 << 18), Far::Sequences((1 << 19) + 5)]),
    }
    list
}

/// As [`check_at`] with the problem's own head dims.
pub fn check(gpu: &Gpu, rng: &mut Rng, engine: &'static str, far: Far, dtype: DType) -> Result<()> {
    let Case { d_qk, d_v, .. } = far.case(engine, dtype);
    check_at(gpu, rng, engine, far, dtype, (d_qk, d_v))
}

/// Runs the problem and compares it with the oracle. The blocks of each operand are contiguous and in order where the strides are ordinary.
fn check_at(gpu: &Gpu, rng: &mut Rng, engine: &'static str, far: Far, dtype: DType, (d_qk, d_v): (i64, i64)) -> Result<()> {
    let case = Case { d_qk, d_v, ..far.case(engine, dtype) };
    // The same values with ordinary strides give the expected results and the blocks to copy.
    let near = graph(&case)?.build_with(&gpu.planned, &BuildOptions::all_engines())?;
    let prepared = prepare(&case, near.nodes()[0].facts(), rng.next())?;
    let exe = far.plan(&case, &gpu.planned)?.compile()?;
    let mut buffers = BTreeMap::new();
    let mut bindings = Bindings::new();
    for operand in exe.operands() {
        let mut compact = prepared.tensors[&operand.uid].clone();
        if let Lens::Thd { q, kv, wide, .. } = &case.lens {
            for (_, lens) in [(RAG_Q, q), (RAG_KV, kv)].into_iter().filter(|(uid, _)| *uid == operand.uid) {
                compact = ints(&far.starts(lens), *wide);
            }
        }
        let blocks = far.blocks(&prepared, &case, operand.uid, compact.len())?;
        let bytes = blocks.iter().map(|(part, at)| at + part.len() as u64).max().unwrap_or(0).max(operand.bytes);
        let buffer = DeviceBuffer::new(&gpu.device, bytes)?;
        buffer.fill(&gpu.stream, 0, bytes, POISON)?;
        gpu.stream.synchronize()?;
        for (part, at) in &blocks {
            buffer.write(*at, &compact[part.clone()])?;
        }
        bindings.device(operand.uid, buffer.range().address, buffer.bytes());
        buffers.insert(operand.uid, (buffer, blocks, u64::from(operand.dtype.bits() / 8)));
    }
    let scratch = DeviceBuffer::new(&gpu.device, exe.workspace_bytes())?;
    scratch.fill(&gpu.stream, 0, scratch.bytes(), POISON)?;
    let mut workspace = Workspace::device(scratch.range().address, scratch.bytes());
    exe.execute(&Stream::cuda(gpu.stream.raw()), &mut bindings, &mut workspace)?;
    gpu.stream.synchronize()?;
    for &uid in prepared.owned.keys() {
        let (buffer, blocks, width) = &buffers[&uid];
        let mut compact = vec![POISON; prepared.tensors[&uid].len()];
        for (part, at) in blocks {
            buffer.read(*at, &mut compact[part.clone()])?;
        }
        judge(&case, &prepared, uid, &compact)?;
        // Between the blocks nothing was written: behind each one, and where 32-bit bytes or elements of its offset would land.
        for (part, at) in blocks {
            let n = part.len() as u64;
            let wraps = [at + n, at % (1 << 32) + n, (at / width) % (1 << 32) * width + n];
            for at in wraps {
                let Some(room) = buffer.bytes().checked_sub(at) else { continue };
                let inside = blocks.iter().any(|(other, to)| at < to + other.len() as u64 && at + (64 << 10) > *to);
                if inside {
                    continue;
                }
                let mut gap = vec![0; room.min(64 << 10) as usize];
                buffer.read(at, &mut gap)?;
                if gap.iter().any(|&x| x != POISON) {
                    let given = format!("uid {uid}: bytes behind {at} were written");
                    return Err(Error::new(ErrorCode::CheckFailed, given, "only these blocks are written"));
                }
            }
        }
    }
    Ok(())
}
