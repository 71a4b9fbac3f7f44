//! The suites: a case list, its specials, and what the list must show before any GPU is asked.

use crate::cases::{
    backward, forward, qat, Case, BWD, BWD_SM90, DECODE, HOPPER, PREFILL, QAT_BWD, QAT_BWD_SM90, QAT_FWD, QAT_FWD_SM90,
};
use crate::plan::{plan, Planned};
use crate::special::{self, Special};
use crate::{evidence, far};
use frostgraph::engines::{row_by_name, Arch, Caps, DeclineCode, Feature, Target};
use frostgraph::{Device, Result};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Suite {
    Bwd,
    Fwd,
    QatFwd,
    QatBwd,
}

/// The cases that a row accepts, with their features, and why it declined the others.
pub struct Listing {
    pub features: BTreeMap<usize, Vec<String>>,
    pub declined: BTreeMap<String, usize>,
    /// Different kernels of the accepted cases: what a run has to compile.
    pub kernels: usize,
}

impl Suite {
    pub const ALL: [Suite; 4] = [Suite::Bwd, Suite::Fwd, Suite::QatFwd, Suite::QatBwd];

    pub fn name(self) -> &'static str {
        match self {
            Suite::Bwd => "sdpa_bwd",
            Suite::Fwd => "sdpa_fwd",
            Suite::QatFwd => "qat_fwd",
            Suite::QatBwd => "qat_bwd",
        }
    }

    pub fn parse(name: &str) -> Option<Suite> {
        Suite::ALL.into_iter().find(|s| s.name() == name)
    }

    pub fn cases(self) -> Vec<Case> {
        match self {
            Suite::Bwd => backward::all(),
            Suite::Fwd => forward::all(),
            Suite::QatFwd => qat::forward(),
            Suite::QatBwd => qat::backward(),
        }
    }

    pub fn specials(self) -> &'static [Special] {
        match self {
            Suite::Bwd => special::backward::ALL,
            Suite::Fwd => special::forward::ALL,
            Suite::QatFwd => special::qat::FORWARD,
            Suite::QatBwd => special::qat::BACKWARD,
        }
    }

    /// Cases that stand for those of the specials.
    fn samples(self) -> Vec<Case> {
        match self {
            // Their specials take small variations of what the list has.
            Suite::QatFwd | Suite::QatBwd => Vec::new(),
            Suite::Bwd => special::backward::samples(),
            Suite::Fwd => special::forward::samples(),
        }
    }

    /// Rows under test.
    pub fn engines(self) -> &'static [&'static str] {
        match self {
            Suite::Bwd => &[BWD, BWD_SM90],
            Suite::Fwd => &[PREFILL, DECODE, HOPPER],
            Suite::QatFwd => &[QAT_FWD, QAT_FWD_SM90],
            Suite::QatBwd => &[QAT_BWD, QAT_BWD_SM90],
        }
    }

    /// Numbers of the specials of the rows that the device has, of the named row alone where there is one.
    pub fn specials_of(self, engine: Option<&str>, target: &Target) -> Vec<usize> {
        let runs = |special: &Special| row_by_name(special.engine).is_some_and(|row| row.caps.arch().serves(target));
        let list = self.specials();
        (0..list.len()).filter(|&i| runs(&list[i]) && engine.is_none_or(|e| e == list[i].engine)).collect()
    }

    /// Whether every row under test exists.
    pub fn has_rows(self) -> bool {
        self.engines().iter().all(|e| row_by_name(e).is_some())
    }

    /// Least cases that must be accepted, and most that may be declined: a case that silently vanished would show.
    fn bounds(self) -> (usize, usize) {
        match self {
            // Tiles that some head dims do not have.
            Suite::Bwd => (500, 30),
            // Tiles again, and packed heads without groups.
            Suite::Fwd => (1200, 40),
            Suite::QatFwd => (480, 0),
            // The list holds more than a row has to serve: V of another head dim than Q at least.
            Suite::QatBwd => (600, 200),
        }
    }

    /// Plans every case for a described device: no GPU needed.
    pub fn check_list(self) -> Result<Listing> {
        let device = Device::describe("sm_90")?;
        let mut listing = Listing { features: BTreeMap::new(), declined: BTreeMap::new(), kernels: 0 };
        let mut kernels = BTreeSet::new();
        let mut unasked = Vec::new();
        for (i, case) in self.cases().iter().enumerate() {
            match plan(case, &device).map_err(|e| e.at(format!("{} case {i} ({case})", self.name())))? {
                Planned::Ready(p) => {
                    kernels.extend(p.1.kernels()?);
                    listing.features.insert(i, evidence::features(p.0.nodes()[0].facts()));
                }
                Planned::Declined(why) => {
                    // A QAT list is of the operation, not of a row: what the row's capabilities leave out is counted, not refused.
                    let of_caps = [DeclineCode::Feature, DeclineCode::HeadDim, DeclineCode::Layout];
                    let left_out = case.is_qat() && of_caps.iter().any(|c| why.contains(c.code()));
                    if case.knobs.is_empty() && !left_out {
                        unasked.push(format!("case {i} ({case}): {why}"));
                    }
                    *listing.declined.entry(why).or_default() += 1;
                }
            }
        }
        listing.kernels = kernels.len();
        if self.has_rows() {
            for case in self.samples() {
                if let Planned::Declined(why) = plan(&case, &device)? {
                    unasked.push(format!("a special's case ({case}): {why}"));
                }
            }
            self.engines().iter().try_for_each(|e| far::check_planned(e, &device))?;
            for engine in self.engines() {
                let unshown = special::missing(engine, self.specials());
                assert!(unshown.is_empty(), "no special of {engine} shows {unshown:?}");
            }
            self.engines().iter().for_each(|e| self.claims(e, &listing));
            let (least, most) = self.bounds();
            let declined: usize = listing.declined.values().sum();
            // Only knobs may be foreign to a shape; everything else in the list is what the rows are for.
            assert!(unasked.is_empty(), "declined and not for knobs of the list:\n{}", unasked.join("\n"));
            assert!(listing.features.len() >= least, "the proof needs {least} cases, the list has {}", listing.features.len());
            assert!(declined <= most, "{declined} cases are declined: {:?}", listing.declined);
        }
        Ok(listing)
    }

    /// Rule S6: whatever a row claims, some case of the list asks of that very row: every feature, every value of a knob, and of the Hopper rows every
    /// feature at every kind of tiles with every type and in both modes.
    fn claims(self, engine: &str, listing: &Listing) {
        let cases = self.cases();
        let Some(row) = row_by_name(engine) else { return };
        let Caps::Sdpa(caps) = row.caps else { return };
        let own: Vec<(&Case, &Vec<String>)> =
            listing.features.iter().map(|(&i, f)| (&cases[i], f)).filter(|(c, _)| c.engine == engine).collect();
        // Rule V11 refuses query lengths without a padding mask, so no graph of ours can ask for this one alone.
        let features: Vec<Feature> = caps.features.iter().filter(|f| *f != Feature::SeqQTrim).collect();
        let mut missing = Vec::new();
        for feature in &features {
            let asked: Vec<&Case> = own.iter().filter(|(_, f)| f.iter().any(|x| x == feature.label())).map(|(c, _)| *c).collect();
            if asked.is_empty() {
                missing.push(feature.label().to_owned());
            }
            let hopper = matches!(caps.arch, Arch::Sm { lo: 90, hi: 90 });
            for &native in caps.head_dims.native.iter().filter(|_| hopper) {
                let here: Vec<&&Case> = asked.iter().filter(|c| flavour(caps.head_dims.native, c) == Some(native)).collect();
                for dtype in caps.dtypes.iter().filter(|t| !here.iter().any(|c| c.dtype == **t)) {
                    missing.push(format!("{} at {native:?} in {dtype}", feature.label()));
                }
                let modes = caps.features.has(Feature::Deterministic) && *feature != Feature::Deterministic;
                for mode in [false, true].iter().filter(|m| modes && !here.iter().any(|c| c.deterministic == **m)) {
                    missing.push(format!("{} at {native:?}, deterministic {mode}", feature.label()));
                }
            }
        }
        for domain in row.knobs {
            let asked = |v: &i64| own.iter().any(|(c, _)| c.knobs.contains(&(domain.knob, *v)));
            missing.extend(domain.values.iter().filter(|v| !asked(v)).map(|v| format!("{} {v}", domain.knob.name())));
        }
        assert!(missing.is_empty(), "{engine} claims what no case of the list uses: {missing:#?}");
    }
}

/// The native head dims whose tiles a case runs on: the smallest that hold its own.
fn flavour(native: &[(i64, i64)], case: &Case) -> Option<(i64, i64)> {
    native.iter().copied().filter(|d| d.0 >= case.d_qk && d.1 >= case.d_v).min()
}
