//! Why a row does not serve a graph. A decline routes the graph to other rows; it is not an error.

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        /// Kind of a decline; the code is stable and may be matched by callers.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum DeclineCode { $($(#[$doc])* $name,)* }
        impl DeclineCode {
            /// All codes.
            pub const ALL: &'static [DeclineCode] = &[$(DeclineCode::$name,)*];
            /// Stable spelling, such as `D03-arch`.
            pub const fn code(self) -> &'static str { match self { $(DeclineCode::$name => $code,)* } }
        }
    };
}

codes! {
    /// The graph is malformed for every engine.
    Invalid = "D01-invalid";
    /// The row serves another kind of operation or direction.
    Operation = "D02-operation";
    /// The device is outside the row's architecture range.
    Arch = "D03-arch";
    /// A knob is foreign to the row or outside its domain.
    Knob = "D04-knob";
    /// Element type.
    DType = "D05-dtype";
    /// Head dimensions.
    HeadDim = "D06-head-dim";
    /// Other geometry: extents, grid or index limits.
    Geometry = "D07-geometry";
    /// Strides or alignment.
    Layout = "D08-layout";
    /// A feature that the row does not serve.
    Feature = "D09-feature";
    /// Declaration of Stats.
    Stats = "D10-stats";
    /// Lengths, ragged offsets or declared totals.
    Lengths = "D11-lengths";
    /// Declaration of bias or dBias.
    Bias = "D12-bias";
    /// Declaration of sink or dSink.
    Sink = "D13-sink";
    /// Shared memory, registers or workspace of the device.
    Resources = "D14-resources";
    /// Switched off by maturity or by name.
    Switch = "D15-switch";
    /// The workspace would exceed the caller's limit.
    WorkspaceLimit = "D16-workspace-limit";
    /// Only non-reproducible execution is possible where reproducibility was asked for.
    Determinism = "D17-determinism";
}

/// One row's reason for not serving a graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decline {
    /// The row.
    pub engine: &'static str,
    /// Kind.
    pub code: DeclineCode,
    /// One sentence: what was found and what the row serves.
    pub reason: String,
    /// The fact that decided, as `name=value`.
    pub fact: String,
}

impl std::fmt::Display for Decline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} [{} {}]", self.engine, self.reason, self.code.code(), self.fact)
    }
}
