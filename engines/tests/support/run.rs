//! Runs the CPU engines on a case, and the oracle beside them.

use super::uid::*;
use super::{Buffer, Case, Layout};
use frostgraph_engines::sdpa::oracle::{OracleBackward, OracleForward};
use frostgraph_engines::sdpa::{Direction, Recipe, Scale, SdpaFacts};
use frostgraph_engines::{Facts, Feature, FeatureSet, HostBuffers, HostError, Knobs, LaunchPlan, Target, Uid};
use std::collections::BTreeMap;

impl Case {
    /// Facts of the forward or backward node, as the analyzer would state them for these operands.
    pub fn facts(&self, direction: Direction) -> SdpaFacts {
        let s = &self.spec;
        let mut features = FeatureSet::EMPTY;
        features.set_if(Feature::StatsLog2, s.log2);
        features.set_if(Feature::Thd, s.packed.is_some());
        features.set_if(Feature::Causal, s.mask.right == Some(0));
        let mut ports = self.ports.clone();
        match direction {
            Direction::Forward => {
                (ports.d_o, ports.dq, ports.dk, ports.dv) = (None, None, None, None);
                (ports.dbias, ports.dsink) = (None, None);
            }
            Direction::Backward => (ports.score_max, ports.score_sum_exp, ports.high_precision_o) = (None, None, None),
        }
        if s.recipe == Recipe::Nvfp4Qat {
            (ports.score_max, ports.score_sum_exp) = (None, None);
        }
        SdpaFacts {
            direction,
            recipe: s.recipe,
            invalid: None,
            b: s.b as i64,
            h_q: s.hq as i64,
            h_kv: s.hkv as i64,
            s_q: s.sq as i64,
            s_kv: s.skv as i64,
            d_qk: s.dqk as i64,
            d_v: s.dv as i64,
            page_size: s.page.map(|x| x as i64),
            dtype: s.dtype,
            uniform_dtype: true,
            dtype_o: s.dtype,
            bshd_layout: s.layout == Layout::Bshd,
            packed_layout: s.packed.is_some(),
            dense_layout: true,
            aligned_16: true,
            mask: s.mask,
            scale: if s.dynamic_scale { Scale::Dynamic(SCALE) } else { Scale::Static(s.scale) },
            features,
            wants_stats: true,
            stats_packing: None,
            max_total_seq_len_q: None,
            max_total_seq_len_kv: None,
            ports,
        }
    }

    fn outputs(&self, uids: &[Uid]) -> BTreeMap<Uid, Buffer> {
        let uids = uids.iter().filter(|u| self.spots.contains_key(u));
        uids.map(|u| (*u, Buffer::filled(self.spots[u].span * self.spots[u].port.dtype.bytes().unwrap() as usize, self.fill)))
            .collect()
    }

    /// Runs a CPU engine with a workspace of exactly the planned size; checks guards, and that only elements were written.
    pub fn execute(&self, facts: SdpaFacts, uids: &[Uid]) -> Result<BTreeMap<Uid, Buffer>, HostError> {
        let facts = Facts::Sdpa(Box::new(facts));
        let plan = plan(&facts);
        let mut workspace = Buffer::filled(plan.workspace_bytes as usize, self.fill);
        let mut outputs = self.outputs(uids);
        let mut buffers = HostBuffers {
            inputs: self.inputs.iter().map(|(u, b)| (*u, b.bytes())).collect(),
            outputs: outputs.iter_mut().map(|(u, b)| (*u, b.bytes_mut())).collect(),
            workspace: workspace.bytes_mut(),
        };
        let [frostgraph_engines::Step::Host(call)] = &plan.steps[..] else { panic!("one host step") };
        (call.run)(&facts, &Knobs::NONE, &mut buffers)?;
        workspace.check_guards("workspace");
        for (uid, buffer) in &outputs {
            self.check_untouched(*uid, buffer);
        }
        Ok(outputs)
    }

    /// Guards, stride gaps and packed slack keep their fill (rule S5, invariant I6).
    fn check_untouched(&self, uid: Uid, buffer: &Buffer) {
        let spot = &self.spots[&uid];
        buffer.check_guards(&spot.port.name);
        let size = spot.port.dtype.bytes().unwrap() as usize;
        let mut written = vec![false; spot.span];
        for (_, at) in spot.elements(1 << 20) {
            written[at] = true;
        }
        for (at, cell) in buffer.bytes().chunks_exact(size).enumerate() {
            assert!(written[at] || cell.iter().all(|&x| x == self.fill), "{}: a gap at element {at} was written", spot.port.name);
        }
    }

    pub fn forward(&self) -> Result<BTreeMap<Uid, Buffer>, HostError> {
        let uids: &[Uid] = match self.spec.recipe {
            Recipe::Plain => &[O, STATS, MAX, SUM],
            Recipe::Nvfp4Qat => &[O, HIGH, STATS],
        };
        self.execute(self.facts(Direction::Forward), uids)
    }

