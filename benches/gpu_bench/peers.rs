//! The peers: scripts in processes of their own that hold what a case needs and take turns when they are asked.
//!
//! One line of JSON is answered by one line of JSON; `benches/peers_timing.py` is the other side and lists the questions. A script that dies
//! or is late with an answer is ended and costs its case; the next case starts it again, [`LIVES`] times in all.

use crate::rounds::Turn;
use serde_json::{json, Map, Value};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{channel, Receiver};
use std::time::{Duration, Instant};

/// How many processes a script may use up.
const LIVES: usize = 3;

/// One script.
pub struct Peers {
    command: Vec<OsString>,
    limit: Duration,
    process: Option<Process>,
    lives: usize,
    /// Its peers; before it has told them, its title.
    names: Vec<String>,
    versions: Option<String>,
}

struct Process {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
    greeted: bool,
}

/// What a script said to a case.
#[derive(Debug, Default)]
pub struct Prepared {
    /// Peers that can take turns.
    pub able: Vec<String>,
    /// Peers that cannot, each with its reason.
    pub errors: Map<String, Value>,
    /// Further facts, by peer.
    pub notes: Map<String, Value>,
}

impl Process {
    fn start(command: &[OsString]) -> Result<Process, String> {
        let (program, words) = command.split_first().ok_or("no program")?;
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| format!("{}: {e}", program.to_string_lossy()))?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else { return Err("no pipes".into()) };
        let (sender, lines) = channel();
        // Ends with the child's stdout.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(std::result::Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Process { child, stdin, lines, greeted: false })
    }

    /// The next line that is an object.
    fn answer(&self, limit: Duration) -> Result<Value, String> {
        let end = Instant::now() + limit;
        loop {
            let rest = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(rest) {
                Ok(line) => match serde_json::from_str::<Value>(&line) {
                    Ok(value) if value.is_object() => return Ok(value),
                    Ok(_) | Err(_) => {}
                },
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                    return Err(format!("stopped after {} s", limit.as_secs_f64()))
                }
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return Err("the process ended".into()),
            }
        }
    }

    fn tell(&mut self, question: &Value) -> Result<(), String> {
        writeln!(self.stdin, "{question}").and_then(|()| self.stdin.flush()).map_err(|_| "the process ended".to_owned())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Already gone or about to be: neither failure changes anything.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Peers {
    /// The script that `command` starts; `limit` is the time for one answer. The process begins to load what it needs at once.
    pub fn new(title: &str, command: Vec<OsString>, limit: Duration) -> Peers {
        let mut peers = Peers { command, limit, process: None, lives: LIVES, names: vec![title.to_owned()], versions: None };
        // A program that cannot be started says so in every case.
        let _ = peers.alive();
        peers
    }

    /// Versions of what it runs, once it has told them.
    pub fn versions(&self) -> Option<&str> {
        self.versions.as_deref()
    }

    /// Starts the process where none is running.
    fn alive(&mut self) -> Result<(), String> {
        let ended = self.process.as_mut().is_some_and(|p| !matches!(p.child.try_wait(), Ok(None)));
        if ended {
            self.process = None;
        }
        if self.process.is_none() {
            self.lives = self.lives.checked_sub(1).ok_or("given up after its earlier failures")?;
            self.process = Some(Process::start(&self.command)?);
        }
        Ok(())
    }

    fn told(&mut self, question: &Value) -> Result<(), String> {
        let process = self.process.as_mut().ok_or("its process has ended")?;
        let result = process.tell(question);
        self.kept(result)
    }

    fn heard(&mut self) -> Result<Value, String> {
        let limit = self.limit;
        let process = self.process.as_mut().ok_or("its process has ended")?;
        let mut result = Ok(Value::Null);
        if !process.greeted {
            process.greeted = true;
            result = process.answer(limit);
        }
        if let Ok(greeting) = &result {
            if let Some(ready) = greeting["ready"].as_array() {
                self.names = ready.iter().filter_map(Value::as_str).map(str::to_owned).collect();
                self.versions = greeting["versions"].as_str().map(str::to_owned);
            }
            result = process.answer(limit);
        }
        self.kept(result)
    }

    /// A process that failed to answer is ended: whatever it says later would be taken for the answer to another question.
    fn kept<T>(&mut self, result: Result<T, String>) -> Result<T, String> {
        if result.is_err() {
            self.process = None;
        }
        result
    }

    fn ask(&mut self, question: &Value) -> Result<Value, String> {
        self.told(question)?;
        self.heard()
    }

    /// What the script's library reaches at best, as it says it.
    pub fn ceiling(&mut self) -> Option<Value> {
        self.alive().and_then(|()| self.ask(&json!({ "ceiling": true }))).ok()
    }

    /// Asks the scripts to prepare a case, all at the same time.
    pub fn prepare(groups: &mut [Peers], case: &Value) -> Vec<Prepared> {
        let told: Vec<Result<(), String>> =
            groups.iter_mut().map(|g| g.alive().and_then(|()| g.told(&json!({ "prepare": case })))).collect();
        groups.iter_mut().zip(told).map(|(group, told)| group.prepared(told)).collect()
    }

    fn prepared(&mut self, told: Result<(), String>) -> Prepared {
        let answer = told.and_then(|()| self.heard());
        let why = match &answer {
            Ok(answer) => answer["error"].as_str().map(str::to_owned),
            Err(why) => Some(why.clone()),
        };
        let mut found = Prepared::default();
        if let Some(why) = why {
            found.errors = self.names.iter().map(|n| (n.clone(), json!(why))).collect();
        } else if let Ok(answer) = answer {
            let object = |key: &str| answer[key].as_object().cloned().unwrap_or_default();
            found.able = answer["peers"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
            (found.errors, found.notes) = (object("errors"), object("notes"));
        }
        found
    }

    /// Milliseconds of a peer's turn. A process that has ended is not started again before the next case.
    pub fn turn(&mut self, peer: &str, turn: Turn) -> Result<f64, String> {
        let answer = self.ask(&json!({ "turn": peer, "warm_ms": turn.warm_ms, "measure_ms": turn.measure_ms }))?;
        answer["ms"].as_f64().ok_or_else(|| answer["error"].as_str().unwrap_or("an answer without a time").to_owned())
    }

    /// Lets go of what the case needed, all at the same time.
    pub fn free(groups: &mut [Peers]) {
        // A process that fails here has been ended, which frees as much.
        let told: Vec<bool> = groups.iter_mut().map(|g| g.told(&json!({ "free": true })).is_ok()).collect();
        for (group, _) in groups.iter_mut().zip(told).filter(|(_, told)| *told) {
            let _ = group.heard();
        }
    }
}
