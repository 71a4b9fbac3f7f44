//! Errors: the caller's fault or the machine's, each with a stable code, what was given, what is expected, what to do.

use std::borrow::Cow;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        /// Stable error code. FG1xxx: graph and validation rules (FG1001 is rule V1 of facts §2.3); FG2xxx: JSON; FG3xxx: planning;
        /// FG4xxx: binding and execution; FG5xxx: files and command line; FG6xxx: CUDA runtime.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ErrorCode { $($(#[$doc])* $name,)* }
        impl ErrorCode {
            /// All codes in order.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$name,)*];
            /// Stable spelling, such as `FG1001`.
            pub const fn code(self) -> &'static str { match self { $(ErrorCode::$name => $code,)* } }
        }
    };
}

codes! {
    /// V1: a required operand is missing.
    MissingPort = "FG1001";
    /// V2: an operand's extents are not rank 4.
    DimRank = "FG1002";
    /// V3: an operand's strides are not rank 4.
    StrideRank = "FG1003";
    /// V4: the head dim is not contiguous where the rule demands it.
    HeadDimStride = "FG1004";
    /// V5: a backward of one query and one key.
    OneByOneBackward = "FG1005";
    /// V6: query heads are no multiple of key/value heads.
    HeadRatio = "FG1006";
    /// V7: ALiBi without a causal mask.
    AlibiWithoutCausal = "FG1007";
    /// V8: boolean bias.
    BooleanBias = "FG1008";
    /// V9: lengths and cumulative lengths on one side.
    BothLengthForms = "FG1009";
    /// V10: padding mask without lengths.
    PaddingWithoutLengths = "FG1010";
    /// V11: lengths without padding mask.
    LengthsWithoutPadding = "FG1011";
    /// V12: lengths on one side only.
    OneSidedLengths = "FG1012";
    /// V13: declared token totals on a graph that is not ragged.
    TotalsWithoutRagged = "FG1013";
    /// V14: dropout probability together with a dropout mask.
    DropoutForms = "FG1014";
    /// V15: dropout probability of one.
    DropoutOne = "FG1015";
    /// V16: bottom-right causal with more queries than keys, unpadded.
    BottomRightTall = "FG1016";
    /// V17: bottom-right causal with a feature it cannot be combined with.
    BottomRightFeature = "FG1017";
    /// V18: a left bound with more queries than keys, unpadded.
    WindowTall = "FG1018";
    /// V19: a left bound on a ragged graph without padding mask.
    WindowRagged = "FG1019";
    /// V20: negative right bound.
    NegativeRightBound = "FG1020";
    /// V21: Stats of a type other than FLOAT.
    StatsDType = "FG1021";
    /// V22: ragged without padding mask.
    RaggedWithoutPadding = "FG1022";
    /// V23: score modification with a built-in mask (forward).
    ScoreModMask = "FG1023";
    /// V24: forward head dims that are no multiples of 8.
    HeadDimMultiple = "FG1024";
    /// V25: paged K/V without lengths.
    PagedWithoutLengths = "FG1025";
    /// V26: declared paged maximum without pages.
    PagedMaxUnpaged = "FG1026";
    /// V27: bias width differs from the declared paged maximum.
    PagedMaxBias = "FG1027";
    /// V28: rng dump width differs from the declared paged maximum.
    PagedMaxRngDump = "FG1028";
    /// V45: score modification with a built-in mask (backward).
    ScoreModMaskBackward = "FG1045";
    /// V46: left bound of zero or less (backward).
    LeftBound = "FG1046";
    /// V47: dSink without sink.
    DSinkWithoutSink = "FG1047";
    /// V48: backward head dims that are no multiples of 8.
    HeadDimMultipleBackward = "FG1048";
    /// Rule 1 of facts §9.2: generated scales and their norm not all present or all absent.
    GemmScaleGroup = "FG1201";
    /// Rule 2: A and B of different K.
    GemmContraction = "FG1202";
    /// Rule 3: an operand of the grouped product of other extents.
    GemmShape = "FG1203";
    /// Rule 4: an operand of the grouped product of another layout.
    GemmLayout = "FG1204";
    /// Rule 5: element type of A, or of B beside it.
    GemmInputType = "FG1205";
    /// Rule 6: element type of scales.
    GemmScaleType = "FG1206";
    /// Rule 7: values a scale.
    GemmScaleBlock = "FG1207";
    /// Rule 8: an operand whose element type is fixed.
    GemmFixedType = "FG1208";
    /// Rule 9: element type of C.
    GemmCType = "FG1209";
    /// Rule 10: element type of the results.
    GemmResultType = "FG1210";
    /// Rule 11: FP8 results without generated scales.
    GemmMissingScales = "FG1211";
    /// Rule 12: an output that would stay unwritten.
    GemmIdleOutput = "FG1212";
    /// Rule 13: D_srelu and its scales.
    GemmSreluScales = "FG1213";
    /// Rule 14: n-major B with FP4.
    GemmBMajor = "FG1214";
    /// Rules 15 and 16: tile of a direct call.
    GemmTile = "FG1215";
    /// Rules 17 and 18: cluster of a direct call.
    GemmCluster = "FG1217";
    /// Rule 19: alignment of the experts' rows.
    GemmRowAlign = "FG1219";
    /// Rule 20: contiguous extents in bytes.
    GemmExtentBytes = "FG1220";
    /// Rule 21: number of experts.
    GemmExperts = "FG1221";
    /// Rule 1 of the plain grouped product: an operand of other extents.
    MoeShape = "FG1301";
    /// Rule 2: token and weights of different K.
    MoeContraction = "FG1302";
    /// Rule 3: FP4 values of another layout.
    MoeLayout = "FG1303";
    /// Rule 4: element type of token or weights.
    MoeInputType = "FG1304";
    /// Rule 5: presence, types and blocks of scales.
    MoeScales = "FG1305";
    /// Rule 6: extents and strides of scales.
    MoeScaleShape = "FG1306";
    /// Rule 7: an operand whose element type is fixed.
    MoeFixedType = "FG1307";
    /// Rule 8: an index that the mode does not have.
    MoeRouting = "FG1308";
    /// Rule 9: number of offsets.
    MoeOffsets = "FG1309";
    /// Rule 10: element type of the output.
    MoeOutputType = "FG1310";
    /// Rule 11: rows a token in scatter mode.
    MoeTopK = "FG1311";
    /// A node input is produced only after it is needed.
    Cycle = "FG1101";
    /// A tensor that no graph input or node provides.
    DanglingTensor = "FG1102";
    /// A tensor that two nodes produce.
    ProducedTwice = "FG1103";
    /// Two tensors with one uid.
    DuplicateUid = "FG1104";
    /// Extents are unset, not positive, or their product overflows 64 bits.
    BadDims = "FG1105";
    /// Strides are negative, overflow, or are zero on an output.
    BadStrides = "FG1106";
    /// A tensor is virtual and passed by value, or a handle belongs to another graph.
    BadTensor = "FG1107";
    /// An attribute value is not usable (NaN scale, probability outside 0..1, conflicting spellings).
    BadAttribute = "FG1108";
    /// The graph was changed after it was frozen, or has no nodes.
    GraphState = "FG1109";
    /// Not JSON, truncated, or nested too deeply.
    JsonSyntax = "FG2001";
    /// Missing or unsupported `json_version`.
    JsonVersion = "FG2002";
    /// A required key is missing.
    JsonMissingKey = "FG2003";
    /// A value has the wrong type or is out of range.
    JsonValue = "FG2004";
    /// A node tag that is not served.
    JsonTag = "FG2005";
    /// A uid that no tensor has, or that two tensors have.
    JsonUid = "FG2006";
    /// An unknown attribute key under `--strict`.
    JsonUnknownKey = "FG2007";
    /// No engine serves a node.
    NoPlan = "FG3001";
    /// Plan index out of range.
    PlanIndex = "FG3002";
    /// Unknown engine id or name, or one that is switched off.
    UnknownEngine = "FG3003";
    /// Unknown knob, or a value outside the row's domain.
    BadKnob = "FG3004";
    /// The selected engine declines at lowering.
    Declined = "FG3005";
    /// A device that does not exist or cannot be described.
    BadDevice = "FG3006";
    /// A bound tensor is missing.
    MissingBinding = "FG4001";
    /// A buffer is too small.
    BufferSize = "FG4002";
    /// A buffer is misaligned.
    BufferAlignment = "FG4003";
    /// Buffers overlap where one is written.
    BufferOverlap = "FG4004";
    /// Workspace missing, too small or misaligned.
    Workspace = "FG4005";
    /// Data contradict the graph (lengths, offsets, page indices).
    BadData = "FG4006";
    /// A binding lives on the wrong device.
    BindingDevice = "FG4007";
    /// A file cannot be read.
    FileRead = "FG5001";
    /// A file cannot be written.
    FileWrite = "FG5002";
    /// A tensor file lacks a tensor or holds one of another shape or type.
    TensorFile = "FG5003";
    /// Command-line usage.
    Usage = "FG5004";
    /// A numerical check failed.
    CheckFailed = "FG5005";
    /// An evidence file is not a list of well-formed records.
    Evidence = "FG5006";
    /// The CUDA runtime is not compiled in.
    NoCudaFeature = "FG6001";
    /// A CUDA library is missing or too old.
    CudaLibrary = "FG6002";
    /// A driver call failed.
    CudaDriver = "FG6003";
    /// NVRTC failed to compile a kernel.
    Nvrtc = "FG6004";
    /// The cubin cache cannot be used.
    CubinCache = "FG6005";
    /// A kernel exceeds its row's budget of registers, spills or shared memory.
    KernelBudget = "FG6006";
}

