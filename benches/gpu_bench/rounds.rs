//! How one case is timed: everyone who takes part holds what it needs, and they take turns, in rounds.
//!
//! A device's clock moves while it works: it starts low, rises, and under long load falls below where it settles. Two programs timed one after
//! the other are timed at two clocks. Here a case's times are taken in [`Pace::rounds`] rounds, in each of which every plan of ours and every
//! peer has one turn that begins with the same work unmeasured ([`Turn::warm_ms`]).
//!
//! What ran before still shows after 250 ms: FlashAttention-4's deterministic backward took 1.44 ms behind its default mode and 1.51 ms behind
//! itself. So from round to round everyone follows somebody else ([`order`]); in rounds there and back everyone has two predecessors for good,
//! and rotated rounds leave everyone the same one.

use crate::peers::Peers;
use serde_json::{json, Map, Value};

/// One turn: so long unmeasured, then so long measured. Both are of the whole loop, with the L2 cache overwritten before each launch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Turn {
    pub warm_ms: f64,
    pub measure_ms: f64,
}

/// Who takes short turns, among themselves and before the others: portable rows, and peers that are never the fastest of theirs.
#[derive(Debug, Clone, Copy)]
pub struct Aside {
    pub turn: Turn,
    pub names: &'static [&'static str],
}

impl Aside {
    pub const NOBODY: Aside = Aside { turn: Turn { warm_ms: 0.0, measure_ms: 0.0 }, names: &[] };
    /// At most.
    const ROUNDS: usize = 3;
}

/// How a case is timed.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// An odd number: a time is the median of the turns.
    pub rounds: usize,
    pub turn: Turn,
    /// Plans and peers that sit out every second round.
    pub seldom: &'static [&'static str],
    pub aside: Aside,
}

impl Pace {
    /// For a result file.
    pub fn json(self) -> Value {
        let Pace { rounds, turn, seldom, aside } = self;
        let mut told =
            json!({ "rounds": rounds, "warm_ms": turn.warm_ms, "measure_ms": turn.measure_ms, "in_every_second_round": seldom });
        if !aside.names.is_empty() {
            let (Turn { warm_ms, measure_ms }, rounds) = (aside.turn, rounds.min(Aside::ROUNDS));
            told["aside"] = json!({ "rounds": rounds, "warm_ms": warm_ms, "measure_ms": measure_ms, "names": aside.names });
        }
        told
    }

    fn is_aside(self, name: &str) -> bool {
        self.aside.names.contains(&name)
    }

    /// Whether who is called so takes part in this round; of three rounds nobody misses one.
    fn includes(self, name: &str, round: usize) -> bool {
        round.is_multiple_of(2) || self.rounds < 5 || !self.seldom.contains(&name)
    }

    /// All turns of a case, in order.
    pub fn turns(self, names: &[&str]) -> Vec<(usize, Turn)> {
        let (aside, others): (Vec<usize>, Vec<usize>) = (0..names.len()).partition(|&who| self.is_aside(names[who]));
        let mut turns = Vec::new();
        for round in 0..self.rounds.min(Aside::ROUNDS) {
            turns.extend(order(aside.len(), round).map(|at| (aside[at], self.aside.turn)));
        }
        for round in 0..self.rounds {
            let there = order(others.len(), round).map(|at| others[at]).filter(|&who| self.includes(names[who], round));
            turns.extend(there.map(|who| (who, self.turn)));
        }
        turns
    }
}

/// The order of a round: multiples of `round + 1` modulo the first prime that is not below `count`. In as many rounds as that prime has nonzero
/// residues, everyone follows everyone else once (where the prime is `count` itself; nearly so where it is larger).
fn order(count: usize, round: usize) -> impl Iterator<Item = usize> {
    let is_prime = |n: &usize| (2..*n).all(|d| !n.is_multiple_of(d));
    let prime = (count.max(2)..).find(is_prime).unwrap_or(count);
    let stride = round % (prime - 1) + 1;
    (0..prime).map(move |step| step * stride % prime).filter(move |&at| at < count)
}

/// The method in words, for a result file.
pub const METHOD: &str = "every plan of ours and every peer of a case holds its operands and takes one turn in each of the rounds (those of \
                          in_every_second_round in three of five), following another one in each round; those of `aside` take turns among \
                          themselves before, as `aside` says; a turn runs its work for warm_ms unmeasured and then for about measure_ms (2 to \
                          100 launches, the L2 cache overwritten before each) and counts the median launch; a time is the median of the turns, \
                          `turns` lists them in order, `spread` is (largest - smallest) / median; ratios are of these times";

/// Milliseconds of a turn, or why there are none.
pub type Take<'a> = Box<dyn FnMut(Turn) -> Result<f64, String> + 'a>;

/// One plan of ours.
pub struct Own<'a> {
    pub name: String,
    /// What is known of it besides its time.
    pub about: Value,
    /// Operations that count.
    pub flops: f64,
    /// Takes a turn; absent where it could not be prepared.
    pub turn: Option<Take<'a>>,
}

/// What one that took part has shown.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    pub turns: Vec<f64>,
    pub error: Option<String>,
}

/// The middle one, or the mean of the two in the middle, as the peers' scripts take it.
pub fn median(times: &[f64]) -> Option<f64> {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted.len().checked_sub(1)? / 2, sorted.len() / 2);
    Some((sorted[low] + sorted[high]) / 2.0)
}

