//! What a verb gives back, and exit statuses.

use frostgraph::{Error, ErrorCode};
use serde_json::{json, Value};
use std::process::ExitCode;

/// Result of a verb in both forms.
#[derive(Debug)]
pub struct Report {
    /// Text for people, newline-terminated.
    pub human: String,
    /// The same for programs.
    pub json: Value,
    /// Lines for standard error.
    pub notes: Vec<String>,
    /// Exit status.
    pub exit: Exit,
}

impl Report {
    /// A report of a verb that did what it was asked to.
    pub fn success(human: String, json: Value) -> Report {
        Report { human, json, notes: Vec::new(), exit: Exit::Success }
    }
}

/// Exit statuses; the numbers are documented and stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Success,
    /// A comparison failed: results are outside the tolerance, or a generated file is stale.
    CheckFailed,
    /// The command line is wrong: an unknown flag, plan, engine, knob or device.
    Usage,
    /// A graph or data file is wrong.
    BadInput,
    /// No engine serves the graph, or the chosen one declines.
    NoPlan,
    /// A file cannot be read or written.
    Io,
    /// The CUDA runtime is missing or failed.
    Cuda,
}

/// Shown under `--help` and in the README.
pub const EXIT_HELP: &str = "\
Exit status:
  0  done
  1  a check failed: results outside the tolerance, or a stale generated file
  2  usage: unknown flag, plan, engine, knob or device
  3  bad input: a graph, its data or a tensor file
  4  no plan: no engine serves the graph, or the chosen one declines
  5  a file cannot be read or written
  6  the CUDA runtime is missing or failed

Environment:
  FROSTGRAPH_ENABLE_FROST_ENGINES=1  offer the opt-in engines (synonym: CUDNN_FRONTEND_ENABLE_FROST_ENGINES)
  FROSTGRAPH_DISABLE_ENGINES=a,b     leave engines out by name
  FROSTGRAPH_LOG=debug               log filter, to standard error";

impl Exit {
    /// Number of the status.
    pub fn number(self) -> u8 {
        match self {
            Exit::Success => 0,
            Exit::CheckFailed => 1,
            Exit::Usage => 2,
            Exit::BadInput => 3,
            Exit::NoPlan => 4,
            Exit::Io => 5,
            Exit::Cuda => 6,
        }
    }

    /// Status of an error.
    pub fn of(e: &Error) -> Exit {
        match e.code {
            ErrorCode::CheckFailed => Exit::CheckFailed,
            ErrorCode::Usage | ErrorCode::PlanIndex | ErrorCode::UnknownEngine | ErrorCode::BadKnob | ErrorCode::BadDevice => {
                Exit::Usage
            }
            ErrorCode::NoPlan | ErrorCode::Declined => Exit::NoPlan,
            ErrorCode::FileRead | ErrorCode::FileWrite => Exit::Io,
            code if code.code().starts_with("FG6") => Exit::Cuda,
            _ => Exit::BadInput,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(e: Exit) -> ExitCode {
        ExitCode::from(e.number())
    }
}

/// An error for programs.
pub fn error_json(e: &Error, exit: Exit) -> Value {
    json!({ "error": {
        "code": e.code.code(),
        "at": e.at,
        "given": e.given,
        "expected": e.expected,
        "help": e.help,
        "details": e.details,
        "exit": exit.number(),
    }})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_code_has_a_status_and_no_error_is_a_success() {
        for code in ErrorCode::ALL {
            let exit = Exit::of(&Error::new(*code, "given", "expected"));
            assert_ne!(exit, Exit::Success, "{}", code.code());
            let family = &code.code()[..3];
            let expected = match family {
                "FG1" | "FG2" | "FG4" => Some(Exit::BadInput),
                "FG6" => Some(Exit::Cuda),
                _ => None,
            };
            assert!(expected.is_none_or(|x| x == exit), "{} gives {exit:?}", code.code());
        }
    }

    #[test]
    fn help_lists_every_status() {
        let all = [Exit::Success, Exit::CheckFailed, Exit::Usage, Exit::BadInput, Exit::NoPlan, Exit::Io, Exit::Cuda];
        for (i, e) in all.into_iter().enumerate() {
            assert_eq!(e.number() as usize, i);
            assert!(EXIT_HELP.contains(&format!("\n  {i}  ")), "{i}");
        }
    }
}
