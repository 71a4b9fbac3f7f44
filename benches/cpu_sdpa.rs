//! CPU attention beside PyTorch: `cargo bench --bench cpu_sdpa`.
//!
//! Prints the forward and backward time of B1 H8 S2048 D64 bf16 causal and, when a Python with PyTorch is found (`python3`, or
//! `FROSTGRAPH_PYTHON`), the time of its float32 `scaled_dot_product_attention` with as many threads, measured in turn with ours so
//! that a busy machine slows both. Then the peak memory of the backward, each extent in a process of its own.

use frostgraph_engines::sdpa::{Direction, Mask, Recipe, Scale, SdpaFacts, SdpaPorts};
use frostgraph_engines::{sdpa_bwd, sdpa_fwd, DType, Facts, FeatureSet, HostBuffers, Knobs, LaunchPlan, Port, Step, Target, Uid};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

const HEADS: i64 = 8;
const DIM: i64 = 64;
const ROUNDS: usize = 9;

const PYTHON: &str = r#"
import sys, time, torch
threads, heads, s, d = map(int, sys.argv[1:5])
torch.set_num_threads(threads)
torch.manual_seed(0)
q, k, v, g = (torch.randn(1, heads, s, d) for _ in range(4))
for x in (q, k, v): x.requires_grad_(True)
f = torch.nn.functional.scaled_dot_product_attention
def forward():
    with torch.no_grad():
        t = time.perf_counter(); f(q, k, v, is_causal=True); return time.perf_counter() - t
def backward():
    o = f(q, k, v, is_causal=True)
    t = time.perf_counter(); torch.autograd.grad(o, (q, k, v), g); return time.perf_counter() - t
forward(); backward()
print(torch.__version__, torch.get_num_threads(), flush=True)
for line in sys.stdin:
    print(forward() if line.strip() == 'forward' else backward(), flush=True)
"#;

/// A PyTorch process that measures on request.
struct Torch {
    child: Child,
    ask: ChildStdin,
    answer: BufReader<ChildStdout>,
}

impl Torch {
    fn start(threads: usize, s: i64) -> Option<(Torch, String)> {
        let python = std::env::var("FROSTGRAPH_PYTHON").unwrap_or_else(|_| "python3".into());
        let args = [threads as i64, HEADS, s, DIM].map(|x| x.to_string());
        let mut child = Command::new(python)
            .args(["-c", PYTHON])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let (ask, answer) = (child.stdin.take()?, BufReader::new(child.stdout.take()?));
        let mut torch = Torch { child, ask, answer };
        let version = torch.line()?;
        Some((torch, version))
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        self.answer.read_line(&mut line).ok()?;
        (!line.is_empty()).then(|| line.trim().to_string())
    }

    fn seconds(&mut self, what: &str) -> Option<f64> {
        writeln!(self.ask, "{what}").ok()?;
        self.line()?.parse().ok()
    }
}

