//! Forward graphs for the NVRTC sweep: every head-dim flavour of a row in its default plan, and the busiest switches on some devices.

use crate::kernels;
use frostgraph::engines::{Launch, Row};
use frostgraph::graph::{Graph, GraphOptions, Mask, Sdpa, Tensor, TensorId};
use frostgraph::plan::BuildOptions;
use frostgraph::{DType, Device};

const BATCH: i64 = 1;
const GROUP: i64 = 4;
const HEADS_KV: i64 = 2;
const PAGE: i64 = 16;

/// One graph of the sweep.
#[derive(Clone, Copy)]
struct Shape {
    s_q: i64,
    s_kv: i64,
    d_qk: i64,
    d_v: i64,
    io: DType,
    /// Every switch that the row has room for.
    rich: bool,
    paged: bool,
    /// A bias among them.
    bias: bool,
    /// Score maximum and sum.
    scores: bool,
    /// Query heads with keys of their own.
    own_keys: bool,
    /// Without a mask.
    full: bool,
}

/// As many queries as keys in bf16, causal, without any switch.
fn plain(rows: i64, (d_qk, d_v): (i64, i64)) -> Shape {
    Shape {
        s_q: rows,
        s_kv: rows,
        d_qk,
        d_v,
        io: DType::BF16,
        rich: false,
        paged: false,
        bias: false,
        scores: false,
        own_keys: false,
        full: false,
    }
}

fn bshd(name: &str, [b, h, s, d]: [i64; 4]) -> Tensor {
    Tensor::new(name, [b, h, s, d]).strides([s * h * d, d, h * d, 1])
}

fn ints(g: &mut Graph, name: &str, n: i64) -> TensorId {
    g.tensor(Tensor::new(name, [n, 1, 1, 1]).dtype(DType::I32))
}

fn graph(s: Shape) -> Graph {
    graph_of(s, BATCH)
}

fn graph_of(s: Shape, batch: i64) -> Graph {
    let mut g = Graph::new(GraphOptions { io: s.io, ..GraphOptions::default() });
    let heads = HEADS_KV * GROUP;
    let heads_kv = if s.own_keys { heads } else { HEADS_KV };
    let keys = if s.paged { [batch * s.s_kv / PAGE, heads_kv, PAGE, 0] } else { [batch, heads_kv, s.s_kv, 0] };
    let q = g.tensor(bshd("q", [batch, heads, s.s_q, s.d_qk]));
    let k = g.tensor(bshd("k", [keys[0], keys[1], keys[2], s.d_qk]));
    let v = g.tensor(bshd("v", [keys[0], keys[1], keys[2], s.d_v]));
    let mut options = Sdpa { name: "fwd".into(), mask: Mask::causal(), generate_stats: Some(true), ..Sdpa::default() };
    if s.full {
        options.mask = Mask::none();
    }
    if s.rich {
        options.mask = Mask::causal_bottom_right().window(34);
        options.sink = Some(g.tensor(Tensor::new("sink", [1, heads, 1, 1]).dtype(DType::F32)));
        options.stats_use_log2 = true;
    }
    if s.rich || s.paged {
        options.mask = options.mask.padded();
        options.seq_len_q = Some(ints(&mut g, "seq_len_q", batch));
        options.seq_len_kv = Some(ints(&mut g, "seq_len_kv", batch));
    }
    if s.rich && s.bias {
        // Rule V17: a bias comes without a bottom-right mask.
        options.mask = Mask::causal().window(34).padded();
        options.bias = Some(g.tensor(Tensor::new("bias", [1, heads, s.s_q, s.s_kv]).dtype(DType::F32)));
    }
    (options.score_max, options.score_sum_exp) = (s.scores, s.scores);
    if s.paged {
        let table = |g: &mut Graph, name| g.tensor(Tensor::new(name, [batch, 1, s.s_kv / PAGE, 1]).dtype(DType::I32));
        options.page_table_k = Some(table(&mut g, "table_k"));
        options.page_table_v = Some(table(&mut g, "table_v"));
        options.max_seq_len_kv = Some(s.s_kv);
    }
    let out = g.sdpa(q, k, v, options).unwrap();
    for id in [Some(out.o), out.stats, out.score_max, out.score_sum_exp].into_iter().flatten() {
        g.output(id).unwrap();
    }
    g
}