/// Shorthand.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// One error; renders on one line, with further detail lines after it where several things failed. Boxed, so that `Result` stays small.
#[derive(Debug, Clone, PartialEq)]
pub struct Error(Box<ErrorDetail>);

/// The fields of an [`Error`].
#[derive(Debug, Clone, PartialEq)]
pub struct ErrorDetail {
    /// Stable code.
    pub code: ErrorCode,
    /// Where: a node, tensor, file or JSON pointer; empty when there is no place.
    pub at: String,
    /// What was given.
    pub given: String,
    /// What is expected.
    pub expected: String,
    /// What to do, when that is not obvious from what is expected; may be empty.
    pub help: String,
    /// Further lines, such as one decline per engine.
    pub details: Vec<String>,
}

impl std::ops::Deref for Error {
    type Target = ErrorDetail;
    fn deref(&self) -> &ErrorDetail {
        &self.0
    }
}

impl Error {
    /// A new error with the two facts every error has.
    pub fn new(code: ErrorCode, given: impl Into<String>, expected: impl Into<String>) -> Error {
        Error(Box::new(ErrorDetail {
            code,
            at: String::new(),
            given: given.into(),
            expected: expected.into(),
            help: String::new(),
            details: Vec::new(),
        }))
    }

    /// Names the place.
    #[must_use]
    pub fn at(mut self, place: impl Into<String>) -> Error {
        self.0.at = place.into();
        self
    }