impl Drop for Torch {
    fn drop(&mut self) {
        // The process ends by itself when its input closes; this only spares the wait.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A node with its buffers.
struct Node {
    facts: Facts,
    plan: LaunchPlan,
    buffers: BTreeMap<Uid, Vec<u64>>,
    outputs: Vec<Uid>,
    workspace: Vec<u128>,
}

fn port(uid: Uid, name: &str, dim: [i64; 4], dtype: DType) -> Port {
    let stride = [dim[1] * dim[2] * dim[3], dim[2] * dim[3], dim[3], 1];
    Port { uid, name: name.into(), dim, stride, dtype, alignment: 16, is_virtual: false, ragged: None }
}

impl Node {
    fn new(direction: Direction, s: i64) -> Node {
        let wide = [1, HEADS, s, DIM];
        let io = |uid, name| Some(port(uid, name, wide, DType::BF16));
        let stats = Some(port(5, "Stats", [1, HEADS, s, 1], DType::F32));
        let mut ports = SdpaPorts { q: io(1, "Q"), k: io(2, "K"), v: io(3, "V"), o: io(4, "O"), stats, ..SdpaPorts::default() };
        let outputs = match direction {
            Direction::Forward => vec![4, 5],
            Direction::Backward => {
                (ports.d_o, ports.dq, ports.dk, ports.dv) = (io(6, "dO"), io(7, "dQ"), io(8, "dK"), io(9, "dV"));
                vec![7, 8, 9]
            }
        };
        let facts = Facts::Sdpa(Box::new(SdpaFacts {
            recipe: Recipe::Plain,
            direction,
            invalid: None,
            b: 1,
            h_q: HEADS,
            h_kv: HEADS,
            s_q: s,
            s_kv: s,
            d_qk: DIM,
            d_v: DIM,
            page_size: None,
            dtype: DType::BF16,
            uniform_dtype: true,
            dtype_o: DType::BF16,
            bshd_layout: false,
            packed_layout: false,
            dense_layout: true,
            aligned_16: true,
            mask: Mask { left: None, right: Some(0), bottom_right: false },
            scale: Scale::Static(0.125),
            features: FeatureSet::EMPTY,
            wants_stats: true,
            stats_packing: None,
            max_total_seq_len_q: None,
            max_total_seq_len_kv: None,
            ports,
        }));
        let lower = match direction {
            Direction::Forward => sdpa_fwd::cpu::lower,
            Direction::Backward => sdpa_bwd::cpu::lower,
        };
        let plan = lower(&facts, &Knobs::NONE, &Target::Cpu).expect("the CPU row serves this node");
        let mut state = 1u64;
        let mut half = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // bf16 values of either sign between 2^-2 and 2, by their bits.
            let exponent = 0x3e80 + (((state >> 40) as u16 % 3) << 7);
            ((state >> 48) as u16 & 0x807f) | exponent
        };
        let elements = (HEADS * s * DIM) as usize;
        let mut buffers = BTreeMap::new();
        for uid in [1, 2, 3, 4, 6, 7, 8, 9] {
            let words = (0..elements / 4).map(|_| (0..4).fold(0u64, |w, _| w << 16 | half() as u64)).collect();
            buffers.insert(uid, words);
        }
        // Stats near the logarithm of a sum of 2000 exponentials: any finite value takes the same time.
        let stat = 8.0f32.to_bits() as u64;
        buffers.insert(5, vec![stat << 32 | stat; (HEADS * s) as usize / 2]);
        let workspace = vec![0; plan.workspace_bytes as usize / 16 + 8];
        Node { facts, plan, buffers, outputs, workspace }
    }

    fn seconds(&mut self) -> f64 {
        let mut host = HostBuffers::default();
        for (uid, words) in &mut self.buffers {
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(words);
            if self.outputs.contains(uid) {
                host.outputs.insert(*uid, bytes);
            } else {
                host.inputs.insert(*uid, bytes);
            }
        }
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.workspace);
        let skip = bytes.as_ptr().align_offset(128);
        host.workspace = &mut bytes[skip..];
        let Some(Step::Host(call)) = self.plan.steps.first() else { panic!("a host step") };
        let start = Instant::now();
        (call.run)(&self.facts, &Knobs::NONE, &mut host).expect("valid data");
        start.elapsed().as_secs_f64()
    }
}

fn median(x: &mut [f64]) -> f64 {
    x.sort_by(f64::total_cmp);
    x[x.len() / 2]
}

/// Times both directions; the ratio is the median of the ratios of neighbouring measurements.
fn speed(s: i64) {
    let threads = rayon::current_num_threads();
    let mut torch = Torch::start(threads, s);
    match &torch {
        Some((_, version)) => println!("PyTorch (version, threads): {version}"),
        None => println!("PyTorch not found; set FROSTGRAPH_PYTHON to a Python that has it"),
    }
    println!("B1 H{HEADS} S{s} D{DIM} causal, {threads} threads, median of {ROUNDS} rounds");
    println!("{:10} {:>10} {:>10} {:>14} {:>8}", "direction", "ours ms", "GFLOP/s", "PyTorch f32 ms", "speed");
    // Two products forward, five backward, over the kept half of the scores.
    let pairs = (s * (s + 1) / 2 * HEADS) as f64;
    for (direction, name, products) in [(Direction::Forward, "forward", 2.0), (Direction::Backward, "backward", 5.0)] {
        let mut node = Node::new(direction, s);
        node.seconds();
        let (mut ours, mut theirs, mut ratio) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let mine = node.seconds();
            ours.push(mine);
            if let Some(t) = torch.as_mut().and_then(|(t, _)| t.seconds(name)) {
                theirs.push(t);
                ratio.push(t / mine);
            }
        }
        let mine = median(&mut ours);
        print!("{name:10} {:10.2} {:10.1}", mine * 1e3, products * 2.0 * DIM as f64 * pairs / mine / 1e9);
        match theirs.is_empty() {
            true => println!(" {:>14} {:>8}", "-", "-"),
            false => println!(" {:14.2} {:7.2}x", median(&mut theirs) * 1e3, median(&mut ratio)),
        }
    }
}

/// Peak resident memory of this process in KiB, where the system tells it.
fn peak_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let Some(i) = args.iter().position(|a| a == "--peak") {
        let s: i64 = args.get(i + 1).and_then(|s| s.parse().ok()).unwrap_or(1024);
        Node::new(Direction::Backward, s).seconds();
        println!("{}", peak_kib().unwrap_or(0));
        return;
    }
    speed(2048);
    println!("peak resident memory of the backward, one process each:");
    for s in [1024, 2048, 4096] {
        let child = std::env::current_exe().and_then(|exe| Command::new(exe).args(["--peak", &s.to_string()]).output());
        let kib = child.ok().and_then(|o| String::from_utf8_lossy(&o.stdout).trim().parse::<f64>().ok());
        match kib {
            Some(kib) if kib > 0.0 => println!("  S {s:5}: {:7.1} MiB", kib / 1024.0),
            Some(_) | None => println!("  S {s:5}: not told by this system"),
        }
    }
}
