//! Engine switches from the process environment: the only place of the planner that reads it.
//!
//! They are maturity and triage switches, never an architecture gate, and are read at every build so that a long-lived process follows them.

/// Switches as the environment spells them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct EnvSwitches {
    /// `FROSTGRAPH_ENABLE_FROST_ENGINES`, or its synonym `CUDNN_FRONTEND_ENABLE_FROST_ENGINES` when the former is unset.
    pub enable_opt_in: bool,
    /// `FROSTGRAPH_DISABLE_ENGINES`: names, separated by commas.
    pub disable: Vec<String>,
}

/// Reads the switches through a lookup, which tests replace: a test that set variables would race with its neighbours.
pub(super) fn read(lookup: impl Fn(&str) -> Option<String>) -> EnvSwitches {
    let on = |name: &str| lookup(name).map(|v| is_on(name, &v));
    EnvSwitches {
        enable_opt_in: on("FROSTGRAPH_ENABLE_FROST_ENGINES")
            .or_else(|| on("CUDNN_FRONTEND_ENABLE_FROST_ENGINES"))
            .unwrap_or(false),
        disable: lookup("FROSTGRAPH_DISABLE_ENGINES")
            .map(|v| v.split(',').map(|s| s.trim().to_owned()).filter(|s| !s.is_empty()).collect())
            .unwrap_or_default(),
    }
}

pub(super) fn from_process() -> EnvSwitches {
    read(|name| std::env::var(name).ok())
}

fn is_on(name: &str, value: &str) -> bool {
    match value.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => true,
        "" | "0" | "false" | "no" | "off" => false,
        _ => {
            tracing::warn!(value, "{name} is neither on (1, true, yes, on) nor off (0, false, no, off); off is taken");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &'static [(&'static str, &'static str)]) -> EnvSwitches {
        read(|n| pairs.iter().find(|(k, _)| *k == n).map(|(_, v)| (*v).to_owned()))
    }

    #[test]
    fn spellings_of_on_and_the_synonym() {
        for on in ["1", "true", "YES", "On", " on "] {
            let v = on.to_owned();
            assert!(read(move |n| (n == "FROSTGRAPH_ENABLE_FROST_ENGINES").then(|| v.clone())).enable_opt_in, "{on}");
        }
        for off in ["", "0", "false", "no", "Off", "2", "enabled"] {
            let v = off.to_owned();
            assert!(!read(move |n| (n == "FROSTGRAPH_ENABLE_FROST_ENGINES").then(|| v.clone())).enable_opt_in, "{off}");
        }
        assert!(with(&[("CUDNN_FRONTEND_ENABLE_FROST_ENGINES", "1")]).enable_opt_in);
        assert!(!with(&[("CUDNN_FRONTEND_ENABLE_FROST_ENGINES", "1"), ("FROSTGRAPH_ENABLE_FROST_ENGINES", "0")]).enable_opt_in);
        assert_eq!(with(&[]), EnvSwitches::default());
    }

    #[test]
    fn disabled_names_are_split_and_trimmed() {
        assert_eq!(with(&[("FROSTGRAPH_DISABLE_ENGINES", " a, b ,,c")]).disable, ["a", "b", "c"]);
    }
}
