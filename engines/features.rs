//! The features a graph can use and a row can serve: one enum, one order, used for matching, tables and test lists.

macro_rules! features {
    ($($(#[$doc:meta])* $name:ident = $label:literal;)*) => {
        /// Something a graph can ask for beyond its geometry. Order is the order in which declines are found.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Feature { $($(#[$doc])* $name,)* }
        impl Feature {
            /// All features in matching order.
            pub const ALL: &'static [Feature] = &[$(Feature::$name,)*];
            /// Name in messages, tables and evidence records.
            pub const fn label(self) -> &'static str { match self { $(Feature::$name => $label,)* } }
        }
    };
}

features! {
    /// `deterministic` requested on a backward.
    Deterministic = "deterministic";
    /// dBias output.
    DBias = "dBias";
    /// dSink output.
    DSink = "dSink";
    /// Additive bias.
    Bias = "bias";
    /// Bias with batch extent 1 and B > 1.
    BroadcastBias = "batch-broadcast bias";
    /// Dropout (mask, seed or probability).
    Dropout = "dropout";
    /// A score modification callback.
    ScoreMod = "score_mod";
    /// Paged K or V.
    PagedKv = "paged K/V";
    /// ALiBi.
    Alibi = "ALiBi";
    /// Block mask.
    BlockMask = "block mask";
    /// Dropout mask dump.
    RngDump = "rng dump";
    /// Additive key mask.
    KvMask = "kv mask";
    /// Row maximum output.
    ScoreMax = "score max";
    /// Row sum-exp output.
    ScoreSumExp = "score sum-exp";
    /// Softmax scale given as a tensor.
    DynamicScale = "tensor attn_scale";
    /// Softmax scale of exactly zero.
    ZeroScale = "attn_scale 0";
    /// Scale folded into Q by the caller.
    PrefoldedScale = "prefolded attn_scale";
    /// A requested softmax precision other than f32.
    SoftmaxPrecision = "softmax precision";
    /// Unfused multiply-add in the softmax.
    UnfuseFma = "unfuse_fma";
    /// Stats in log base 2.
    StatsLog2 = "log2 Stats";
    /// Query lengths without a padding mask.
    SeqQTrim = "query trim";
    /// Causal diagonal: right bound 0.
    Causal = "causal";
    /// Right bound above 0.
    RightBand = "right band";
    /// Bounds anchored at the bottom-right corner.
    BottomRight = "bottom-right";
    /// Left bound (sliding window).
    Window = "sliding window";
    /// Dense operands with per-batch lengths.
    Padding = "padding";
    /// Lengths given as cumulative sums.
    CuSeqLen = "cu_seq_len";
    /// Attention sink logits.
    Sink = "sink";
    /// Stats output of a forward.
    Stats = "Stats";
    /// Packed (ragged) operands.
    Thd = "THD";
    /// Dense (per-batch) Stats next to packed operands.
    ThdPaddedStats = "THD with per-batch Stats";
    /// Stats with other than (H·S, S, 1, 1) strides.
    StridedStats = "strided Stats";
    /// H_q ≠ H_kv.
    Gqa = "GQA";
    /// S_q = 1.
    Decode = "S_q 1";
    /// d_qk ≠ d_v.
    UnequalHeadDims = "d_qk ≠ d_v";
    /// Innermost stride of an operand other than 1.
    StridedHeadDim = "non-unit head-dim stride";
    /// A broadcast (zero-stride) input operand.
    BroadcastInput = "zero-stride input";
    /// Grouped product: FP8 results with generated row and column scales.
    OutputScales = "output scales";
    /// Grouped product: column scales laid out expert by expert.
    DiscreteColSfd = "per-expert column scales";
    /// Grouped product: largest magnitude of every expert.
    Amax = "amax";
    /// Grouped product: the recomputed forward activation as an output.
    DSrelu = "D_srelu";
    /// Grouped product: soft clamp of the activation.
    TanhClamp = "tanh clamp";
    /// Grouped product: C holds the pre-activation instead of G.
    PreactivationC = "pre-activation in C";
    /// Grouped product: weights of each expert at an offset into a pool.
    PooledWeights = "pooled weights";
    /// Grouped product: weights of each expert at a device address.
    WeightAddresses = "weight addresses";
    /// Grouped product: B with n contiguous.
    NMajorB = "n-major B";
    /// Grouped product: accumulation in double precision.
    F64Accumulate = "f64 accumulation";
    /// Grouped product: a word that tells about bad offsets.
    StatusWord = "status word";
    /// Plain grouped product: rows read through an index.
    GatherTokens = "gathered tokens";
    /// Plain grouped product: results written through an index.
    ScatterTokens = "scattered results";
}

impl std::fmt::Display for Feature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.label())
    }
}

/// A set of features; iterates in matching order.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct FeatureSet(u64);

impl FeatureSet {
    /// The empty set.
    pub const EMPTY: FeatureSet = FeatureSet(0);

    /// The set of these features; usable in statics.
    pub const fn of(list: &[Feature]) -> FeatureSet {
        let mut bits = 0;
        let mut i = 0;
        while i < list.len() {
            bits |= 1 << list[i] as u8;
            i += 1;
        }
        FeatureSet(bits)
    }

    /// This set with one more feature.
    pub const fn with(self, f: Feature) -> FeatureSet {
        FeatureSet(self.0 | 1 << f as u8)
    }

    /// This set without one feature.
    pub const fn without(self, f: Feature) -> FeatureSet {
        FeatureSet(self.0 & !(1 << f as u8))
    }

    /// All features of both sets.
    pub const fn union(self, other: FeatureSet) -> FeatureSet {
        FeatureSet(self.0 | other.0)
    }

    /// Features of this set that `other` lacks.
    pub const fn minus(self, other: FeatureSet) -> FeatureSet {
        FeatureSet(self.0 & !other.0)
    }

    /// Whether `f` is in the set.
    pub const fn has(self, f: Feature) -> bool {
        self.0 >> f as u8 & 1 == 1
    }

    /// Adds `f` when `yes`.
    pub fn set_if(&mut self, f: Feature, yes: bool) {
        if yes {
            *self = self.with(f);
        }
    }

    /// Whether nothing is in the set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The features in matching order.
    pub fn iter(self) -> impl Iterator<Item = Feature> {
        Feature::ALL.iter().copied().filter(move |&f| self.has(f))
    }
}

impl std::fmt::Debug for FeatureSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter().map(Feature::label)).finish()
    }
}
