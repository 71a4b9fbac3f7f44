//! Inputs of one execution on the host: operands, rows of experts, weights.

use crate::grouped_gemm::groups::{groups, Status};
use crate::grouped_gemm::weights::{PoolLists, ENTRY_ALIGN};
use crate::grouped_gemm::{GemmPort, GroupedGemmFacts, Weights};
use crate::grouped_gemm_dsrelu::cpu_tile::{read, TILE};
use crate::sdpa::access::{bytes_of, fault};
use crate::{DType, HostBuffers, HostError};
use std::ops::Range;

fn need<'a>(port: &'a Option<GemmPort>, what: &str) -> Result<&'a GemmPort, HostError> {
    port.as_ref().ok_or_else(|| fault(what, "the node does not have this operand", "it to be present"))
}

/// Element `at` of an array of f32.
pub(super) fn floats(bytes: &[u8], at: usize) -> f32 {
    read(DType::F32, bytes, at)
}

/// Inputs of one execution.
pub(super) struct Inputs<'a> {
    pub f: &'a GroupedGemmFacts,
    pub a: &'a [u8],
    pub sfa: &'a [u8],
    pub c: &'a [u8],
    pub alpha: &'a [u8],
    pub prob: &'a [u8],
    pub norm: f32,
    /// Payload and scales of B by expert; empty for an expert without rows.
    pub b: Vec<[&'a [u8]; 2]>,
    pub groups: Vec<Range<usize>>,
    /// Expert of each 128-row block; `None` past the last expert.
    pub owner: Vec<Option<usize>>,
}

impl<'a> Inputs<'a> {
    /// Operands by name, rows of experts from the ends, weights from wherever they lie.
    ///
    /// # Errors
    /// Operands that are missing; faulty ends or entries where the node has no status word, by the name of their operand.
    pub fn new(f: &'a GroupedGemmFacts, buffers: &HostBuffers<'a>) -> Result<(Inputs<'a>, Status), HostError> {
        let p = &f.ports;
        let bytes = |port: &Option<GemmPort>, what: &str| {
            let port = need(port, what)?;
            bytes_of(&buffers.inputs, port.uid, &port.name)
        };
        let ends: Vec<i32> = bytes(&p.padded_offsets, "padded_offsets")?
            .chunks_exact(4)
            .take(f.experts as usize)
            .map(|b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        let sizes = f.expert_bytes().map(|b| b as usize);
        let pools = [bytes(&p.b, "B")?, bytes(&p.sfb, "SFB")?];
        let lists = match f.weights {
            Weights::Dense => None,
            Weights::Pool | Weights::Addresses => {
                Some(PoolLists { lists: [bytes(&p.b_ptrs, "B_ptrs")?, bytes(&p.sfb_ptrs, "SFB_ptrs")?], pools, sizes })
            }
        };
        let (groups, status) = lists.map_or_else(|| groups(&ends, f.m), |l| l.groups(&ends, f.m));
        if p.status.is_none() {
            refuse(f, status, lists)?;
        }
        let norm = if p.norm_const.is_some() { floats(bytes(&p.norm_const, "norm_const")?, 0) } else { 1.0 };
        let mut owner = vec![None; (f.m as usize).div_ceil(TILE)];
        for (expert, rows) in groups.iter().enumerate() {
            owner[rows.start / TILE..rows.end / TILE].fill(Some(expert));
        }
        let inputs = Inputs {
            a: bytes(&p.a, "A")?,
            sfa: bytes(&p.sfa, "SFA")?,
            c: bytes(&p.c, "C")?,
            alpha: bytes(&p.alpha, "alpha")?,
            prob: bytes(&p.prob, "prob")?,
            norm,
            b: weights(pools, sizes, lists, &groups),
            groups,
            owner,
            f,
        };
        Ok((inputs, status))
    }
}

/// The error that a faulty expert is where no word can tell about it.
fn refuse(f: &GroupedGemmFacts, status: Status, lists: Option<PoolLists<'_>>) -> Result<(), HostError> {
    let Some(expert) = status.expert() else { return Ok(()) };
    let of_weights = lists.filter(|_| status.0 & !0xffff == Status::WEIGHTS);
    let Some(lists) = of_weights else {
        let expected = format!("ends that do not decrease, are multiples of 256 and at most {}", f.m);
        return Err(fault("padded_offsets", status.to_string(), expected));
    };
    let which = usize::from(lists.slice(0, expert).is_some());
    let entry = lists.entry(which, expert).map_or("nothing".into(), |x| x.to_string());
    let (size, pool) = (lists.sizes[which], lists.pools[which].len());
    let expected = format!("a multiple of {ENTRY_ALIGN} with {size} bytes behind it inside a pool of {pool} bytes");
    Err(fault(["B_ptrs", "SFB_ptrs"][which], format!("offset {entry} of expert {expert}"), expected))
}

/// B of every expert that has rows: slices of the dense tensors, or of the pools.
fn weights<'a>(
    pools: [&'a [u8]; 2],
    sizes: [usize; 2],
    lists: Option<PoolLists<'a>>,
    groups: &[Range<usize>],
) -> Vec<[&'a [u8]; 2]> {
    let slice = |which: usize, expert: usize| match lists {
        Some(lists) => lists.slice(which, expert),
        None => pools[which].get(expert * sizes[which]..(expert + 1) * sizes[which]),
    };
    let both = |(expert, rows): (usize, &Range<usize>)| {
        // Entries of experts with rows were found usable.
        [0, 1].map(|which| slice(which, expert).filter(|_| !rows.is_empty()).unwrap_or_default())
    };
    groups.iter().enumerate().map(both).collect()
}
