//! Graphs of one grouped product from a few numbers.

use frostgraph::graph::{
    BMajor, DsreluFormula, GemmWeights, Graph, GraphOptions, GroupedGemmDsrelu, GroupedGemmDsreluAttrs, GroupedGemmDsreluOutputs,
    Tensor, TensorId,
};
use frostgraph::{DType, Result};

/// Where the weights are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum B {
    Dense,
    Pool,
    Addresses,
}

#[derive(Debug, Clone)]
pub struct Case {
    pub m: i64,
    pub n: i64,
    pub k: i64,
    pub experts: i64,
    /// Type of A and B as declared: `U8` is packed FP4.
    pub ab: DType,
    pub sf: DType,
    pub c: DType,
    pub b: B,
    pub norm_const: bool,
    pub dbias: bool,
    pub amax: bool,
    pub d_srelu: bool,
    pub status: bool,
    pub compute: Option<DType>,
    pub attrs: GroupedGemmDsreluAttrs,
}

impl Default for Case {
    /// MXFP8 in, FP8 out.
    fn default() -> Case {
        Case {
            m: 512,
            n: 160,
            k: 96,
            experts: 3,
            ab: DType::F8E4M3,
            sf: DType::F8E8M0,
            c: DType::BF16,
            b: B::Dense,
            norm_const: true,
            dbias: false,
            amax: false,
            d_srelu: false,
            status: false,
            compute: None,
            attrs: GroupedGemmDsreluAttrs { sf_vec_size: 32, d_dtype: DType::F8E4M3, ..GroupedGemmDsreluAttrs::default() },
        }
    }
}

/// NVFP4 in, bf16 out with amax.
pub fn nvfp4() -> Case {
    Case {
        ab: DType::F4E2M1,
        sf: DType::F8E4M3,
        norm_const: false,
        amax: true,
        attrs: GroupedGemmDsreluAttrs::default(),
        ..Case::default()
    }
}

/// Handles of a case's graph.
pub struct Handles {
    pub a: TensorId,
    pub b: TensorId,
    pub c: TensorId,
    pub sfa: TensorId,
    pub offsets: TensorId,
    pub prob: TensorId,
    pub out: GroupedGemmDsreluOutputs,
}

pub fn build(case: &Case) -> Result<(Graph, Handles)> {
    let Case { m, n, k, experts: l, ab, sf, .. } = *case;
    let vec = case.attrs.sf_vec_size.max(1);
    let mut g = Graph::new(GraphOptions::default());
    let packed = if ab == DType::U8 { 2 } else { 1 };
    let a = g.tensor(Tensor::new("a", [m, k / packed, 1]).dtype(ab));
    let sfa = g.tensor(Tensor::scale_atoms("sfa", sf, [m, k], vec, 1)?);
    let c = g.tensor(Tensor::new("c", [m, n, 1]).dtype(case.c));
    let pointers = |g: &mut Graph, name: &str| g.tensor(Tensor::new(name, [l]).dtype(DType::I64));
    let b = g.tensor(if case.b == B::Dense {
        Tensor::new("b", [n, k / packed, l]).dtype(ab)
    } else {
        Tensor::new("b", [n * (k / packed) * l]).dtype(ab)
    });
    let sfb = g.tensor(Tensor::scale_atoms("sfb", sf, [n, k], vec, l)?);
    let weights = match case.b {
        B::Dense => GemmWeights::Dense { b, sfb },
        B::Pool => {
            let (b_ptrs, sfb_ptrs) = (pointers(&mut g, "b_ptrs"), pointers(&mut g, "sfb_ptrs"));
            GemmWeights::Pool { b, sfb, b_ptrs, sfb_ptrs }
        }
        B::Addresses => {
            let (b_ptrs, sfb_ptrs) = (pointers(&mut g, "b_ptrs"), pointers(&mut g, "sfb_ptrs"));
            GemmWeights::Addresses { b_ptrs, sfb_ptrs }
        }
    };
    let offsets = g.tensor(Tensor::new("padded_offsets", [l]).dtype(DType::I32));
    let alpha = g.tensor(Tensor::new("alpha", [l]).dtype(DType::F32));
    let prob = g.tensor(Tensor::new("prob", [m, 1, 1]).dtype(DType::F32));
    let norm_const = case.norm_const.then(|| g.tensor(Tensor::new("norm_const", [1]).dtype(DType::F32)));
    let mut attrs = case.attrs.clone();
    if case.b != B::Dense {
        attrs.n = attrs.n.or(Some(n));
    }
    let options = GroupedGemmDsrelu {
        attrs,
        norm_const,
        dbias: case.dbias,
        amax: case.amax,
        d_srelu: case.d_srelu,
        status: case.status,
        compute_dtype: case.compute,
        ..GroupedGemmDsrelu::default()
    };
    let out = g.grouped_gemm_dsrelu(a, weights, c, sfa, offsets, alpha, prob, options)?;
    let all = [
        Some(out.d_row),
        Some(out.d_col),
        Some(out.dprob),
        out.dbias,
        out.amax,
        out.sfd_row,
        out.sfd_col,
        out.d_srelu,
        out.sfd_col_d_srelu,
        out.status,
    ];
    for id in all.into_iter().flatten() {
        g.output(id)?;
    }
    Ok((g, Handles { a, b, c, sfa, offsets, prob, out }))
}

/// Every form that the CPU row serves, a case each.
pub fn served() -> Vec<(&'static str, Case)> {
    let attrs = Case::default().attrs;
    let with = |edit: &dyn Fn(&mut Case)| {
        let mut c = Case::default();
        edit(&mut c);
        c
    };
    let fp4 = |edit: &dyn Fn(&mut Case)| {
        let mut c = nvfp4();
        edit(&mut c);
        c
    };
    vec![
        ("mxfp8", Case::default()),
        ("mxfp8 e5m2 in and out", with(&|c| (c.ab, c.attrs.d_dtype) = (DType::F8E5M2, DType::F8E5M2))),
        (
            "mxfp8, everything",
            with(&|c| {
                (c.dbias, c.d_srelu, c.status) = (true, true, true);
                (c.attrs.discrete_col_sfd, c.attrs.deterministic) = (true, true);
            }),
        ),
        ("mxfp8, n-major B", with(&|c| c.attrs.b_major = BMajor::N)),
        ("mxfp8, pool", with(&|c| c.b = B::Pool)),
        ("mxfp8, n-major pool", with(&|c| (c.b, c.attrs.b_major) = (B::Pool, BMajor::N))),
        ("mxfp8, clamped", with(&|c| c.attrs = GroupedGemmDsreluAttrs { tanh_clamp_scale: Some(1.5), ..attrs.clone() })),
        ("mxfp8, the other reading", with(&|c| c.attrs.formula = DsreluFormula::PreactivationC)),
        ("nvfp4", nvfp4()),
        ("nvfp4 as bytes", fp4(&|c| c.ab = DType::U8)),
        ("nvfp4, pool", fp4(&|c| c.b = B::Pool)),
        ("nvfp4, f32 out, f64 sums", fp4(&|c| (c.attrs.d_dtype, c.compute) = (DType::F32, Some(DType::F64)))),
        ("e2m1 with e8m0/16, f16 out", fp4(&|c| (c.sf, c.attrs.d_dtype) = (DType::F8E8M0, DType::F16))),
        ("mxfp4, fp8 C", fp4(&|c| (c.sf, c.attrs.sf_vec_size, c.c) = (DType::F8E8M0, 32, DType::F8E4M3))),
    ]
}