fn launches(row: &Row, s: Shape, cc: u32) -> Vec<Launch> {
    launches_of(row, &graph(s), cc)
}

/// Launches of the row's best plan for a graph.
pub fn launches_of(row: &Row, graph: &Graph, cc: u32) -> Vec<Launch> {
    let device = Device::describe(&format!("sm_{cc}")).unwrap();
    let built = graph.build_with(&device, &BuildOptions::all_engines()).unwrap();
    let plan = built.plans().find(|p| p.entries().all(|e| e.row.id == row.id)).unwrap_or_else(|| {
        let reasons: Vec<String> = built.declined().map(|d| d.to_string()).collect();
        panic!("sm_{cc} {}: no plan: {reasons:?}", row.name)
    });
    plan.lower().unwrap().nodes.iter().flat_map(|n| kernels(&n.launches)).collect()
}

/// What the sweep compiles of a forward row for one head-dim flavour on one architecture.
pub fn work(row: &Row, (d_qk, d_v): (i64, i64), cc: u32) -> Vec<Launch> {
    // Long enough to fill every device: short problems take other tiles.
    let plain = plain(8192, (d_qk, d_v));
    // Long enough to be split on every device: decode and combine.
    let token = Shape { s_q: 1, s_kv: 8192, ..plain };
    let rich = |s: Shape| Shape { io: DType::F16, rich: true, ..s };
    let decode = row.name.contains("decode");
    let mut all = launches(row, if decode { token } else { plain }, cc);
    if cc == 90 || cc == 120 {
        if decode {
            // Paged and split; and short, so in one launch.
            all.extend(launches(row, Shape { paged: true, ..rich(token) }, cc));
            all.extend(launches(row, rich(Shape { s_q: 4, s_kv: 64, ..token }), cc));
        } else {
            all.extend(launches(row, rich(Shape { bias: true, scores: true, ..plain }), cc));
            all.extend(launches(row, rich(Shape { bias: true, scores: true, s_q: 17, ..plain }), cc));
            all.extend(launches(row, Shape { s_q: 1024, s_kv: 1024, ..plain }, cc));
            if row.name == "sdpa_fwd_prefill_sm90" {
                // Tiles without a bias have more keys; several short sequences pack their heads; heads with keys of their own that no cache holds take
                // clusters.
                all.extend(launches(row, rich(plain), cc));
                all.extend(launches_of(row, &graph_of(Shape { s_q: 17, ..plain }, 64), cc));
                let own = Shape { own_keys: true, ..plain };
                let owns = [own, Shape { io: DType::F16, ..own }, Shape { scores: true, ..own }];
                let clusters: Vec<Launch> = owns.into_iter().flat_map(|s| launches_of(row, &graph_of(s, 32), cc)).collect();
                assert!(d_qk == 64 || clusters.iter().all(|l| l.cluster[0] == 2), "d{d_qk}: no clusters");
                all.extend(clusters);
            }
        }
    }
    all
}

/// Every plan, not the best alone, of what the ranking tells apart on Hopper: problems of one wave and long ones, grouped heads and heads of their own, masked and not.
pub fn every_plan(cc: u32) -> Vec<Launch> {
    let device = Device::describe(&format!("sm_{cc}")).unwrap();
    let mut all = Vec::new();
    for (d_qk, d_v) in [(64, 64), (128, 128), (192, 128), (256, 256)] {
        for (s_kv, own_keys, full) in [(512, true, false), (8192, false, false), (8192, true, false), (8192, true, true)] {
            let s = Shape { own_keys, full, ..plain(s_kv, (d_qk, d_v)) };
            let built = graph_of(s, 8).build_with(&device, &BuildOptions::all_engines()).unwrap();
            all.extend(built.plans().flat_map(|p| {
                let lowered = p.lower().unwrap();
                lowered.nodes.iter().flat_map(|n| kernels(&n.launches)).collect::<Vec<_>>()
            }));
        }
    }
    all
}
