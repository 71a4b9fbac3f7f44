//! Operand names of nodes, with their JSON spellings.

macro_rules! ports {
    ($(#[$edoc:meta])* $enum:ident { $($name:ident = $json:literal,)* }) => {
        $(#[$edoc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs, reason = "the names are the operands of facts §1.3")]
        pub enum $enum { $($name,)* }
        impl $enum {
            /// Every port.
            pub const ALL: &'static [$enum] = &[$($enum::$name,)*];
            /// JSON key.
            pub const fn json(self) -> &'static str { match self { $($enum::$name => $json,)* } }
            /// The port with this JSON key.
            pub fn from_json(s: &str) -> Option<$enum> { match s { $($json => Some($enum::$name),)* _ => None } }
        }
    };
}

ports! {
    /// Inputs of attention nodes (facts §1.3), `High_precision_O` being frostgraph's own, then those of grouped products (facts §9.1 and §1.3;
    /// `SFA` and `SFB` of a `MOE_GROUPED_MATMUL` are the scales of its dequantised operands).
    InPort {
        Q = "Q", K = "K", V = "V", O = "O", DO = "dO", Stats = "Stats", AttnScale = "Attn_scale", Bias = "Bias",
        SeqLenQ = "SEQ_LEN_Q", SeqLenKv = "SEQ_LEN_KV", CuSeqLenQ = "CU_SEQ_LEN_Q", CuSeqLenKv = "CU_SEQ_LEN_KV",
        Seed = "Seed", Offset = "Offset", DropoutMask = "Dropout_mask", DropoutScale = "Dropout_scale",
        DropoutScaleInv = "Dropout_scale_inv", PageTableK = "Page_table_K", PageTableV = "Page_table_V",
        BlockMask = "Block_mask", Sink = "SINK_TOKEN", KvMask = "Kv_mask", HighPrecisionO = "High_precision_O",
        A = "A", B = "B", C = "C", Sfa = "SFA", Sfb = "SFB", BPtrs = "B_ptrs", SfbPtrs = "SFB_ptrs",
        PaddedOffsets = "Padded_offsets", Alpha = "Alpha", Prob = "Prob", NormConst = "Norm_const",
        Token = "Token", Weight = "Weight", FirstTokenOffset = "FirstTokenOffset", TokenIndex = "TokenIndex", TokenKs = "TokenKs",
    }
}

ports! {
    /// Outputs of attention nodes (facts §1.3), `High_precision_O` being frostgraph's own, then those of grouped products (facts §9.1).
    OutPort {
        O = "O", Stats = "Stats", Max = "Max", SumExp = "Sum_exp", RngDump = "RNG_DUMP",
        DQ = "dQ", DK = "dK", DV = "dV", DBias = "dBias", DSink = "DSINK_TOKEN", HighPrecisionO = "High_precision_O",
        DRow = "D_row", DCol = "D_col", DSrelu = "D_srelu", DProb = "dProb", Amax = "Amax", SfdRow = "SFD_row", SfdCol = "SFD_col",
        SfdColDSrelu = "SFD_col_D_srelu", Status = "Status", Output = "Output",
    }
}
