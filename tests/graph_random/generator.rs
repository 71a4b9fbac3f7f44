//! Random graphs of attention: well-formed ones, and edits of them.

use frostgraph::graph::{
    Alignment, AttnScale, Compat, Dropout, Graph, GraphOptions, InPort, Mask, Node, Nvfp4Qat, Nvfp4QatBackward, OutPort, Sdpa,
    SdpaBackward, Tensor, TensorId,
};
use frostgraph::DType;
use proptest::collection::vec;
use proptest::prelude::*;

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![
        8 => 0i64..70,
        1 => -3i64..3,
        1 => prop_oneof![Just(i64::MAX), Just(i64::MIN), Just(1 << 31), Just(1 << 40), Just(65_536)],
    ]
}

fn mask() -> impl Strategy<Value = Mask> {
    let bound = || proptest::option::weighted(0.3, number());
    let rare = || proptest::bool::weighted(0.2);
    (rare(), rare(), bound(), bound(), bound(), any::<bool>(), any::<bool>(), rare()).prop_map(
        |(causal, causal_bottom_right, sliding_window, left_bound, right_bound, top, padding, alibi)| Mask {
            causal,
            causal_bottom_right,
            sliding_window,
            left_bound,
            right_bound,
            alignment: if top { Alignment::TopLeft } else { Alignment::BottomRight },
            padding,
            alibi,
        },
    )
}

/// One edit of a well-formed graph; indices are taken modulo what is there.
#[derive(Debug, Clone)]
enum Edit {
    Dim(usize, Vec<i64>),
    Extent(usize, usize, i64),
    Stride(usize, Vec<i64>),
    Type(usize, usize),
    Uid(usize, i64),
    Virtual(usize),
    ByValue(usize),
    Ragged(usize, usize, i64),
    Rewire(usize, usize),
    Disconnect(usize),
    Output(usize, usize),
}

fn edit() -> impl Strategy<Value = Edit> {
    let i = || any::<usize>();
    prop_oneof![
        1 => (i(), vec(number(), 0..6)).prop_map(|(t, d)| Edit::Dim(t, d)),
        4 => (i(), 0usize..4, number()).prop_map(|(t, a, n)| Edit::Extent(t, a, n)),
        3 => (i(), vec(number(), 0..6)).prop_map(|(t, s)| Edit::Stride(t, s)),
        2 => (i(), i()).prop_map(|(t, d)| Edit::Type(t, d)),
        1 => (i(), number()).prop_map(|(t, u)| Edit::Uid(t, u)),
        1 => i().prop_map(Edit::Virtual),
        1 => i().prop_map(Edit::ByValue),
        2 => (i(), i(), number()).prop_map(|(t, o, m)| Edit::Ragged(t, o, m)),
        3 => (i(), i()).prop_map(|(p, t)| Edit::Rewire(p, t)),
        2 => i().prop_map(Edit::Disconnect),
        1 => (i(), i()).prop_map(|(p, t)| Edit::Output(p, t)),
    ]
}

/// What [`build`] makes a graph of.
#[derive(Debug, Clone)]
pub struct Plan {
    backward: bool,
    /// NVFP4 QAT instead of plain attention.
    qat: bool,
    compat: bool,
    extents: [i64; 8],
    mask: Mask,
    ports: u16,
    scale: Option<f32>,
    dropout: Option<f32>,
    edits: Vec<Edit>,
}

