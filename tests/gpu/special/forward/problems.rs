//! What the forward's specials run.

use crate::cases::{Case, Fwd, Lens, MaskKind, Pages, StatsKind, DECODE, HOPPER, PREFILL};
use frostgraph::engines::Knob;

pub fn prefill() -> Case {
    Case { h_kv: 2, mask: MaskKind::Causal, ..Case::plain(PREFILL) }
}

/// The same problem for the Hopper row.
pub fn hopper(case: Case) -> Case {
    Case { engine: HOPPER, ..case }
}

pub fn decode() -> Case {
    Case { s_q: 3, mask: MaskKind::CausalBottomRight, ..Case::plain(DECODE) }
}

/// A decode case that needs a workspace.
pub fn split(n: i64) -> Case {
    Case { knobs: vec![(Knob::SplitKv, n)], ..decode() }
}

/// More blocks than fit, so that they are scheduled in waves.
pub fn big(d: i64) -> Case {
    Case { b: 4, h_q: 16, h_kv: 4, s_q: 900, s_kv: 900, d_qk: d, d_v: d, ..prefill() }
}

pub fn padded(base: Case, q: &[i64], kv: &[i64]) -> Case {
    Case { b: q.len() as i64, lens: Lens::Padded { q: q.to_vec(), kv: kv.to_vec() }, ..base }
}

pub fn batches(engine: &'static str) -> Case {
    let small = Case { h_q: 1, h_kv: 1, s_q: 4, s_kv: 4, d_qk: 8, d_v: 8, ..Case::default() };
    Case { engine, b: 65_536, mask: MaskKind::Causal, ..small }
}

/// One case of each kind that the specials run: they must be planned where no GPU is.
pub fn samples() -> Vec<Case> {
    let paged = Fwd { pages: Some(Pages { rows: 16, nhd: true, spare: 1 }), stats: StatsKind::Log2, ..Fwd::default() };
    vec![
        prefill(),
        decode(),
        split(4),
        big(128),
        hopper(big(128)),
        hopper(prefill()),
        padded(Case { fwd: paged, ..split(8) }, &[3, 3], &[700, 700]),
        padded(Case { s_kv: 401, h_kv: 8, ..split(1) }, &[3], &[400]),
        padded(Case { mask: MaskKind::CausalBottomRight, s_q: 256, s_kv: 64, ..prefill() }, &[256, 256], &[64, 0]),
        batches(PREFILL),
        batches(DECODE),
        batches(HOPPER),
    ]
}
