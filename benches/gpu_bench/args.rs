//! The words of the command line; the head of `main` says what they mean.

use crate::peers::Peers;
use crate::rounds::{Pace, Turn};
use std::path::PathBuf;
use std::time::Duration;

/// Has no peers and is no speed to quote: it runs where it is named.
pub(crate) const CROSSOVER: &str = "crossover";

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

fn number(option: &str, text: &str, least: f64) -> Result<f64, String> {
    let found = text.parse::<f64>().ok().filter(|x| (least..1e6).contains(x));
    found.ok_or_else(|| format!("{option} {text}; a number of at least {least} is expected"))
}

impl Args {
    /// The command line's words. What is no option, no value of one or no suite is an error: a typing mistake would otherwise time nothing,
    /// or time it in another way.
    pub(crate) fn parse(mut given: impl Iterator<Item = String>, suites: &[&str]) -> Result<Args, String> {
        let mut args = Args::default();
        while let Some(option) = given.next() {
            let mut value = || given.next().ok_or_else(|| format!("{option} without a value"));
            match option.as_str() {
                "--suite" => args.suite = Some(value()?),
                "--only" => args.only = Some(value()?),
                "--modes" => args.modes = Some(value()?),
                "--peers" => args.peers = Some(value()?.into()),
                "--python" => args.python = Some(value()?),
                "--out" => args.out = Some(value()?.into()),
                "--bundle" => args.bundle = Some(value()?.into()),
                "--limits" => args.limits = Some(value()?.into()),
                "--rounds" => args.rounds = Some(number(&option, &value()?, 1.0)? as usize),
                "--warm" => args.warm = Some(number(&option, &value()?, 0.0)?),
                "--measure" => args.measure = Some(number(&option, &value()?, 0.0)?),
                "--once" => args.once = true,
                "--metrics" => args.metrics = true,
                "--host" => args.host = true,
                "--no-host" => args.no_host = true,
                "--sweep" => args.sweep = true,
                // `cargo bench` hands it to every bench binary, and `cargo test` hands on what its own are given.
                "--bench" | "--nocapture" | "--quiet" | "--test" => {}
                flag if flag.starts_with('-') => return Err(format!("{flag} is no option")),
                word => args.words.push(word.to_owned()),
            }
        }
        match &args.suite {
            Some(suite) if !suites.contains(&suite.as_str()) => {
                Err(format!("{suite} is no suite; there are {}", suites.join(", ")))
            }
            Some(_) | None => Ok(args),
        }
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