pub fn plan() -> impl Strategy<Value = Plan> {
    let extents = (1i64..4, 1i64..4, 1i64..3, 1i64..20, 1i64..20, 1i64..5, 1i64..5, 1i64..4);
    let extents =
        extents.prop_map(|(b, h_kv, group, s_q, s_kv, d, dv, pages)| [b, h_kv, h_kv * group, s_q, s_kv, d * 8, dv * 8, pages]);
    let option = || proptest::option::weighted(0.2, any::<f32>());
    // Two draws, so that an optional operand is there one time in four: graphs that ask for everything are seldom good.
    let ports = (any::<u16>(), any::<u16>()).prop_map(|(a, b)| a & b);
    (any::<bool>(), proptest::bool::weighted(0.25), any::<bool>(), extents, mask(), ports, option(), option(), vec(edit(), 0..4))
        .prop_map(|(backward, qat, compat, extents, mask, ports, scale, dropout, edits)| Plan {
            backward,
            qat,
            compat,
            extents,
            mask,
            ports,
            scale,
            dropout,
            edits,
        })
}

pub fn build(p: &Plan) -> Graph {
    let [b, h_kv, h, s_q, s_kv, d, d_v, pages] = p.extents;
    let compat = if p.compat { Compat::Cudnn } else { Compat::Frostgraph };
    let mut g = Graph::new(GraphOptions { compat, ..GraphOptions::default() });
    let wants = |bit: u32| p.ports >> bit & 1 == 1;
    let paged = wants(0) && wants(1) && !p.backward && !p.qat;
    // Whole blocks most of the time; the others must be refused by name.
    let (d, d_v) = if p.qat && !wants(15) { (2 * d, 2 * d_v) } else { (d, d_v) };
    let q = g.tensor(Tensor::new("q", [b, h, s_q, d]));
    let rows = if paged { [pages * b, h_kv, 8] } else { [b, h_kv, s_kv] };
    let k = g.tensor(Tensor::new("k", [rows[0], rows[1], rows[2], d]));
    let v = g.tensor(Tensor::new("v", [rows[0], rows[1], rows[2], d_v]));
    let mut optional =
        |bit: u32, name: &str, dim: [i64; 4], dtype: DType| wants(bit).then(|| g.tensor(Tensor::new(name, dim).dtype(dtype)));
    let bias = optional(2, "bias", [1, h, s_q, s_kv], DType::F32);
    // Bit 3 gives what belongs together; bit 4 takes one of it away.
    let seq_len_q = optional(3, "lq", [b, 1, 1, 1], DType::I32).filter(|_| !wants(4));
    let seq_len_kv = optional(3, "lkv", [b, 1, 1, 1], DType::I32);
    let mask = Mask { padding: (p.mask.padding && wants(13)) || wants(3), ..p.mask.clone() };
    let sink = optional(5, "sink", [1, h, 1, 1], DType::F32);
    let kv_mask = optional(6, "kvm", [1, 1, 1, s_kv], DType::F32);
    let cu = optional(7, "cu", [b + 1, 1, 1, 1], DType::I32);
    let offsets = optional(8, "off", [b + 1, 1, 1, 1], DType::I32);
    let attn_scale = p.scale.map(AttnScale::Value);
    let dropout = Dropout { probability: p.dropout, ..Dropout::default() };
    if let Some(off) = offsets {
        for id in [q, k, v] {
            g.ragged(id, off, 1).unwrap();
        }
    }
    if p.qat {
        let attn_scale = p.scale.map(|s| s.abs());
        if p.backward {
            let [o, d_o] = ["o", "d_o"].map(|n| g.tensor(Tensor::new(n, [b, h, s_q, d_v])));
            let lse = g.tensor(Tensor::new("lse", [b, h, s_q, 1]).dtype(DType::F32));
            let deterministic = wants(11);
            let options = Nvfp4QatBackward { mask, attn_scale, seq_len_q, seq_len_kv, deterministic, ..Default::default() };
            g.nvfp4_attention_qat_backward(d_o, q, k, v, o, lse, options).unwrap();
        } else {
            let options = Nvfp4Qat { mask, attn_scale, seq_len_q, seq_len_kv, ..Default::default() };
            g.nvfp4_attention_qat_forward(q, k, v, options).unwrap();
        }
    } else if p.backward {
        let [o, d_o] = ["o", "d_o"].map(|n| g.tensor(Tensor::new(n, [b, h, s_q, d_v])));
        let stats = g.tensor(Tensor::new("stats", [b, h, s_q, 1]).dtype(DType::F32));
        let options = SdpaBackward {
            mask,
            attn_scale,
            bias,
            dbias: wants(9),
            seq_len_q,
            seq_len_kv,
            sink,
            dsink: wants(10),
            dropout,
            deterministic: wants(11),
            score_mod: wants(12) && wants(13),
            ..SdpaBackward::default()
        };
        g.sdpa_backward(q, k, v, o, d_o, stats, options).unwrap();
    } else {
        let table = |g: &mut Graph, n: &str| g.tensor(Tensor::new(n, [b, 1, pages, 1]).dtype(DType::I32));
        let page_table_k = paged.then(|| table(&mut g, "tk"));
        let page_table_v = paged.then(|| table(&mut g, "tv"));
        let options = Sdpa {
            mask,
            attn_scale,
            bias,
            seq_len_q,
            seq_len_kv,
            cu_seq_len_q: cu,
            sink,
            kv_mask,
            dropout,
            page_table_k,
            page_table_v,
            generate_stats: Some(wants(9)),
            score_max: wants(10),
            rng_dump: wants(11),
            score_mod: wants(12) && wants(13),
            attn_scale_prefolded: wants(14) && wants(15),
            ..Sdpa::default()
        };
        g.sdpa(q, k, v, options).unwrap();
    }
    let ids: Vec<TensorId> = g.tensors().map(|(id, _)| id).collect();
    for edit in &p.edits {
        apply(&mut g, &ids, edit);
    }
    g
}

