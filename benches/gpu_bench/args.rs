//! The words of the command line; the head of `main` says what they mean.

use crate::peers::Peers;
use crate::rounds::{Pace, Turn};
use crate::CROSSOVER;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Default)]
pub(crate) struct Args {
    pub(crate) words: Vec<String>,
    suite: Option<String>,
    only: Option<String>,
    modes: Option<String>,
    pub(crate) peers: Option<PathBuf>,
    pub(crate) python: Option<String>,
    pub(crate) out: Option<PathBuf>,
    pub(crate) bundle: Option<PathBuf>,
    pub(crate) limits: Option<PathBuf>,
    rounds: Option<usize>,
    warm: Option<f64>,
    measure: Option<f64>,
    pub(crate) once: bool,
    pub(crate) metrics: bool,
    pub(crate) host: bool,
    pub(crate) no_host: bool,
    pub(crate) sweep: bool,
}

impl Args {
    pub(crate) fn parse() -> Args {
        let mut args = Args::default();
        let mut given = std::env::args().skip(1);
        while let Some(a) = given.next() {
            match a.as_str() {
                "--suite" => args.suite = given.next(),
                "--only" => args.only = given.next(),
                "--modes" => args.modes = given.next(),
                "--peers" => args.peers = given.next().map(Into::into),
                "--python" => args.python = given.next(),
                "--out" => args.out = given.next().map(Into::into),
                "--bundle" => args.bundle = given.next().map(Into::into),
                "--limits" => args.limits = given.next().map(Into::into),
                "--rounds" => args.rounds = given.next().and_then(|n| n.parse().ok()),
                "--warm" => args.warm = given.next().and_then(|n| n.parse().ok()),
                "--measure" => args.measure = given.next().and_then(|n| n.parse().ok()),
                "--once" => args.once = true,
                "--metrics" => args.metrics = true,
                "--host" => args.host = true,
                "--no-host" => args.no_host = true,
                "--sweep" => args.sweep = true,
                // `cargo bench` hands its own flags to every bench binary.
                flag if flag.starts_with('-') => {}
                word => args.words.push(word.to_owned()),
            }
        }
        args
    }

    pub(crate) fn wants(&self, case: &str) -> bool {
        self.only.as_ref().is_none_or(|o| o.split(',').any(|part| case.contains(part)))
    }

    /// Whether a plan of this name is timed.
    pub(crate) fn wants_mode(&self, mode: &str) -> bool {
        self.modes.as_ref().is_none_or(|m| m.split(',').any(|part| mode == part))
    }

    /// How a case is timed, where the command line says nothing else; turns aside are as long as usual.
    pub(crate) fn pace(&self, usual: Pace) -> Pace {
        let turn =
            Turn { warm_ms: self.warm.unwrap_or(usual.turn.warm_ms), measure_ms: self.measure.unwrap_or(usual.turn.measure_ms) };
        Pace { rounds: self.rounds.unwrap_or(usual.rounds), turn, ..usual }
    }

    /// The scripts with the peers of a suite, by title and words; none without `--peers`.
    pub(crate) fn groups(&self, script: &str, groups: &[(&str, &[&str])]) -> Vec<Peers> {
        let Some(folder) = &self.peers else { return Vec::new() };
        let seconds = std::env::var("FROSTGRAPH_PEER_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(60.0);
        let start = |(title, words): &(&str, &[&str])| {
            let python = self.python.as_deref().unwrap_or("python3");
            let command = [python.into(), folder.join(script).into_os_string()].into_iter();
            Peers::new(title, command.chain(words.iter().map(Into::into)).collect(), Duration::from_secs_f64(seconds))
        };
        groups.iter().map(start).collect()
    }

    /// Whether this suite is asked for.
    pub(crate) fn runs(&self, suite: &str) -> bool {
        self.suite.as_ref().map_or(suite != CROSSOVER, |s| s == suite)
    }
}
