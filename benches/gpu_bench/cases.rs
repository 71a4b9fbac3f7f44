//! The cases of the peers' table, as graphs.

use frostgraph::exec::Operand;
use frostgraph::graph::{AttnScale, Graph, GraphOptions, Mask, Sdpa, SdpaBackward, Tensor, TensorId};
use frostgraph::{DType, Result};
use serde_json::{json, Value};

/// One attention at full size, bf16, memory order B, S, H, D.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub b: i64,
    pub h_q: i64,
    pub h_kv: i64,
    pub s: i64,
    pub d_qk: i64,
    pub d_v: i64,
    pub causal: bool,
    /// Keys a query keeps, its own included.
    pub window: Option<i64>,
}

const fn case(b: i64, h_q: i64, h_kv: i64, s: i64, (d_qk, d_v): (i64, i64), causal: bool) -> Case {
    Case { b, h_q, h_kv, s, d_qk, d_v, causal, window: None }
}

/// In the table's order.
pub const ALL: &[Case] = &[
    case(1, 64, 8, 4096, (128, 128), true),
    case(1, 64, 8, 8192, (128, 128), true),
    case(1, 64, 8, 16384, (128, 128), true),
    case(1, 64, 8, 4096, (128, 128), false),
    case(1, 64, 8, 8192, (128, 128), false),
    case(1, 64, 8, 16384, (128, 128), false),
    case(4, 16, 16, 4096, (128, 128), true),
    case(4, 32, 32, 4096, (64, 64), true),
    case(2, 32, 32, 8192, (64, 64), false),
    case(1, 128, 128, 4096, (192, 128), true),
    case(1, 128, 128, 8192, (192, 128), true),
    case(1, 16, 16, 8192, (256, 256), true),
    case(1, 16, 16, 8192, (256, 256), false),
    Case { window: Some(1024), ..case(2, 64, 8, 8192, (64, 64), true) },
];

/// Problems that hardly fill a device, of the forward.
pub const SHORT: &[Case] = &[
    case(2, 8, 2, 256, (64, 64), true),
    case(1, 16, 16, 512, (64, 64), true),
    case(1, 8, 8, 1024, (64, 64), false),
    case(1, 8, 8, 2048, (64, 64), true),
    case(1, 32, 8, 256, (128, 128), true),
    case(1, 16, 16, 512, (128, 128), false),
    case(1, 32, 8, 1024, (128, 128), true),
    case(1, 16, 4, 1024, (128, 128), false),
    case(1, 8, 8, 2048, (128, 128), true),
    case(1, 16, 16, 512, (192, 128), true),
];

impl Case {
    pub fn name(&self) -> String {
        let mask = match (self.causal, self.window) {
            (_, Some(w)) => format!("causal window {w}"),
            (true, None) => "causal".into(),
            (false, None) => "full".into(),
        };
        format!("B{} H{}/{} S{} d{}/{} {mask}", self.b, self.h_q, self.h_kv, self.s, self.d_qk, self.d_v)
    }

    pub fn json(&self) -> Value {
        json!({
            "name": self.name(), "b": self.b, "h_q": self.h_q, "h_kv": self.h_kv, "s": self.s, "d_qk": self.d_qk, "d_v": self.d_v,
            "causal": self.causal, "window": self.window,
        })
    }

    /// The share of all pairs of query and key that is kept: half of them under a causal mask, the exact band under a window.
    fn share(&self) -> f64 {
        match (self.causal, self.window) {
            (_, Some(w)) => 1.0 - (1.0 - w as f64 / self.s as f64).powi(2),
            (true, None) => 0.5,
            (false, None) => 1.0,
        }
    }

    fn pairs(&self) -> f64 {
        (self.b * self.h_q) as f64 * (self.s * self.s) as f64 * self.share()
    }

    /// Multiply-adds times two of the five products.
    pub fn backward_flops(&self) -> f64 {
        2.0 * self.pairs() * (3 * self.d_qk + 2 * self.d_v) as f64
    }

    /// Multiply-adds times two of the two products.
    pub fn forward_flops(&self) -> f64 {
        2.0 * self.pairs() * (self.d_qk + self.d_v) as f64
    }

    pub fn mask(&self) -> Mask {
        let mask = if self.causal { Mask::causal() } else { Mask::none() };
        self.window.map_or(mask.clone(), |w| mask.window(w))
    }

    pub fn scale(&self) -> Option<AttnScale> {
        Some(AttnScale::Value((self.d_qk as f32).sqrt().recip()))
    }

    pub fn operand(&self, g: &mut Graph, name: &str, h: i64, d: i64) -> TensorId {
        g.tensor(Tensor::new(name, [self.b, h, self.s, d]).strides([self.s * h * d, d, h * d, 1]))
    }

    pub fn backward(&self, deterministic: bool) -> Result<Graph> {
        let mut g = Graph::new(GraphOptions { io: DType::BF16, ..GraphOptions::default() });
        let q = self.operand(&mut g, "Q", self.h_q, self.d_qk);
        let k = self.operand(&mut g, "K", self.h_kv, self.d_qk);
        let v = self.operand(&mut g, "V", self.h_kv, self.d_v);
        let o = self.operand(&mut g, "O", self.h_q, self.d_v);
        let d_o = self.operand(&mut g, "dO", self.h_q, self.d_v);
        let stats = g.tensor(Tensor::new("Stats", [self.b, self.h_q, self.s, 1]).dtype(DType::F32));
        let options = SdpaBackward { mask: self.mask(), attn_scale: self.scale(), deterministic, ..Default::default() };
        let grads = g.sdpa_backward(q, k, v, o, d_o, stats, options)?;
        for id in [grads.dq, grads.dk, grads.dv] {
            g.output(id)?;
        }
        Ok(g)
    }

    /// With Stats, as training asks for it.
    pub fn forward(&self) -> Result<Graph> {
        self.forward_with(|_| Sdpa::default())
    }

    /// With what `options` asks for beyond.
    pub fn forward_with(&self, options: impl FnOnce(&mut Graph) -> Sdpa) -> Result<Graph> {
        let mut g = Graph::new(GraphOptions { io: DType::BF16, ..GraphOptions::default() });
        let q = self.operand(&mut g, "Q", self.h_q, self.d_qk);
        let k = self.operand(&mut g, "K", self.h_kv, self.d_qk);
        let v = self.operand(&mut g, "V", self.h_kv, self.d_v);
        let options = Sdpa { mask: self.mask(), attn_scale: self.scale(), generate_stats: Some(true), ..options(&mut g) };
        let out = g.sdpa(q, k, v, options)?;
        let o = g.get_mut(out.o)?;
        (o.dim, o.stride) =
            (vec![self.b, self.h_q, self.s, self.d_v], vec![self.s * self.h_q * self.d_v, self.d_v, self.h_q * self.d_v, 1]);
        for id in [Some(out.o), out.stats].into_iter().flatten() {
            g.output(id)?;
        }
        Ok(g)
    }

    /// Stats as random scores would have them: ln of the kept keys plus half the variance of the scores, which is one.
    pub fn stats(&self, operand: &Operand) -> Option<Vec<u8>> {
        (operand.name == "Stats" && !operand.written).then(|| {
            let kept = |i: i64| {
                let all = if self.causal { i + 1 } else { self.s };
                self.window.map_or(all, |w| all.min(w)) as f32
            };
            (0..self.s).flat_map(|i| (kept(i).ln() + 0.5).to_ne_bytes()).collect()
        })
    }
}
