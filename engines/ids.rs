//! MANIFEST: the one static list of families and rows. Ids are append-only (I3); retired ids are never reused.

use crate::{Family, Row};

/// Every family, in id order.
pub static MANIFEST: &[&Family] = &[&crate::sdpa_fwd::FAMILY, &crate::sdpa_bwd::FAMILY];

/// Ids that once named a row and must stay unused.
pub static RETIRED: &[u32] = &[];

/// The row with this id.
pub fn row_by_id(id: u32) -> Option<&'static Row> {
    MANIFEST.iter().flat_map(|f| f.rows).find(|r| r.id == id)
}

/// The row with this name.
pub fn row_by_name(name: &str) -> Option<&'static Row> {
    MANIFEST.iter().flat_map(|f| f.rows).find(|r| r.name == name)
}

/// The family that owns an id's block of 100.
pub fn family_of(id: u32) -> Option<&'static Family> {
    MANIFEST.iter().copied().find(|f| id >= f.base && id < f.base + 100)
}
