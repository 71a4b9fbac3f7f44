//! Worker processes: each runs items one at a time and says so, the parent kills one that hangs and goes on with the next item.

use crate::run::{run_case, Gpu, Outcome};
use crate::suite::Suite;
use crate::verdict::Verdict;
use serde_json::{json, Value};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// An item: index into a suite's case list, or into its specials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item {
    Case(Suite, usize),
    Special(Suite, usize),
}

impl Item {
    fn code(self) -> String {
        match self {
            Item::Case(s, i) => format!("case {} {i}", s.name()),
            Item::Special(s, i) => format!("special {} {i}", s.name()),
        }
    }

    fn parse(line: &str) -> Option<Item> {
        let (kind, rest) = line.trim().split_once(' ')?;
        let (suite, index) = rest.split_once(' ')?;
        let (suite, index) = (Suite::parse(suite)?, index.parse().ok()?);
        match kind {
            "case" => Some(Item::Case(suite, index)),
            "special" => Some(Item::Special(suite, index)),
            _ => None,
        }
    }

    /// Longest time one item may take; compiling its kernels is part of it.
    fn limit(self) -> Duration {
        Duration::from_secs(match self {
            Item::Case(..) => 60,
            Item::Special(..) => 150,
        })
    }
}

fn evaluate(gpu: &Gpu, item: Item, seed: u64) -> Verdict {
    let result = match item {
        Item::Case(suite, i) => {
            let all = suite.cases();
            run_case(gpu, &all[i], seed ^ (i as u64) << 20).map(|o| match o {
                Outcome::Passed { error } => Verdict::Passed(error),
                Outcome::Skipped(why) => Verdict::Skipped(why),
            })
        }
        Item::Special(suite, i) => {
            let special = &suite.specials()[i];
            (special.run)(gpu, special.engine, seed).map(|()| Verdict::Passed(0.0))
        }
    };
    result.unwrap_or_else(|e| if e.help == "skip" { Verdict::Skipped(e.given.clone()) } else { Verdict::Failed(e.to_string()) })
}

/// The worker's side: one item a line on stdin, one JSON line each on stdout.
pub fn worker(seed: u64) {
    let gpu = Gpu::open(0);
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let Some(item) = Item::parse(&line) else { continue };
        let verdict = match &gpu {
            Ok(gpu) => evaluate(gpu, item, seed),
            Err(e) => Verdict::Failed(e.to_string()),
        };
        let out = match verdict {
            Verdict::Passed(error) => json!({ "passed": error }),
            Verdict::Failed(why) => json!({ "failed": why }),
            Verdict::Skipped(why) => json!({ "skipped": why }),
        };
        println!("{out}");
        let _ = std::io::stdout().flush();
    }
}

struct Worker {
    child: Child,
    lines: mpsc::Receiver<String>,
}

fn start(seed: u64) -> std::io::Result<Worker> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["worker", &seed.to_string()])
        .env("RAYON_NUM_THREADS", "2")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (send, lines) = mpsc::channel();
    if let Some(out) = child.stdout.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
    }
    Ok(Worker { child, lines })
}

fn parse(line: &str) -> Option<Verdict> {
    let v: Value = serde_json::from_str(line).ok()?;
    let text = |key: &str| v.get(key).and_then(Value::as_str).map(str::to_owned);
    v.get("passed")
        .and_then(Value::as_f64)
        .map(Verdict::Passed)
        .or_else(|| text("failed").map(Verdict::Failed))
        .or_else(|| text("skipped").map(Verdict::Skipped))
}

fn ask(worker: &mut Worker, item: Item) -> Verdict {
    let sent = worker.child.stdin.as_mut().is_some_and(|i| writeln!(i, "{}", item.code()).and_then(|()| i.flush()).is_ok());
    let start = Instant::now();
    loop {
        match worker.lines.recv_timeout(item.limit().saturating_sub(start.elapsed())) {
            Ok(line) => {
                if let Some(v) = parse(&line) {
                    return v;
                }
            }
            Err(mpsc::RecvTimeoutError::Timeout) => return Verdict::Failed(format!("no answer within {:?}", item.limit())),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let status = worker.child.wait().map_or_else(|e| e.to_string(), |s| s.to_string());
                let how = if sent { "in" } else { "before" };
                return Verdict::Failed(format!("the worker ended {how} this item: {status}"));
            }
        }
    }
}

/// Runs the items on `workers` processes; verdicts in the order of the items.
pub fn run_all(items: &[Item], workers: usize, seed: u64, progress: bool) -> Vec<Verdict> {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let slots: Vec<std::sync::Mutex<Option<Verdict>>> = items.iter().map(|_| std::sync::Mutex::new(None)).collect();
    let serve = || {
        let mut worker: Option<Worker> = None;
        loop {
            let i = next.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let Some(&item) = items.get(i) else { break };
            let verdict = match worker.take().map_or_else(|| start(seed), Ok) {
                Ok(mut w) => {
                    let verdict = ask(&mut w, item);
                    // After a failure the context may be lost, and a special may have spoilt it on purpose: begin afresh.
                    if matches!(verdict, Verdict::Failed(_)) || matches!(item, Item::Special(..)) {
                        end(w);
                    } else {
                        worker = Some(w);
                    }
                    verdict
                }
                Err(e) => Verdict::Failed(format!("no worker process: {e}")),
            };
            if let (true, Verdict::Failed(why)) = (progress, &verdict) {
                eprintln!("FAILED {}: {why}", item.code());
            }
            if progress && i % 100 == 99 {
                eprintln!("{} of {} items", i + 1, items.len());
            }
            *slots[i].lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(verdict);
        }
        if let Some(w) = worker {
            end(w);
        }
    };
    std::thread::scope(|s| {
        for _ in 0..workers.max(1) {
            s.spawn(serve);
        }
    });
    let take = |m: std::sync::Mutex<Option<Verdict>>| m.into_inner().ok().flatten();
    slots.into_iter().map(|m| take(m).unwrap_or_else(|| Verdict::Failed("not run".into()))).collect()
}

fn end(mut w: Worker) {
    drop(w.child.stdin.take());
    let _ = w.child.kill();
    let _ = w.child.wait();
}
