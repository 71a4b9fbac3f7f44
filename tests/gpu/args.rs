//! The command line.

use crate::suite::Suite;
use std::path::PathBuf;

#[derive(Debug, Default)]
pub struct Args {
    pub words: Vec<String>,
    pub suite: Option<Suite>,
    pub seed: Option<u64>,
    pub workers: Option<usize>,
    pub evidence: Option<PathBuf>,
    pub bundle: Option<PathBuf>,
    /// Only the cases and specials of this row.
    pub engine: Option<String>,
}

impl Args {
    /// `None` for wrong usage.
    pub fn parse() -> Option<Args> {
        let mut args = Args::default();
        let mut given = std::env::args().skip(1);
        while let Some(a) = given.next() {
            match a.as_str() {
                "--suite" => args.suite = Some(Suite::parse(&given.next()?)?),
                "--seed" => args.seed = Some(given.next()?.parse().ok()?),
                "--workers" => args.workers = Some(given.next()?.parse().ok()?),
                "--evidence" => args.evidence = Some(given.next()?.into()),
                "--engine" => args.engine = Some(given.next()?),
                "--bundle" => args.bundle = Some(given.next()?.into()),
                // `cargo test` hands its own flags to every test binary.
                flag if flag.starts_with('-') => {}
                word => args.words.push(word.to_owned()),
            }
        }
        // A row that no case is for would pass with nothing run.
        let known = |e: &str| args.suites().into_iter().any(|s| s.cases().iter().any(|c| c.engine == e));
        if args.engine.as_deref().is_some_and(|e| !known(e)) {
            return None;
        }
        Some(args)
    }

    /// The suites of a command that may run both.
    pub fn suites(&self) -> Vec<Suite> {
        self.suite.map_or_else(|| Suite::ALL.to_vec(), |s| vec![s])
    }

    /// The suite of a command that counts cases.
    pub fn one_suite(&self) -> Suite {
        self.suite.unwrap_or(Suite::Bwd)
    }
}
