//! Tuning knobs: performance only, never numerics. Public numbers are append-only, so a record replays next year.

use crate::{Decline, DeclineCode, Row};
use std::collections::BTreeMap;

macro_rules! knobs {
    ($($(#[$doc:meta])* $name:ident = $num:literal, $label:literal;)*) => {
        /// A tuning axis with its public number (facts §4.6: 0–32 mirror the backend's, 1000 and up are the frontend's).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Knob { $($(#[$doc])* $name,)* }
        impl Knob {
            /// All knobs by ascending number.
            pub const ALL: &'static [Knob] = &[$(Knob::$name,)*];
            /// Public number.
            pub const fn number(self) -> u32 { match self { $(Knob::$name => $num,)* } }
            /// Name in plan names and records.
            pub const fn name(self) -> &'static str { match self { $(Knob::$name => $label,)* } }
            /// The knob with this public number.
            pub fn from_number(n: u32) -> Option<Knob> { match n { $($num => Some(Knob::$name),)* _ => None } }
            /// The knob with this name.
            pub fn from_name(s: &str) -> Option<Knob> { match s { $($label => Some(Knob::$name),)* _ => None } }
        }
    };
}

knobs! {
    /// Shared-memory pipeline depth.
    Stages = 7, "STAGES";
    /// Cluster size along M.
    TileCgaM = 14, "TILE_CGA_M";
    /// Cluster size along N.
    TileCgaN = 15, "TILE_CGA_N";
    /// Rows of the query tile.
    TileM = 26, "TILE_M";
    /// Rows of the key/value tile.
    TileN = 27, "TILE_N";
    /// Scheduler: 0 natural, 1 LPT, 2 LPT within an L2 section.
    SchedPolicy = 1000, "SCHED_POLICY";
    /// Pack a KV head's query heads into one tile: 0 or 1.
    PackGqa = 1001, "PACK_GQA";
    /// Splits of the key axis.
    SplitKv = 1002, "SPLIT_KV";
    /// Pipeline variant.
    PipelineArch = 1003, "PIPELINE_ARCH";
    /// Rows of one matrix instruction tile.
    MmaTileM = 1004, "MMA_TILE_M";
    /// Columns of one matrix instruction tile.
    MmaTileN = 1005, "MMA_TILE_N";
    /// Depth of one matrix instruction tile in bytes.
    MmaTileK = 1006, "MMA_TILE_K";
    /// CTAs cooperating on one instruction.
    CtaGroup = 1007, "CTA_GROUP";
    /// Warps along M.
    WarpsM = 1008, "WARPS_M";
    /// Warps along N.
    WarpsN = 1009, "WARPS_N";
    /// Paired single-precision arithmetic in the epilogue: 0 or 1.
    VectorF32 = 1010, "VECTOR_F32";
}

/// A knob value as it arrives from a caller or a record, before it is checked.
#[derive(Debug, Clone, PartialEq)]
pub enum PublicValue {
    /// An integer.
    Int(i64),
    /// A boolean; only `PACK_GQA` takes one.
    Bool(bool),
    /// Anything else, as text for the message.
    Other(String),
}

/// Values for some knobs, ordered by knob name; absent means no preference.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Knobs(Vec<(Knob, i64)>);

impl Knobs {
    /// No preference on any axis.
    pub const NONE: Knobs = Knobs(Vec::new());

    /// Builds from pairs; a later pair replaces an earlier one of the same knob.
    pub fn new(pairs: &[(Knob, i64)]) -> Knobs {
        pairs.iter().fold(Knobs::NONE, |k, &(knob, v)| k.with(knob, v))
    }

    /// These knobs with one value set.
    #[must_use]
    pub fn with(mut self, knob: Knob, value: i64) -> Knobs {
        self.0.retain(|(k, _)| *k != knob);
        self.0.push((knob, value));
        self.0.sort_by_key(|(k, _)| k.name());
        self
    }

    /// Reads knobs from their public form: names (`TILE_M`) or public numbers (`26`) to values.
    ///
    /// A knob the row does not have, a value that is no integer, or a value outside the row's domain is a decline: a requested knob is
    /// honoured or the row is ineligible, never degraded.
    pub fn from_public<'a>(row: &Row, given: impl IntoIterator<Item = (&'a str, PublicValue)>) -> Result<Knobs, Decline> {
        let mut knobs = Knobs::NONE;
        for (key, value) in given {
            let known = Knob::from_name(key).or_else(|| key.parse().ok().and_then(Knob::from_number));
            let Some(knob) = known else {
                let reason = format!("there is no knob '{key}'; this row has {}", own_knobs(row));
                return Err(row.decline(DeclineCode::Knob, format!("knob={key}"), reason));
            };
            let wrong = |shown: String| {
                let reason = format!("{} is {shown}; knobs take integers", knob.name());
                row.decline(DeclineCode::Knob, format!("{}={shown}", knob.name()), reason)
            };
            let value = match value {
                PublicValue::Int(v) => v,
                PublicValue::Bool(v) if knob == Knob::PackGqa => i64::from(v),
                PublicValue::Bool(v) => return Err(wrong(v.to_string())),
                PublicValue::Other(text) => return Err(wrong(text)),
            };
            if knobs.get(knob).is_some_and(|had| had != value) {
                let reason = format!("{} is given twice with different values", knob.name());
                return Err(row.decline(DeclineCode::Knob, format!("{}={value}", knob.name()), reason));
            }
            knobs = knobs.with(knob, value);
        }
        match knob_values(row, &knobs) {
            None => Ok(knobs),
            Some(decline) => Err(decline),
        }
    }

    /// The public form: knob number to value, as written in records.
    pub fn to_public(&self) -> BTreeMap<u32, i64> {
        self.iter().map(|(k, v)| (k.number(), v)).collect()
    }

    /// The value of a knob.
    pub fn get(&self, knob: Knob) -> Option<i64> {
        self.0.iter().find(|(k, _)| *k == knob).map(|(_, v)| *v)
    }

    /// Pairs ordered by knob name.
    pub fn iter(&self) -> impl Iterator<Item = (Knob, i64)> + '_ {
        self.0.iter().copied()
    }

    /// Whether no knob is set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl std::fmt::Display for Knobs {
    /// `[TILE_M=64,TILE_N=64]`, or nothing when no knob is set.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        let parts: Vec<String> = self.0.iter().map(|(k, v)| format!("{}={v}", k.name())).collect();
        write!(f, "[{}]", parts.join(","))
    }
}

/// First requested knob that the row lacks or whose value is outside the row's domain.
pub fn knob_values(row: &Row, knobs: &Knobs) -> Option<Decline> {
    knobs.iter().find_map(|(knob, value)| {
        let fact = format!("{}={value}", knob.name());
        let reason = match row.domain(knob) {
            None => format!("knob {} is set; this row has {}", knob.name(), own_knobs(row)),
            Some(values) if !values.contains(&value) => {
                let served: Vec<String> = values.iter().map(i64::to_string).collect();
                format!("{} is {value}; this row serves {}", knob.name(), served.join(", "))
            }
            Some(_) => return None,
        };
        Some(row.decline(DeclineCode::Knob, fact, reason))
    })
}

fn own_knobs(row: &Row) -> String {
    let names: Vec<&str> = row.knobs.iter().map(|d| d.knob.name()).collect();
    if names.is_empty() {
        "no knobs".into()
    } else {
        names.join(", ")
    }
}
