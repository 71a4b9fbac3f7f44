//! The graph of one call.

use super::super::operand::Shape;
use super::{bad, GroupedGemmDsreluCall};
use crate::graph::{GemmWeights, Graph, GraphOptions, GroupedGemmDsrelu, GroupedGemmDsreluAttrs, Tensor, TensorId};
use crate::{DType, ErrorCode, Result};

const NAMES: [&str; 21] = [
    "a",
    "b",
    "c",
    "sfa",
    "sfb",
    "padded_offsets",
    "alpha",
    "prob",
    "norm_const",
    "b_ptrs",
    "sfb_ptrs",
    "d_row",
    "d_col",
    "dprob",
    "dbias",
    "amax",
    "sfd_row",
    "sfd_col",
    "d_srelu",
    "sfd_col_d_srelu",
    "status",
];

/// The extents of an operand of this rank; a further one is not dropped silently.
fn leading(i: usize, s: &Shape, rank: usize) -> Result<Vec<i64>> {
    let fault = |e| bad(ErrorCode::GemmShape, format!("{} of {e}", NAMES[i]), "extents of 1 behind its own");
    Ok(s.leading(rank).map_err(fault)?.0)
}

pub(super) fn graph(c: &GroupedGemmDsreluCall<'_>, attrs: GroupedGemmDsreluAttrs) -> Result<Graph> {
    let shapes = c.shapes();
    let need = |i: usize| shapes[i].ok_or_else(|| bad(ErrorCode::MissingPort, format!("no {}", NAMES[i]), "the operand"));
    let (a, offsets) = (need(0)?, need(5)?);
    let (m, k, l) = (a.dim[0], a.dim[1], offsets.dim[0]);
    let pointers = shapes[9].is_some() || shapes[10].is_some();
    let n = if pointers { c.n.unwrap_or(0) } else { need(1)?.dim[0] };
    let vec = c.sf_vec_size;
    let mut g = Graph::new(GraphOptions { io: DType::F32, ..GraphOptions::default() });
    let plain = |i: usize, rank: usize| -> Result<Tensor> {
        let s = need(i)?;
        let t = Tensor::new(NAMES[i], leading(i, &s, rank)?).dtype(s.dtype).uid(i as i64 + 1);
        // Scalars a row or an expert need no more than their element.
        Ok(if rank == 1 || i == 7 { t.alignment(s.dtype.bytes().unwrap_or(1) as i64) } else { t })
    };
    let scales = |i: usize, rows: i64, columns: i64, vec: i64, slices: i64| -> Result<Tensor> {
        Ok(Tensor::scale_atoms(NAMES[i], need(i)?.dtype, [rows, columns], vec, slices)?.uid(i as i64 + 1))
    };
    let mut add = |t: Result<Tensor>| t.map(|t| g.tensor(t));
    let a = add(plain(0, 3))?;
    let c_tensor = add(plain(2, 3))?;
    let sfa = add(scales(3, m, k, vec, 1))?;
    let [offsets, alpha, prob] = [add(plain(5, 1))?, add(plain(6, 1))?, add(plain(7, 3))?];
    let norm_const = shapes[8].is_some().then(|| add(plain(8, 1))).transpose()?;
    let mut pool = |i: usize| shapes[i].is_some().then(|| add(plain(i, 4))).transpose();
    let weights = if pointers {
        let (b, sfb) = (pool(1)?, pool(4)?);
        let (b_ptrs, sfb_ptrs) = (add(plain(9, 1))?, add(plain(10, 1))?);
        match (b, sfb) {
            (Some(b), Some(sfb)) => GemmWeights::Pool { b, sfb, b_ptrs, sfb_ptrs },
            (None, None) => GemmWeights::Addresses { b_ptrs, sfb_ptrs },
            (Some(_), None) | (None, Some(_)) => {
                let given = "a pool of payloads or of scales alone".to_string();
                return Err(bad(ErrorCode::MissingPort, given, "both pools, or neither"));
            }
        }
    } else {
        GemmWeights::Dense { b: add(plain(1, 3))?, sfb: add(scales(4, n, k, vec, l))? }
    };
    let options = GroupedGemmDsrelu {
        name: "grouped_gemm_dsrelu".into(),
        attrs,
        norm_const,
        dbias: shapes[14].is_some(),
        amax: shapes[15].is_some(),
        d_srelu: shapes[18].is_some(),
        status: shapes[20].is_some(),
        compute_dtype: Some(c.acc_dtype),
    };
    let out = g.grouped_gemm_dsrelu(a, weights, c_tensor, sfa, offsets, alpha, prob, options)?;
    let outputs: [(usize, usize, Option<TensorId>); 10] = [
        (11, 3, Some(out.d_row)),
        (12, 3, Some(out.d_col)),
        (13, 3, Some(out.dprob)),
        (14, 3, out.dbias),
        (15, 2, out.amax),
        (16, 0, out.sfd_row),
        (17, 0, out.sfd_col),
        (18, 3, out.d_srelu),
        (19, 0, out.sfd_col_d_srelu),
        (20, 1, out.status),
    ];
    for (i, rank, id) in outputs {
        let Some(id) = id else {
            if let Some(s) = shapes[i] {
                let given = format!("{} of type {} beside results of type {}", NAMES[i], s.dtype, need(11)?.dtype);
                return Err(bad(
                    ErrorCode::GemmIdleOutput,
                    given,
                    "generated scales with FP8 results only (rule 12 of facts §9.2)",
                ));
            }
            continue;
        };
        let s = need(i)?;
        g.output(id)?;
        let t = g.get_mut(id)?;
        (t.name, t.uid, t.dtype) = (NAMES[i].to_owned(), Some(i as i64 + 1), Some(s.dtype));
        if rank > 0 {
            t.dim = leading(i, &s, rank)?;
        }
        if [13, 14, 15, 20].contains(&i) {
            t.alignment = s.dtype.bytes().unwrap_or(1) as i64;
        }
    }
    Ok(g)
}