    /// Says what to do.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Error {
        self.0.help = help.into();
        self
    }

    /// Adds detail lines.
    #[must_use]
    pub fn details(mut self, lines: impl IntoIterator<Item = String>) -> Error {
        self.0.details.extend(lines);
        self
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.code.code())?;
        if !self.at.is_empty() {
            write!(f, " at {}", one_line(&self.at))?;
        }
        write!(f, ": {}; expected {}", one_line(&self.given), one_line(&self.expected))?;
        if !self.help.is_empty() {
            write!(f, ". {}", one_line(&self.help))?;
        }
        for line in &self.details {
            write!(f, "\n  {}", one_line(line))?;
        }
        Ok(())
    }
}

/// Text with its control characters escaped, those that turn the direction of writing included: names come from files, and what is printed
/// must neither end a line nor steer a terminal.
pub fn one_line(text: &str) -> Cow<'_, str> {
    let bad = |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if !text.contains(bad) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match bad(c) {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_from_a_file_neither_ends_the_line_nor_steers_the_terminal() {
        let e = Error::new(ErrorCode::BadDims, "a\nb", "c\x1b[2J").at("'\u{202e}é\r'").help("h\t").details(["d\u{7}".to_owned()]);
        assert_eq!(e.to_string(), "FG1105 at '\\u{202e}é\\r': a\\nb; expected c\\u{1b}[2J. h\\t\n  d\\u{7}");
        assert!(matches!(one_line("plain é"), Cow::Borrowed("plain é")));
    }
}
