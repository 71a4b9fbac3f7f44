//! JSON spellings of enumerations of the graph, both ways.

use crate::graph::{Alignment, Implementation, Reordering};

/// JSON spelling of an element order.
pub(super) fn reordering_name(r: Reordering) -> &'static str {
    match r {
        Reordering::None => "NONE",
        Reordering::Int8x32 => "INT8x32",
        Reordering::F16x16 => "F16x16",
        Reordering::F8_128x4 => "F8_128x4",
    }
}

/// Element order of a JSON spelling.
pub(super) fn reordering(s: &str) -> Option<Reordering> {
    [Reordering::None, Reordering::Int8x32, Reordering::F16x16, Reordering::F8_128x4]
        .into_iter()
        .find(|r| reordering_name(*r) == s)
}

/// JSON spelling of an anchor corner.
pub(super) fn alignment_name(a: Alignment) -> &'static str {
    match a {
        Alignment::TopLeft => "TOP_LEFT",
        Alignment::BottomRight => "BOTTOM_RIGHT",
    }
}

/// Anchor corner of a JSON spelling.
pub(super) fn alignment(s: &str) -> Option<Alignment> {
    [Alignment::TopLeft, Alignment::BottomRight].into_iter().find(|a| alignment_name(*a) == s)
}

/// JSON spelling of cuDNN's implementation choice.
pub(super) fn implementation_name(i: Implementation) -> &'static str {
    match i {
        Implementation::Auto => "AUTO",
        Implementation::Composite => "COMPOSITE",
        Implementation::Unified => "UNIFIED",
    }
}

/// cuDNN's implementation choice of a JSON spelling.
pub(super) fn implementation(s: &str) -> Option<Implementation> {
    [Implementation::Auto, Implementation::Composite, Implementation::Unified].into_iter().find(|i| implementation_name(*i) == s)
}
