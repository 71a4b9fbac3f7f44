//! What is compared in them: plans with each other, sizes of caches and devices, and the backward on a forward's results.

use super::super::{failed, must, once};
use super::problems::{big, decode, padded, prefill};
use crate::build::{graph, K, O, Q, STATS};
use crate::cases::{Case, Fwd, Lens, Logits, MaskKind, Pages, HOPPER};
use crate::judge::judge;
use crate::plan::{plan, Planned};
use crate::problem::{port_of, prepare};
use crate::run::{ready_with, Gpu};
use frostgraph::engines::{Knob, Target};
use frostgraph::plan::BuildOptions;
use frostgraph::{DType, Device, Result};

/// The forward's own O and Stats, as bytes, go into the backward; gradients are compared with those of the exact forward.
pub fn round_trip(gpu: &Gpu, seed: u64, first: &'static str, second: &'static str) -> Result<()> {
    let packed = Lens::Thd { q: vec![130, 0], kv: vec![100, 30], head_major: false, wide: false };
    let padded = Lens::Padded { q: vec![64, 130], kv: vec![130, 31] };
    for (n, lens) in [Lens::Full, padded, packed].into_iter().enumerate() {
        for (i, (d_qk, d_v)) in [(64, 64), (128, 128), (192, 128)].into_iter().enumerate() {
            // Types take turns, and both rows of a pass have both.
            let dtype = [DType::BF16, DType::F16][(n + i) % 2];
            let backward = Case {
                mask: MaskKind::Causal,
                h_kv: 2,
                sink: n == 0,
                lens: lens.clone(),
                d_qk,
                d_v,
                dtype,
                engine: second,
                ..Case::default()
            };
            let forward = Case { engine: first, ..backward.clone() };
            let mut b = must(gpu, &backward, seed)?;
            let mut f = must(gpu, &forward, seed)?;
            // The same operands: those of the backward.
            let tensors: Vec<(i64, Vec<u8>)> = b.prepared.tensors.clone().into_iter().collect();
            f.image.upload(0xff)?;
            for (uid, bytes) in tensors.iter().filter(|(uid, _)| f.prepared.tensors.contains_key(uid)) {
                if !f.prepared.owned.contains_key(uid) {
                    f.image.replace(*uid, bytes)?;
                }
            }
            f.queue(&gpu.stream)?;
            gpu.stream.synchronize()?;
            let after = f.image.download()?;
            b.image.upload(0xff)?;
            for uid in [O, STATS] {
                let (from, to) = (port_of(&f.prepared.facts, uid)?.0, port_of(&b.prepared.facts, uid)?.0);
                if from.stride != to.stride {
                    return Err(failed(format!("uid {uid} with strides {:?} and {:?}", from.stride, to.stride), "one layout"));
                }
                b.image.replace(uid, f.image.part(&after, uid))?;
            }
            b.queue(&gpu.stream)?;
            gpu.stream.synchronize()?;
            b.judge(&b.image.download()?).map_err(|e| e.at(format!("{second} after {forward}")))?;
        }
    }
    Ok(())
}

/// Every entry of the list, not the first alone.
pub fn every_plan(gpu: &Gpu, seed: u64) -> Result<()> {
    let wide = |d_qk, d_v, base: Case| Case { d_qk, d_v, s_q: 300, s_kv: 300, ..base };
    let mut ran = 0;
    for case in [prefill(), wide(128, 128, prefill()), wide(192, 128, prefill()), wide(256, 256, prefill()), decode()] {
        let built = graph(&case)?.build_with(&gpu.planned, &BuildOptions::all_engines())?;
        for plan in built.plans() {
            let mut r = ready_with(gpu, &case, &plan, built.nodes()[0].facts(), seed)?;
            let after = r.run(&gpu.stream, 0xff)?;
            r.judge(&after).map_err(|e| e.at(format!("{plan} of {case}")))?;
            r.image.untouched(&after, &r.prepared.owned)?;
            ran += 1;
        }
    }
    if ran < 15 {
        return Err(failed(format!("{ran} plans"), "several plans a graph"));
    }
    Ok(())
}

/// Plans as for other products of this architecture: the split count follows the SM count, the result may not.
pub fn sm_counts(gpu: &Gpu, seed: u64) -> Result<()> {
    for case in [decode(), Case { s_q: 1, h_kv: 1, s_kv: 1025, ..decode() }, prefill()] {
        for sms in [48, 76, 108, 132, 148, 188] {
            let mut target = gpu.planned.target.clone();
            if let Target::Cuda { sm_count, .. } = &mut target {
                *sm_count = sms;
            }
            let device = Device { target, ..gpu.planned.clone() };
            let built = graph(&case)?.build_with(&device, &BuildOptions::all_engines())?;
            let plan = built.best()?;
            let mut r = ready_with(gpu, &case, &plan, built.nodes()[0].facts(), seed)?;
            let after = r.run(&gpu.stream, 0xff)?;
            r.judge(&after).map_err(|e| e.at(format!("{plan} of {case} planned for {sms} SMs")))?;
        }
    }
    Ok(())
}

