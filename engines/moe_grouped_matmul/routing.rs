//! From device values to rows: which routed rows every group has, which row each of them reads and writes, and the word that tells about
//! values that cannot be.

use super::{MoeFacts, MoeMode};
use std::ops::Range;

/// Most groups of one node: the status word counts them in 16 bits.
pub const MAX_GROUPS: i64 = 65_534;

/// What is wrong with the routing: 0 when nothing is.
///
/// Bits 0 to 15 hold one more than the number of the first group whose boundaries are faulty, the bits above say how. That group and all
/// after it have no rows. A routed row whose index is out of range is not written. Nothing outside the buffers is touched, whatever the
/// values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Status(pub i32);

impl Status {
    /// A boundary lies before the one before it, or below 0.
    pub const DECREASING: i32 = 1 << 16;
    /// A boundary lies beyond the routed rows.
    pub const BEYOND: i32 = 1 << 17;
    /// A token index or a top-k slot is out of range.
    pub const INDEX: i32 = 1 << 18;

    /// Whether every value is usable.
    pub const fn is_ok(self) -> bool {
        self.0 == 0
    }

    /// The first group with a faulty boundary.
    pub const fn group(self) -> Option<usize> {
        match self.0 & 0xffff {
            0 => None,
            n => Some(n as usize - 1),
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut parts = Vec::new();
        if let Some(group) = self.group() {
            for (bit, text) in [(Status::DECREASING, "decrease"), (Status::BEYOND, "lie beyond the routed rows")] {
                if self.0 & bit != 0 {
                    parts.push(format!("the boundaries of group {group} {text}"));
                }
            }
        }
        if self.0 & Status::INDEX != 0 {
            parts.push("an index of a routed row is out of range".into());
        }
        if parts.is_empty() {
            parts.push("every value is usable".into());
        }
        f.write_str(&parts.join(" and "))
    }
}

/// One routed row: what it reads and what it writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoutedRow {
    /// Row of the token.
    pub from: usize,
    /// Row of the output.
    pub to: usize,
}

/// Everything that the device values say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Routing {
    /// Rows of every group.
    pub groups: Vec<Range<usize>>,
    /// Every routed row up to the last group's end; `None` where its index is out of range. Rows before the first group are there too.
    pub rows: Vec<Option<RoutedRow>>,
    /// The verdict.
    pub status: Status,
}

/// Rows of every group and the verdict on the boundaries; `offsets` as stored, `routed` the number of routed rows.
pub fn groups(offsets: &[i64], explicit_end: bool, routed: i64) -> (Vec<Range<usize>>, Status) {
    let ends = offsets.iter().copied().skip(1).chain((!explicit_end).then_some(routed));
    let (mut out, mut status) = (Vec::with_capacity(offsets.len()), Status(0));
    let mut last = offsets.first().copied().unwrap_or(0);
    let kinds = |at: i64, before: i64| {
        let bit = |yes: bool, bit: i32| if yes { bit } else { 0 };
        bit(at < before, Status::DECREASING) | bit(at > routed, Status::BEYOND)
    };
    let first = kinds(last, 0);
    for (group, end) in ends.enumerate() {
        let found = if group == 0 && first != 0 { first } else { kinds(end, last) };
        if status.is_ok() && found != 0 {
            status = Status(found | (group as i32 + 1));
        }
        // Behind a faulty boundary every group is empty, at a place that exists.
        let place = last.clamp(0, routed) as usize;
        out.push(if status.is_ok() { last as usize..end as usize } else { place..place });
        last = if status.is_ok() { end } else { last };
    }
    (out, status)
}

/// The routing of a node from its stored values; `index` and `ks` are empty where the mode has none.
pub fn routing(f: &MoeFacts, offsets: &[i64], index: &[i32], ks: &[i32]) -> Routing {
    let (groups, mut status) = groups(offsets, f.explicit_end, f.routed);
    let (begin, end) = (groups.first().map_or(0, |g| g.start), groups.last().map_or(0, |g| g.end));
    let tokens = match f.mode {
        MoeMode::None | MoeMode::Gather => f.tokens,
        // A token's slots are its top_k rows of the output.
        MoeMode::Scatter => f.routed / f.top_k.max(1),
    };
    let row = |r: usize| match f.mode {
        MoeMode::None => Some(RoutedRow { from: r, to: r }),
        MoeMode::Gather => {
            let at = i64::from(*index.get(r)?);
            (0..tokens).contains(&at).then_some(RoutedRow { from: at as usize, to: r })
        }
        MoeMode::Scatter => {
            let (at, slot) = (i64::from(*index.get(r)?), i64::from(*ks.get(r)?));
            let good = (0..tokens).contains(&at) && (0..f.top_k).contains(&slot);
            good.then(|| RoutedRow { from: r, to: (at * f.top_k + slot) as usize })
        }
    };
    let rows: Vec<Option<RoutedRow>> = (0..end).map(row).collect();
    if rows[begin.min(end)..].iter().any(Option::is_none) {
        status.0 |= Status::INDEX;
    }
    Routing { groups, rows, status }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_offsets() {
        assert_eq!(groups(&[0, 3, 3], false, 8), (vec![0..3, 3..3, 3..8], Status(0)), "the last group reaches to the end");
        assert_eq!(groups(&[0, 3, 3, 5], true, 8), (vec![0..3, 3..3, 3..5], Status(0)), "three rows belong to nobody");
        assert_eq!(groups(&[2, 4, 4], true, 4), (vec![2..4, 4..4], Status(0)), "rows before the first group belong to nobody");
        let (one, status) = groups(&[0], false, 4);
        assert!(one.len() == 1 && one[0] == (0..4) && status.is_ok());
        assert_eq!(Status(0).to_string(), "every value is usable");
    }

    #[test]
    fn the_first_faulty_boundary_stops_the_work_and_is_named() {
        for (offsets, explicit, kinds, group, good) in [
            (&[0i64, 5, 3, 8][..], true, Status::DECREASING, 1, 1),
            (&[0, 5, 9], true, Status::BEYOND, 1, 1),
            (&[0, 5, 9], false, Status::BEYOND, 1, 1),
            (&[-1, 5, 8], true, Status::DECREASING, 0, 0),
            (&[9, 9], true, Status::BEYOND, 0, 0),
            (&[0, i64::MAX, 4], true, Status::BEYOND, 0, 0),
            (&[0, i64::MIN, 4], true, Status::DECREASING, 0, 0),
            (&[4, 3, 8], false, Status::DECREASING, 0, 0),
        ] {
            let (g, s) = groups(offsets, explicit, 8);
            assert_eq!((s.0 & !0xffff, s.group()), (kinds, Some(group)), "{offsets:?}");
            assert_eq!(g.len(), offsets.len() - usize::from(explicit));
            assert!(g.iter().skip(good).all(|r| r.is_empty() && r.end <= 8), "{offsets:?}: {g:?}");
            assert!(g.iter().take(good).all(|r| !r.is_empty()));
        }
        let (_, s) = groups(&[0, 5, 3, 8], true, 8);
        assert_eq!(s.to_string(), "the boundaries of group 1 decrease");
        assert_eq!(
            Status(s.0 | Status::INDEX).to_string(),
            "the boundaries of group 1 decrease and an index of a routed row is out of range"
        );
    }
}
