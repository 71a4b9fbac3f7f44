//! Match and rank: one node's facts against the rows of its family.

use super::built::Ranked;
use super::options::{EngineSwitches, Off};
use frostgraph_engines::{Decline, DeclineCode, Facts, Family, Knobs, Mode, Row, Target, MANIFEST};

/// The family that serves these facts.
pub(super) fn family(facts: &Facts) -> Option<&'static Family> {
    MANIFEST.iter().copied().find(|f| (f.serves)(facts))
}

/// Why a row cannot be used: first what the row itself lacks, then switches, so that nobody is told to switch on an engine that
/// would not serve the graph anyway.
pub(super) fn decline(
    family: &Family,
    row: &'static Row,
    facts: &Facts,
    knobs: &Knobs,
    target: &Target,
    sw: &EngineSwitches,
) -> Option<Decline> {
    (family.mismatch)(row, facts, knobs, target).or_else(|| sw.off(row).map(|off| switched_off(row, off)))
}

pub(super) fn switched_off(row: &'static Row, off: Off) -> Decline {
    let (reason, fact) = match off {
        Off::OptIn => (
            "serves this graph and is opt-in: set FROSTGRAPH_ENABLE_FROST_ENGINES=1 or BuildOptions::enable_opt_in",
            "maturity=opt-in",
        ),
        Off::ByName => ("is switched off by FROSTGRAPH_DISABLE_ENGINES or BuildOptions::disable", "switch=off"),
    };
    row.decline(DeclineCode::Switch, fact, reason)
}

/// Ranked entries and declines of one node.
pub(super) fn rank(
    family: &Family,
    facts: &Facts,
    target: &Target,
    modes: &[Mode],
    sw: &EngineSwitches,
) -> (Vec<Ranked>, Vec<Decline>) {
    let mut declined = Vec::new();
    let mut eligible: Vec<&'static Row> = Vec::with_capacity(family.rows.len());
    for row in family.rows {
        match decline(family, row, facts, &Knobs::NONE, target, sw) {
            None => eligible.push(row),
            Some(d) => declined.push(d),
        }
    }
    let mut ranked: Vec<Ranked> = Vec::new();
    if eligible.is_empty() {
        return (ranked, declined);
    }
    for &mode in modes {
        for candidate in (family.recommend)(facts, target, &eligible, mode) {
            if ranked.iter().any(|r| r.row.id == candidate.id && r.knobs == candidate.knobs) {
                continue;
            }
            let Some(row) = eligible.iter().copied().find(|r| r.id == candidate.id) else {
                debug_assert!(false, "heuristics of {} proposed id {} which was not offered", family.name, candidate.id);
                continue;
            };
            // A proposal outside the row's own domain would be a fault of the heuristics; it is shown, never silently dropped.
            match (family.mismatch)(row, facts, &candidate.knobs, target) {
                None => ranked.push(Ranked { row, knobs: candidate.knobs }),
                Some(d) => declined.push(d),
            }
        }
    }
    for row in eligible {
        if !ranked.iter().any(|r| r.row.id == row.id) && !declined.iter().any(|d| d.engine == row.name) {
            let names: Vec<String> = modes.iter().map(|m| format!("{m:?}")).collect();
            let reason = "serves this graph, but the heuristics proposed no plan for it in the requested modes";
            declined.push(row.decline(DeclineCode::Switch, format!("modes={}", names.join(",")), reason));
        }
    }
    (ranked, declined)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Graph, GraphOptions, Sdpa, Tensor};
    use crate::plan::BuildOptions;
    use crate::{analyze, DType, Device};
    use frostgraph_engines::Maturity;

    fn facts(dtype: DType) -> Facts {
        let mut g = Graph::new(GraphOptions { io: dtype, ..GraphOptions::default() });
        let [q, k, v] = ["Q", "K", "V"].map(|name| g.tensor(Tensor::new(name, [1, 2, 16, 64])));
        let out = g.sdpa(q, k, v, Sdpa::default()).unwrap();
        g.output(out.o).unwrap();
        analyze::analyze(&g.freeze().unwrap(), 0)
    }

    /// Whichever rows are opt-in today: one that serves the graph says how to switch it on, one that would not serve it anyway says
    /// that instead (report 123).
    #[test]
    fn an_opt_in_row_says_how_to_switch_it_on_123() {
        let (served, foreign) = (facts(DType::BF16), facts(DType::F32));
        let family = family(&served).unwrap();
        let given = family.rows.iter().find(|r| r.name == "sdpa_fwd_prefill_sm80").unwrap();
        let row: &'static Row = Box::leak(Box::new(Row { maturity: Maturity::OptIn, ..*given }));
        let (default, all) = (BuildOptions::default_engines(), BuildOptions::all_engines());
        let target = Device::describe("sm_90").unwrap().target;
        let ask = |facts, options| {
            let switches = EngineSwitches::resolve(options).unwrap();
            decline(family, row, facts, &Knobs::NONE, &target, &switches).map(|d| (d.code, d.reason))
        };
        let (code, reason) = ask(&served, &default).unwrap();
        assert_eq!(code, DeclineCode::Switch);
        assert!(reason.contains("FROSTGRAPH_ENABLE_FROST_ENGINES=1"), "{reason}");
        assert_eq!(ask(&served, &all), None);
        assert_eq!(ask(&foreign, &default).unwrap().0, DeclineCode::DType);
    }
}
