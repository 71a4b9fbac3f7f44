//! Launch plans as text: what `explain` prints and what golden tests compare. Deterministic (I8): no addresses, no hash order.

use crate::launch::{Arg, Base, Launch, LaunchPlan, Step, TensorMapSpec};
use std::fmt::{Display, Formatter, Result, Write};

impl Display for LaunchPlan {
    /// Workspace regions, then the steps in launch order; one line a parameter.
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        writeln!(f, "workspace {} bytes", self.workspace_bytes)?;
        for r in &self.regions {
            writeln!(f, "  {:<14} {:>12} bytes at {}", r.name, r.bytes, r.offset)?;
        }
        for (i, step) in self.steps.iter().enumerate() {
            match step {
                Step::Host(call) => writeln!(f, "step {i} host {}", call.name)?,
                Step::Kernel(launch) => self.launch(f, i, launch)?,
            }
        }
        Ok(())
    }
}

impl LaunchPlan {
    fn launch(&self, f: &mut Formatter<'_>, i: usize, l: &Launch) -> Result {
        writeln!(f, "step {i} kernel {}: {} in {}", l.name, l.kernel.entry, l.kernel.source)?;
        if !l.kernel.defines.is_empty() {
            let defines: Vec<String> = l.kernel.defines.iter().map(|(k, v)| format!("{k}={v}")).collect();
            writeln!(f, "  defines {}", defines.join(" "))?;
        }
        let pdl = if l.pdl { ", after its predecessor's trigger" } else { "" };
        write!(f, "  grid {}, block {}, shared memory {}", extents(l.grid), extents(l.block), l.smem)?;
        if l.cluster != [1, 1, 1] {
            write!(f, ", cluster {}", extents(l.cluster))?;
        }
        writeln!(f, "{pdl}")?;
        for (n, arg) in l.args.iter().enumerate() {
            writeln!(f, "  {n:>3} {:<12} {}", l.names.get(n).copied().unwrap_or(""), self.arg(arg))?;
        }
        Ok(())
    }

    fn arg(&self, arg: &Arg) -> String {
        match arg {
            Arg::Ptr(base) => self.base(base),
            Arg::Null => "null".into(),
            Arg::I32(v) => v.to_string(),
            Arg::I64(v) => format!("{v} (i64)"),
            Arg::F32(v) => format!("{v:?} (f32)"),
            Arg::Map(map) => self.map(map),
            Arg::NoMap => "no map".into(),
        }
    }

    fn base(&self, base: &Base) -> String {
        match base {
            Base::Tensor(uid) => format!("tensor {uid}"),
            Base::Region(i) => match self.regions.get(*i) {
                Some(r) => format!("workspace {}", r.name),
                None => format!("workspace region {i}"),
            },
        }
    }

    fn map(&self, m: &TensorMapSpec) -> String {
        let mut text = format!("map of {} {}: extents ", self.base(&m.base), m.dtype);
        for (i, d) in m.dim.iter().enumerate() {
            let sep = if i == 0 { "" } else { "x" };
            // Writing to a String cannot fail.
            let _ = match d {
                Some(d) => write!(text, "{sep}{d}"),
                None => write!(text, "{sep}bound"),
            };
        }
        let _ = write!(text, ", strides {:?} bytes, box {:?}, swizzle {}", m.stride_bytes, m.tile, m.swizzle);
        text
    }
}

/// `4`, `4x2` or `4x2x1`: trailing ones are dropped.
fn extents(e: [u32; 3]) -> String {
    let used = if e[2] != 1 {
        3
    } else if e[1] != 1 {
        2
    } else {
        1
    };
    e[..used].iter().map(u32::to_string).collect::<Vec<_>>().join("x")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, KernelSpec};

    #[test]
    fn a_plan_reads_top_to_bottom() {
        let mut plan = LaunchPlan::default();
        let delta = plan.region("delta", 100).expect("a region");
        let map = TensorMapSpec {
            base: Base::Tensor(7),
            dtype: DType::BF16,
            dim: vec![Some(64), None, Some(8), Some(1)],
            stride_bytes: vec![1024, 128, 128],
            tile: vec![64, 64, 1, 1],
            swizzle: 128,
        };
        plan.steps.push(Step::Kernel(Launch {
            name: "dot",
            kernel: KernelSpec { source: "a/dot.cu", entry: "dot", defines: vec![("FG_A", 1), ("FG_B", -2)] },
            grid: [5, 1, 2],
            cluster: [1, 1, 1],
            block: [256, 1, 1],
            smem: 0,
            pdl: true,
            args: vec![Arg::Map(map), Arg::Ptr(Base::Region(delta)), Arg::Null, Arg::I32(-1), Arg::I64(1 << 40), Arg::F32(0.125)],
            names: vec!["tm_q", "delta", "seq_q", "window", "stride", "scale"],
        }));
        let want = "\
workspace 128 bytes
  delta                   100 bytes at 0
step 0 kernel dot: dot in a/dot.cu
  defines FG_A=1 FG_B=-2
  grid 5x1x2, block 256, shared memory 0, after its predecessor's trigger
    0 tm_q         map of tensor 7 bf16: extents 64xboundx8x1, strides [1024, 128, 128] bytes, box [64, 64, 1, 1], swizzle 128
    1 delta        workspace delta
    2 seq_q        null
    3 window       -1
    4 stride       1099511627776 (i64)
    5 scale        0.125 (f32)
";
        assert_eq!(plan.to_string(), want);
    }
}