    /// Replaces the values of Q, K, V, dO or the bias, in the problem and in the buffer.
    pub fn set(&mut self, uid: Uid, values: Vec<f64>) {
        let rows = self.rows_of(uid);
        self.store(uid, rows, &values);
        match uid {
            Q => self.problem.q = values,
            K => self.problem.k = values,
            V => self.problem.v = values,
            DO => self.d_o = values,
            BIAS => self.problem.bias.as_mut().unwrap().0 = values,
            other => panic!("uid {other} is no value operand"),
        }
    }

    /// Puts `value` wherever no kept pair looks: rows past the lengths, keys that no query keeps, queries that keep no key.
    pub fn spoil(&mut self, value: f64) {
        let s = self.spec.clone();
        let p = self.problem.clone();
        let query_dead = |b: usize, i: usize| !(0..s.skv).any(|j| p.keeps(b, i, j));
        let key_dead = |b: usize, j: usize| !(0..s.sq).any(|i| p.keeps(b, i, j));
        for uid in [Q, DO, K, V, O] {
            let (heads, rows, key) = if uid == K || uid == V { (s.hkv, s.skv, true) } else { (s.hq, s.sq, false) };
            let Some(buffer) = self.inputs.get(&uid) else { continue };
            let mut dense = self.spots[&uid].read(buffer.bytes(), rows);
            let cols = dense.len() / (s.b * heads * rows);
            for (i, x) in dense.iter_mut().enumerate() {
                let (b, row) = (i / (heads * rows * cols), i / cols % rows);
                if if key { key_dead(b, row) } else { query_dead(b, row) } {
                    *x = value;
                }
            }
            self.store(uid, rows, &dense);
        }
    }

    /// Binds O and Stats of the oracle's forward as a caller would hold them: rounded to their types.
    pub fn bind_forward(&mut self) -> OracleForward {
        let want = self.problem.forward();
        self.store(O, self.spec.sq, &want.o);
        self.store(STATS, self.spec.sq, &want.stats);
        want
    }

    /// Backward with the oracle's O and Stats bound.
    pub fn backward(&mut self) -> Result<BTreeMap<Uid, Buffer>, HostError> {
        self.bind_forward();
        self.run_backward()
    }

    pub fn run_backward(&self) -> Result<BTreeMap<Uid, Buffer>, HostError> {
        self.execute(self.facts(Direction::Backward), &[DQ, DK, DV, DBIAS, DSINK])
    }

    /// Gradients of the oracle on the rounded O and Stats.
    pub fn expect_backward(&self) -> OracleBackward {
        let read = |u: Uid| self.spots[&u].read(self.inputs[&u].bytes(), self.spec.sq);
        self.problem.backward(&read(O), &read(STATS), &self.d_o)
    }

    pub fn rows_of(&self, uid: Uid) -> usize {
        match uid {
            DK | DV | K | V => self.spec.skv,
            SINK | DSINK => 1,
            _ => self.spec.sq,
        }
    }

    /// As a caller of NVFP4 QAT: the inputs of a node as the oracle takes them.
    pub fn view(&self) -> BTreeMap<Uid, &[u8]> {
        self.inputs.iter().map(|(u, b)| (*u, b.bytes())).collect()
    }
}

/// The plan of the CPU row that serves these facts.
pub fn plan(facts: &Facts) -> LaunchPlan {
    let f = facts.expect_sdpa();
    let lower = match (f.direction, f.recipe) {
        (Direction::Forward, Recipe::Plain) => frostgraph_engines::sdpa_fwd::cpu::lower,
        (Direction::Forward, Recipe::Nvfp4Qat) => frostgraph_engines::qat_fwd::cpu::lower,
        (Direction::Backward, _) => frostgraph_engines::sdpa_bwd::cpu::lower,
    };
    lower(facts, &Knobs::NONE, &Target::Cpu).unwrap_or_else(|d| panic!("{d}"))
}

/// Bytes of every output, for bitwise comparison.
pub fn bits(outputs: &BTreeMap<Uid, Buffer>) -> Vec<(Uid, Vec<u8>)> {
    outputs.iter().map(|(u, b)| (*u, b.bytes().to_vec())).collect()
}

/// Bytes of the elements only, for comparison between runs with different fill.
pub fn element_bits(case: &Case, outputs: &BTreeMap<Uid, Buffer>) -> Vec<(Uid, Vec<u64>)> {
    let of = |u: &Uid, b: &Buffer| case.spots[u].read(b.bytes(), case.rows_of(*u)).iter().map(|x| x.to_bits()).collect();
    outputs.iter().map(|(u, b)| (*u, of(u, b))).collect()
}
