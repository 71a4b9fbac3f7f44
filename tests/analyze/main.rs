//! The analyzer through the public surface: graphs in, facts out.

mod features;
mod graphs;
mod layouts;
mod masks;

use frostgraph::analyze::analyze;
use frostgraph::engines::sdpa::{Direction, Scale, StatsPacking};
use frostgraph::engines::{Facts, Feature, FeatureSet, SdpaFacts};
use frostgraph::graph::{Alignment, AttnScale, Compat, Graph, GraphOptions, Mask, ScalarValue, Sdpa, SdpaBackward, Tensor};
use frostgraph::DType;

fn facts(g: &Graph) -> SdpaFacts {
    let frozen = g.freeze().unwrap();
    let Facts::Sdpa(f) = analyze(&frozen, 0) else { panic!("attention") };
    *f
}

fn thd(stats_stride: [i64; 4], ragged_stats: bool) -> SdpaFacts {
    let mut g = Graph::new(GraphOptions::default());
    let (b, h, s, d) = (3, 4, 16, 32);
    let off = g.tensor(Tensor::new("off", [b + 1, 1, 1, 1]).dtype(DType::I64));
    let stride = [s * h * d, d, h * d, 1];
    let [q, k, v] = ["q", "k", "v"].map(|n| g.tensor(Tensor::new(n, [b, h, s, d]).strides(stride).ragged(off, h * d)));
    let [lq, lk] = ["lq", "lk"].map(|n| g.tensor(Tensor::new(n, [b, 1, 1, 1]).dtype(DType::I32)));
    let options = Sdpa {
        mask: Mask::causal().padded(),
        seq_len_q: Some(lq),
        seq_len_kv: Some(lk),
        generate_stats: Some(true),
        max_total_seq_len_q: Some(40),
        ..Sdpa::default()
    };
    let out = g.sdpa(q, k, v, options).unwrap();
    let stats = out.stats.unwrap();
    g.ragged(out.o, off, h * d).unwrap();
    g.get_mut(stats).unwrap().stride = stats_stride.to_vec();
    if ragged_stats {
        g.ragged(stats, off, h).unwrap();
    }
    g.output(out.o).unwrap();
    g.output(stats).unwrap();
    facts(&g)
}
