//! Rule S1: the one classifier of packed Stats, shared by forward, backward and lowering.

/// How packed (THD) Stats lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatsPacking {
    /// (T, H): head stride 1, token stride H.
    TokenMajor,
    /// (H, T): token stride 1, head stride at least the packed tokens (a device value, so the caller's contract).
    HeadMajor,
}

/// Classifies packed Stats by strides; `None` for a dense-padded or otherwise foreign declaration, which must be refused.
pub fn thd_stats_packing(stride_h: i64, stride_s: i64, h_q: i64) -> Option<StatsPacking> {
    if stride_h == 1 && stride_s == h_q {
        Some(StatsPacking::TokenMajor)
    } else if stride_s == 1 && stride_h >= 1 {
        Some(StatsPacking::HeadMajor)
    } else {
        None
    }
}