/// Clusters of CTAs that share their kv tiles against single ones that take the same tiles in another order. Problems that a device's L2 cache does not hold
/// take clusters; so plans are made for one with a small cache and few multiprocessors.
pub fn clusters(gpu: &Gpu, seed: u64) -> Result<()> {
    let mut target = gpu.planned.target.clone();
    if let Target::Cuda { sm_count, l2_bytes, .. } = &mut target {
        (*sm_count, *l2_bytes) = (4, 1 << 20);
    }
    let device = Device { target, ..gpu.planned.clone() };
    for (i, (d_qk, d_v)) in [(128, 128), (192, 128), (256, 256)].into_iter().enumerate() {
        for (j, mask) in [MaskKind::Causal, MaskKind::CausalBottomRight].into_iter().enumerate() {
            // Long by what is declared, short by the lengths: the oracle, which counts those, is quick.
            let (s_q, q, kv) = [(4096, [1100, 517], [1300, 700]), (4600, [1300, 77], [600, 1290])][j];
            let base = Case {
                engine: HOPPER,
                b: 2,
                h_q: 1,
                h_kv: 1,
                s_q,
                s_kv: 4700,
                d_qk,
                d_v,
                mask,
                lens: Lens::Padded { q: q.to_vec(), kv: kv.to_vec() },
                sink: j == 1,
                ..Case::default()
            };
            let dtype = [DType::BF16, DType::F16][(i + j) % 2];
            let mut outputs = Vec::new();
            for (sched, cluster) in [(2, 2), (1, 1)] {
                let case = Case { dtype, knobs: vec![(Knob::TileM, 128), (Knob::SchedPolicy, sched)], ..base.clone() };
                let (built, plan) = match plan(&case, &device)? {
                    Planned::Ready(p) => *p,
                    Planned::Declined(why) => return Err(failed(why, "a plan")),
                };
                let text = plan.lower()?.nodes[0].launches.to_string();
                if text.contains(", cluster 2") != (cluster == 2) {
                    return Err(failed(text, format!("clusters of {cluster}")));
                }
                let mut r = ready_with(gpu, &case, &plan, built.nodes()[0].facts(), seed)?;
                let after = r.run(&gpu.stream, 0xff)?;
                r.image.untouched(&after, &r.prepared.owned)?;
                r.judge(&after)?;
                outputs.push(r.outputs(&after));
            }
            if outputs[0] != outputs[1] {
                return Err(failed(format!("other bits with clusters: {base}"), "the same bits"));
            }
        }
    }
    Ok(())
}

pub fn many_lengths(gpu: &Gpu, seed: u64) -> Result<()> {
    // 61 shares no factor with page or tile: every remainder comes up.
    for s_kv in (1..2048).step_by(61) {
        let pages = Some(Pages { rows: 16, nhd: false, spare: 0 });
        let fwd = Fwd { pages, ..Fwd::default() };
        let base = Case { s_q: 1, s_kv, d_qk: 128, d_v: 128, mask: MaskKind::None, fwd, ..decode() };
        once(gpu, &padded(base, &[1, 1, 1, 0], &[s_kv, 1, s_kv / 2, s_kv]), seed)?;
    }
    Ok(())
}

/// The same keys in caches of several sizes: one graph each, every one within bounds, and the unsplit ones with the same bits.
pub fn capacity(gpu: &Gpu, seed: u64) -> Result<()> {
    let mut bits = Vec::new();
    for room in [400, 401, 1600] {
        let base = Case { s_kv: room, knobs: vec![(Knob::SplitKv, 1)], h_kv: 8, b: 1, ..decode() };
        let case = padded(base, &[3], &[400]);
        let mut r = must(gpu, &case, seed)?;
        let small = prepare(&padded(Case { s_kv: 400, ..case.clone() }, &[3], &[400]), &facts_at(&case, gpu, 400)?, seed)?;
        // One batch entry in sequence-major order: the first 400 keys of every cache are the small cache's bytes.
        r.image.upload(0xff)?;
        for uid in [Q, K, crate::build::V] {
            let bytes = &small.tensors[&uid];
            r.image.replace(uid, bytes)?;
        }
        r.queue(&gpu.stream)?;
        gpu.stream.synchronize()?;
        let after = r.image.download()?;
        for uid in [O, STATS] {
            judge(&case, &small, uid, r.image.part(&after, uid)).map_err(|e| e.at(format!("a cache of {room} rows")))?;
        }
        bits.push(r.outputs(&after));
    }
    if bits.iter().any(|b| *b != bits[0]) {
        return Err(failed("bits that depend on the cache's size", "equal bits"));
    }
    Ok(())
}

fn facts_at(case: &Case, gpu: &Gpu, s_kv: i64) -> Result<frostgraph::engines::Facts> {
    let near = graph(&Case { s_kv, ..case.clone() })?.build_with(&gpu.planned, &BuildOptions::all_engines())?;
    Ok(near.nodes()[0].facts().clone())
}

/// Values of the order of 1e30 pass through registers and shared memory first; the dead rows of the next call must be exactly zero.
pub fn dirty_tiles(gpu: &Gpu, seed: u64) -> Result<()> {
    let loud = Case { fwd: Fwd { logits: Logits::Loud, ..Fwd::default() }, ..big(64) };
    let dead = padded(Case { mask: MaskKind::CausalBottomRight, s_q: 256, s_kv: 64, ..prefill() }, &[256, 256], &[64, 0]);
    let (mut loud, mut r) = (must(gpu, &loud, seed)?, must(gpu, &dead, seed)?);
    for _ in 0..3 {
        let after = loud.run(&gpu.stream, 0xff)?;
        loud.judge(&after)?;
        let after = r.run(&gpu.stream, 0xff)?;
        r.judge(&after)?;
    }
    Ok(())
}
