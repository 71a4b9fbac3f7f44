//! The graph of a forward case.

use super::{output, place, strides, Parts, CU_KV, CU_Q, K, MAX, O, Q, SEQ_KV, SEQ_Q, STATS, SUM, TABLE_K, TABLE_V, V};
use crate::cases::{Case, Layout, Lens, Pages, StatsKind};
use frostgraph::graph::{Graph, Sdpa, Tensor, TensorId};
use frostgraph::{DType, Result};

/// Entries of a sequence in the block table.
pub fn table_entries(c: &Case, pages: Pages) -> i64 {
    (c.s_kv + pages.rows - 1) / pages.rows + pages.spare
}

/// Pages that the pool holds: enough for every sequence at its maximum, and two that nobody owns.
pub fn pool_pages(c: &Case, pages: Pages) -> i64 {
    c.b * ((c.s_kv + pages.rows - 1) / pages.rows) + 2
}

/// K or V as a page pool.
fn pool(p: &mut Parts<'_>, name: &str, uid: i64, pages: Pages, d: i64) -> TensorId {
    let dim = [pool_pages(p.c, pages), p.c.h_kv, pages.rows, d];
    let layout = if pages.nhd { Layout::Bshd } else { Layout::Bhsd };
    p.g.tensor(Tensor::new(name, dim).strides(strides(layout, dim)).uid(uid))
}

fn table(p: &mut Parts<'_>, name: &str, uid: i64, pages: Pages) -> TensorId {
    let dim = [p.c.b, 1, table_entries(p.c, pages), 1];
    p.g.tensor(Tensor::new(name, dim).dtype(DType::I32).uid(uid))
}

pub fn graph(c: &Case) -> Result<Graph> {
    let mut p = Parts::new(c);
    let q = p.input("Q", Q, [c.b, c.h_q, c.s_q, c.d_qk], true);
    let (max_total_seq_len_q, max_total_seq_len_kv) = p.totals();
    let mut options = Sdpa {
        mask: p.mask(),
        attn_scale: p.scale(),
        generate_stats: Some(c.fwd.stats != StatsKind::None),
        stats_use_log2: c.fwd.stats == StatsKind::Log2,
        score_max: c.fwd.max_sum,
        score_sum_exp: c.fwd.max_sum,
        max_total_seq_len_q,
        max_total_seq_len_kv,
        ..Sdpa::default()
    };
    let (k, v) = match c.fwd.pages {
        Some(pages) => {
            options.page_table_k = Some(table(&mut p, "page_table_k", TABLE_K, pages));
            options.page_table_v = Some(table(&mut p, "page_table_v", TABLE_V, pages));
            options.max_seq_len_kv = Some(c.s_kv);
            (pool(&mut p, "K", K, pages, c.d_qk), pool(&mut p, "V", V, pages, c.d_v))
        }
        None => {
            let dim = |d| [c.b, c.h_kv, c.s_kv, d];
            (p.input("K", K, dim(c.d_qk), false), p.input("V", V, dim(c.d_v), false))
        }
    };
    if c.lens != Lens::Full {
        if c.fwd.cu {
            options.cu_seq_len_q = Some(p.ints("cu_seq_len_q", CU_Q, c.b + 1, DType::I32));
            options.cu_seq_len_kv = Some(p.ints("cu_seq_len_kv", CU_KV, c.b + 1, DType::I32));
        } else {
            options.seq_len_q = Some(p.ints("seq_len_q", SEQ_Q, c.b, DType::I32));
            options.seq_len_kv = Some(p.ints("seq_len_kv", SEQ_KV, c.b, DType::I32));
        }
    }
    options.bias = p.bias();
    options.sink = p.sink();
    let out = p.g.sdpa(q, k, v, options)?;
    output(&mut p.g, out.o, O, c.dtype)?;
    place(&mut p, out.o, [c.b, c.h_q, c.s_q, c.d_v], true)?;
    let (stride, multiplier) = p.row_values();
    for (id, uid) in [(out.stats, STATS), (out.score_max, MAX), (out.score_sum_exp, SUM)] {
        let Some(id) = id else { continue };
        output(&mut p.g, id, uid, DType::F32)?;
        let t = p.g.get_mut(id)?;
        t.dim = vec![c.b, c.h_q, c.s_q, 1];
        t.stride = stride.to_vec();
        if let Some(offset) = p.side(true) {
            p.g.ragged(id, offset, multiplier)?;
        }
    }
    Ok(p.g)
}
