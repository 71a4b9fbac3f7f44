//! Experts' rows from their cumulative ends, and the word that tells about ends that cannot be.

use super::{MAX_EXPERTS, ROW_ALIGN};
use std::ops::Range;

/// What is wrong with the ends and the lists of weights: 0 when nothing is.
///
/// Bits 0 to 15 hold one more than the number of the first faulty expert, the bits above say what is wrong with it. That expert and all after it
/// have no rows: nothing of theirs is written and nothing outside the buffers is touched, whatever the ends say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Status(pub i32);

impl Status {
    /// The end lies before the end of the expert before it (or below 0).
    pub const DECREASING: i32 = 1 << 16;
    /// The end is no multiple of [`ROW_ALIGN`].
    pub const UNALIGNED: i32 = 1 << 17;
    /// The end lies beyond the rows of the operands.
    pub const BEYOND: i32 = 1 << 18;
    /// The entry of the expert in a list of weights lies outside the pool, is no multiple of 16 bytes, or is a null address; experts
    /// without rows are not looked at.
    pub const WEIGHTS: i32 = 1 << 19;

    /// Whether every expert is usable.
    pub const fn is_ok(self) -> bool {
        self.0 == 0
    }

    /// The first faulty expert.
    pub const fn expert(self) -> Option<usize> {
        match self.0 & 0xffff {
            0 => None,
            n => Some(n as usize - 1),
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(expert) = self.expert() else { return f.write_str("every expert is usable") };
        let kinds = [
            (Status::DECREASING, "decreases"),
            (Status::UNALIGNED, "is no multiple of 256"),
            (Status::BEYOND, "lies beyond the rows"),
        ];
        let found: Vec<&str> = kinds.iter().filter(|(bit, _)| self.0 & bit != 0).map(|(_, text)| *text).collect();
        if !found.is_empty() {
            write!(f, "the end of expert {expert} {}", found.join(" and "))?;
        }
        if self.0 & Status::WEIGHTS != 0 {
            let and = if found.is_empty() { "" } else { ", and " };
            write!(f, "{and}the weights of expert {expert} are not where its list says")?;
        }
        Ok(())
    }
}

/// Rows of every expert and the verdict on the ends; `m` is the number of rows of the operands.
pub fn groups(ends: &[i32], m: i64) -> (Vec<Range<usize>>, Status) {
    listed_groups(ends, m, |_| true)
}

/// As [`groups`] where weights are found through lists; `usable` judges the entries of an expert.
pub fn listed_groups(ends: &[i32], m: i64, usable: impl Fn(usize) -> bool) -> (Vec<Range<usize>>, Status) {
    debug_assert!(ends.len() as i64 <= MAX_EXPERTS);
    let (mut out, mut last, mut status) = (Vec::with_capacity(ends.len()), 0i64, Status(0));
    for (expert, &end) in ends.iter().enumerate() {
        let end = i64::from(end);
        if status.is_ok() {
            let bit = |yes: bool, bit: i32| if yes { bit } else { 0 };
            let kinds = bit(end < last, Status::DECREASING)
                | bit(end % ROW_ALIGN != 0, Status::UNALIGNED)
                | bit(end > m, Status::BEYOND)
                | bit(end > last && !usable(expert), Status::WEIGHTS);
            if kinds != 0 {
                status = Status(kinds | (expert as i32 + 1));
            }
        }
        let end = if status.is_ok() { end } else { last };
        out.push(last as usize..end as usize);
        last = end;
    }
    (out, status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_ends_with_empty_experts() {
        let (g, s) = groups(&[0, 256, 256, 1024], 2048);
        assert_eq!(g, [0..0, 0..256, 256..256, 256..1024]);
        assert!(s.is_ok() && s.expert().is_none());
        assert_eq!(groups(&[], 0), (vec![], Status(0)));
        assert_eq!(s.to_string(), "every expert is usable");
    }

    #[test]
    fn the_first_faulty_end_stops_the_work_and_is_named() {
        for (ends, m, kinds, expert) in [
            (&[256, 0, 512][..], 512, Status::DECREASING, 1),
            (&[-256, 256], 512, Status::DECREASING, 0),
            (&[256, 300, 512], 512, Status::UNALIGNED, 1),
            (&[256, 1024], 512, Status::BEYOND, 1),
            (&[i32::MAX], 512, Status::BEYOND | Status::UNALIGNED, 0),
            (&[256, i32::MIN, 512], 512, Status::DECREASING, 1),
            (&[256, 100, -5], 512, Status::DECREASING | Status::UNALIGNED, 1),
        ] {
            let (g, s) = groups(ends, m);
            assert_eq!((s.0 & !0xffff, s.expert()), (kinds, Some(expert)), "{ends:?}");
            assert!(g[expert..].iter().all(|r| r.is_empty()), "{ends:?} {g:?}");
            assert!(g.iter().all(|r| r.end as i64 <= m && r.start <= r.end));
        }
        assert_eq!(groups(&[256, 300], 512).1.to_string(), "the end of expert 1 is no multiple of 256");
        assert_eq!(groups(&[i32::MAX], 512).1 .0, 1 | 3 << 17);
    }

    #[test]
    fn weights_that_are_not_where_the_list_says_take_the_expert_out_unless_it_is_empty() {
        let (g, s) = listed_groups(&[256, 256, 512, 768], 768, |e| e != 1 && e != 2);
        assert_eq!((s.0, s.expert()), (Status::WEIGHTS | 3, Some(2)));
        assert_eq!(g, [0..256, 256..256, 256..256, 256..256]);
        assert_eq!(s.to_string(), "the weights of expert 2 are not where its list says");
        let (_, both) = listed_groups(&[300], 768, |_| false);
        assert_eq!(
            both.to_string(),
            "the end of expert 0 is no multiple of 256, and the weights of expert 0 are not where its list says"
        );
    }
}