impl Outcome {
    /// The median of the turns; one that failed in a later round has none.
    pub fn ms(&self) -> Option<f64> {
        self.error.is_none().then(|| median(&self.turns)).flatten()
    }

    /// How far the turns are apart, as a share of their median.
    pub fn spread(&self) -> Option<f64> {
        let least = self.turns.iter().copied().min_by(f64::total_cmp)?;
        let most = self.turns.iter().copied().max_by(f64::total_cmp)?;
        Some((most - least) / self.ms()?)
    }

    /// Adds what there is to `about`, with the time under `key`.
    fn onto(&self, mut about: Value, key: &str, flops: Option<f64>) -> Value {
        match (self.ms(), &self.error) {
            (Some(ms), _) => {
                (about[key], about["turns"], about["spread"]) = (json!(ms), json!(self.turns), json!(self.spread()));
                if let Some(flops) = flops {
                    about["tflops"] = json!(flops / ms / 1e9);
                }
            }
            (None, error) => about["error"] = json!(error),
        }
        about
    }
}

/// They take their turns; who fails once is out.
pub fn alternate(names: &[&str], pace: Pace, mut turn: impl FnMut(usize, Turn) -> Result<f64, String>) -> Vec<Outcome> {
    let mut outcomes = vec![Outcome::default(); names.len()];
    for (who, length) in pace.turns(names) {
        if outcomes[who].error.is_none() {
            match turn(who, length) {
                Ok(ms) => outcomes[who].turns.push(ms),
                Err(why) => outcomes[who].error = Some(why),
            }
        }
    }
    outcomes
}

/// One case of ours beside the peers that `asked` is for: `{"case", "ours", "peers", "throughput_ratio"}` with times under `key`.
pub fn case(name: &str, key: &str, pace: Pace, mut own: Vec<Own>, groups: &mut [Peers], asked: &Value) -> Value {
    let flops = own.first().map(|o| o.flops).filter(|f| *f > 0.0);
    let prepared = Peers::prepare(groups, asked);
    let able: Vec<(usize, &String)> =
        prepared.iter().enumerate().flat_map(|(g, p)| p.able.iter().map(move |peer| (g, peer))).collect();
    let count = own.len();
    let all: Vec<String> = own.iter().map(|o| o.name.clone()).chain(able.iter().map(|(_, peer)| (*peer).clone())).collect();
    let names: Vec<&str> = all.iter().map(String::as_str).collect();
    let outcomes = alternate(&names, pace, |who, turn| match who.checked_sub(count) {
        None => match &mut own[who].turn {
            Some(take) => take(turn),
            None => Err("not prepared".into()),
        },
        Some(peer) => groups[able[peer].0].turn(able[peer].1, turn),
    });
    let told = |about: &Value, name: &str| match (about.clone(), pace.is_aside(name)) {
        (mut about, true) => {
            about["aside"] = json!(true);
            about
        }
        (about, false) => about,
    };
    let mut ours = Map::new();
    for (o, outcome) in own.iter().zip(&outcomes) {
        let flops = Some(o.flops).filter(|f| *f > 0.0);
        let shown = if o.turn.is_some() { outcome.onto(told(&o.about, &o.name), key, flops) } else { o.about.clone() };
        ours.insert(o.name.clone(), shown);
    }
    let mut peers: Map<String, Value> =
        prepared.iter().flat_map(|p| &p.errors).map(|(peer, why)| (peer.clone(), json!({ "error": why }))).collect();
    for ((group, peer), outcome) in able.iter().zip(&outcomes[count..]) {
        let about = prepared[*group].notes.get(*peer).cloned().unwrap_or_else(|| json!({}));
        peers.insert((*peer).clone(), outcome.onto(told(&about, peer), key, flops));
    }
    drop(own);
    Peers::free(groups);
    joined(name, key, ours, peers)
}

/// With the throughput of every plan of ours over every peer's.
fn joined(name: &str, key: &str, ours: Map<String, Value>, peers: Map<String, Value>) -> Value {
    let mut ratios = Map::new();
    for (mode, mine) in &ours {
        for (peer, theirs) in &peers {
            if let (Some(mine), Some(theirs)) = (mine[key].as_f64(), theirs[key].as_f64()) {
                ratios.insert(format!("{mode}/{peer}"), json!(theirs / mine));
            }
        }
    }
    json!({ "case": name, "ours": ours, "peers": peers, "throughput_ratio": ratios })
}

/// Versions of what the peers run and the first script's ceiling, as a result file has them.
pub fn about(groups: &mut [Peers]) -> Value {
    let ceiling = groups.first_mut().and_then(Peers::ceiling);
    let versions: Vec<&str> = groups.iter().filter_map(Peers::versions).collect();
    json!([{ "versions": versions.join(", ") }, ceiling])
}

/// One line for a person.
pub fn line(case: &Value, key: &str) -> String {
    let mut row = format!("{:<40}", case["case"].as_str().unwrap_or_default());
    for list in ["ours", "peers"] {
        for (name, r) in case[list].as_object().into_iter().flatten() {
            match r[key].as_f64() {
                Some(ms) => row += &format!(" | {name} {ms:.4} ms ±{:.1}%", r["spread"].as_f64().unwrap_or(0.0) * 50.0),
                None => row += &format!(" | {name} {:.60}", r["error"].as_str().unwrap_or("failed")),
            }
        }
    }
    row
}
