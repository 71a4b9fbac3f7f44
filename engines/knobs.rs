//! Tuning knobs: performance only, never numerics. Public numbers are append-only, so a record replays next year.

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
