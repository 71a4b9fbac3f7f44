//! Family `sdpa_fwd`.

use crate::{Decline, Facts, Family, Knobs, Mode, Row, Target};

/// The family record.
pub static FAMILY: Family = Family { name: "sdpa_fwd", base: 20500, rows: &[], serves: |_| false, mismatch, recommend };

fn mismatch(_row: &Row, _facts: &Facts, _knobs: &Knobs, _target: &Target) -> Option<Decline> {
    None
}

fn recommend(_facts: &Facts, _target: &Target, _rows: &[&'static Row], _mode: Mode) -> Vec<crate::caps::Candidate> {
    Vec::new()
}