/// Edits of nodes rebuild the graph, because nodes are not changed in place.
fn apply(g: &mut Graph, ids: &[TensorId], edit: &Edit) {
    let id = |i: usize| ids[i % ids.len()];
    match edit {
        Edit::Dim(t, d) => g.get_mut(id(*t)).unwrap().dim.clone_from(d),
        Edit::Extent(t, a, n) => {
            if let Some(e) = g.get_mut(id(*t)).unwrap().dim.get_mut(*a) {
                *e = *n;
            }
        }
        Edit::Stride(t, s) => g.get_mut(id(*t)).unwrap().stride.clone_from(s),
        Edit::Type(t, d) => g.get_mut(id(*t)).unwrap().dtype = Some(DType::ALL[d % DType::ALL.len()]),
        Edit::Uid(t, u) => g.get_mut(id(*t)).unwrap().uid = Some(*u),
        Edit::Virtual(t) => g.get_mut(id(*t)).unwrap().is_virtual ^= true,
        Edit::ByValue(t) => g.get_mut(id(*t)).unwrap().pass_by_value ^= true,
        Edit::Ragged(t, o, m) => g.ragged(id(*t), id(*o), *m).unwrap(),
        Edit::Rewire(p, t) => {
            let port = InPort::ALL[p % InPort::ALL.len()];
            rebuild(g, |n| {
                n.inputs.insert(port, id(*t));
            });
        }
        Edit::Disconnect(p) => rebuild(g, |n| {
            let inputs: Vec<InPort> = n.inputs.keys().copied().collect();
            if let Some(port) = inputs.get(p % inputs.len().max(1)) {
                n.inputs.remove(port);
            }
        }),
        Edit::Output(p, t) => {
            let port = OutPort::ALL[p % OutPort::ALL.len()];
            rebuild(g, |n| {
                n.outputs.insert(port, id(*t));
            });
        }
    }
}

fn rebuild(g: &mut Graph, edit: impl Fn(&mut Node)) {
    let mut fresh = Graph::new(g.options().clone());
    for (_, t) in g.tensors() {
        fresh.tensor(t.clone());
    }
    for node in g.nodes() {
        let mut node = node.clone();
        edit(&mut node);
        fresh.node(node);
    }
    *g = fresh;
}
