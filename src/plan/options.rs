//! How a graph is built.

use super::env;
use crate::{Error, ErrorCode, Result};
use frostgraph_engines::{row_by_name, Maturity, Mode, Row};

/// Options of [`Graph::build_with`](crate::Graph::build_with). The default reads the engine switches from the environment at every build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildOptions {
    /// Heuristic modes in order; an entry that an earlier mode proposed keeps its earlier place.
    pub modes: Vec<Mode>,
    /// Offer opt-in engines; `None` asks `FROSTGRAPH_ENABLE_FROST_ENGINES` (1, true, yes, on).
    pub enable_opt_in: Option<bool>,
    /// Engines to leave out, by exact name; `None` asks `FROSTGRAPH_DISABLE_ENGINES` (names separated by commas).
    pub disable: Option<Vec<String>>,
    /// Most workspace bytes a plan may need, virtual tensors included; a larger one is declined when it is chosen.
    pub workspace_limit: Option<u64>,
    /// Succeed although some node has no plan, so that facts and declines can be looked at; selecting then fails instead.
    pub allow_empty: bool,
}

impl Default for BuildOptions {
    fn default() -> BuildOptions {
        BuildOptions {
            modes: vec![Mode::A, Mode::Fallback],
            enable_opt_in: None,
            disable: None,
            workspace_limit: None,
            allow_empty: false,
        }
    }
}

impl BuildOptions {
    /// Options that ignore the environment: every engine is offered, opt-in ones included.
    pub fn all_engines() -> BuildOptions {
        BuildOptions { enable_opt_in: Some(true), disable: Some(Vec::new()), ..BuildOptions::default() }
    }

    /// Options that ignore the environment: engines that are offered by default.
    pub fn default_engines() -> BuildOptions {
        BuildOptions { enable_opt_in: Some(false), disable: Some(Vec::new()), ..BuildOptions::default() }
    }
}

/// Which engines are offered, resolved once per build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EngineSwitches {
    opt_in: bool,
    disabled: Vec<String>,
}

/// Why a row is not offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Off {
    OptIn,
    ByName,
}

impl EngineSwitches {
    /// Explicit options win over the environment. A name that no engine has is the caller's slip when given in code, and a
    /// warning when it comes from the environment, which may be older or newer than the library.
    pub fn resolve(options: &BuildOptions) -> Result<EngineSwitches> {
        let env = env::from_process();
        let disabled = match &options.disable {
            Some(names) => {
                for name in names {
                    if row_by_name(name).is_none() {
                        let expected = "names of engines, as plan names begin";
                        return Err(Error::new(ErrorCode::UnknownEngine, format!("disabled engine '{name}'"), expected));
                    }
                }
                names.clone()
            }
            None => {
                for name in &env.disable {
                    if row_by_name(name).is_none() {
                        tracing::warn!(engine = %name, "FROSTGRAPH_DISABLE_ENGINES names no engine");
                    }
                }
                env.disable
            }
        };
        Ok(EngineSwitches { opt_in: options.enable_opt_in.unwrap_or(env.enable_opt_in), disabled })
    }

    pub(super) fn off(&self, row: &Row) -> Option<Off> {
        if self.disabled.iter().any(|n| n == row.name) {
            return Some(Off::ByName);
        }
        match row.maturity {
            Maturity::Default => None,
            Maturity::OptIn => (!self.opt_in).then_some(Off::OptIn),
        }
    }
}
