//! How one case is timed: everyone who takes part holds what it needs, and they take turns, in rounds.
//!
//! A device's clock moves while it works: it starts low, rises, and falls again under long load. Two programs timed one after the other
//! are timed at two clocks. Here a case's times are taken in [`Pace::rounds`] rounds; in each every plan of ours and every peer has one turn,
//! in every second round in the opposite order, and a turn begins with the same work unmeasured ([`Turn::warm_ms`]).

use crate::peers::Peers;
use serde_json::{json, Map, Value};

/// One turn: so long unmeasured, then so long measured. Both are of the whole loop, with the L2 cache overwritten before each launch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Turn {
    pub warm_ms: f64,
    pub measure_ms: f64,
}

/// How a case is timed.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// An odd number: a time is the median of the turns.
    pub rounds: usize,
    pub turn: Turn,
    /// Plans and peers that sit out every second round: portable rows, and peers that are rarely the fastest of theirs.
    pub seldom: &'static [&'static str],
}

impl Pace {
    /// For a result file.
    pub fn json(self) -> Value {
        let Pace { rounds, turn, seldom } = self;
        json!({ "rounds": rounds, "warm_ms": turn.warm_ms, "measure_ms": turn.measure_ms, "in_every_second_round": seldom })
    }

    /// Whether who is called so takes part in this round; of three rounds nobody misses one.
    fn includes(self, name: &str, round: usize) -> bool {
        round.is_multiple_of(2) || self.rounds < 5 || !self.seldom.contains(&name)
    }
}

/// The method in words, for a result file.
pub const METHOD: &str = "every plan of ours and every peer of a case holds its operands and takes one turn in each of the rounds (those of \
                          in_every_second_round in three of five), in every second \
                          round in the opposite order; a turn runs its work for warm_ms unmeasured and then for about measure_ms (2 to 100 \
                          launches, the L2 cache overwritten before each) and counts the median launch; a time is the median of the turns, \
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

/// They take turns, each in the rounds that the pace has it in; who fails once is out.
pub fn alternate(names: &[&str], pace: Pace, mut turn: impl FnMut(usize) -> Result<f64, String>) -> Vec<Outcome> {
    let mut outcomes = vec![Outcome::default(); names.len()];
    for round in 0..pace.rounds {
        for step in 0..names.len() {
            let who = if round % 2 == 0 { step } else { names.len() - 1 - step };
            if outcomes[who].error.is_none() && pace.includes(names[who], round) {
                match turn(who) {
                    Ok(ms) => outcomes[who].turns.push(ms),
                    Err(why) => outcomes[who].error = Some(why),
                }
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
    let outcomes = alternate(&names, pace, |who| match who.checked_sub(count) {
        None => match &mut own[who].turn {
            Some(take) => take(pace.turn),
            None => Err("not prepared".into()),
        },
        Some(peer) => groups[able[peer].0].turn(able[peer].1, pace.turn),
    });
    let mut ours = Map::new();
    for (o, outcome) in own.iter().zip(&outcomes) {
        let flops = Some(o.flops).filter(|f| *f > 0.0);
        let shown = if o.turn.is_some() { outcome.onto(o.about.clone(), key, flops) } else { o.about.clone() };
        ours.insert(o.name.clone(), shown);
    }
    let mut peers: Map<String, Value> =
        prepared.iter().flat_map(|p| &p.errors).map(|(peer, why)| (peer.clone(), json!({ "error": why }))).collect();
    for ((group, peer), outcome) in able.iter().zip(&outcomes[count..]) {
        let about = prepared[*group].notes.get(*peer).cloned().unwrap_or_else(|| json!({}));
        peers.insert((*peer).clone(), outcome.onto(about, key, flops));
    }
    drop(own);
    groups.iter_mut().for_each(Peers::free);
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
