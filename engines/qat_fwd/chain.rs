//! What both CUDA rows share: three launches.
//!
//! Quantised copies of Q, K and V; the plain forward on them, which is the high-precision O and the LSE; then a second walk over the keys
//! that makes the normalised P from that LSE, quantises it and multiplies it with V^. The walks are two launches rather than one, so that
//! the first is the very kernel of the plain forward, and neither carries the other's state in its registers.

use super::quantize::{self, Copies};
use crate::sdpa::arith::product;
use crate::sdpa_fwd::lower::scale;
use crate::{Arg, Base, DType, Decline, DeclineCode as Code, Facts, Knobs, LaunchPlan, Port, Row, SdpaFacts, Step, Target};

/// Least scale. The second walk multiplies masked scores, which are -inf, by it: from here on the product with log2 e stays positive.
const LEAST_SCALE: f32 = 1e-30;

/// The two walks of a row.
pub struct Walks {
    /// The plain forward, for facts whose operands are the copies.
    pub first: fn(&Row, &Facts, &Knobs, &Target) -> Result<LaunchPlan, Decline>,
    /// The walk for the quantised P.
    pub second: fn(&Second<'_>) -> Result<Step, Decline>,
}

/// What a second walk is lowered from.
pub struct Second<'a> {
    /// The row.
    pub row: &'a Row,
    /// The node.
    pub f: &'a SdpaFacts,
    /// The node as the first walk sees it: operands laid out as their copies, Stats always there.
    pub plain: &'a SdpaFacts,
    /// Knobs of the row.
    pub knobs: &'a Knobs,
    /// Softmax scale.
    pub scale: f32,
    /// Device.
    pub target: &'a Target,
}

/// The launches for these facts.
///
/// # Errors
/// [`Decline`] for a scale that is a tensor or not above 1e-30, for what the walks refuse, and for sizes and grids out of range.
pub fn lower(walks: &Walks, row: &Row, facts: &Facts, knobs: &Knobs, target: &Target) -> Result<LaunchPlan, Decline> {
    let f = facts.expect_sdpa();
    let scale = scale(row, f)?;
    if scale.is_nan() || scale <= LEAST_SCALE {
        let reason = format!("attn_scale is {scale:e}; this row serves scales above {LEAST_SCALE:e}");
        return Err(row.decline(Code::Geometry, format!("attn_scale={scale:e}"), reason));
    }
    let Target::Cuda { total_memory, .. } = *target else {
        return Err(row.decline(Code::Arch, "device=cpu", "the device is cpu; this row serves CUDA devices"));
    };
    let too_large =
        |fact: String, what: &str| row.decline(Code::Geometry, fact, format!("{what} is out of the range of this row"));
    let grid = quantize::grid(f).filter(|&g| i32::try_from(g).is_ok());
    let grid = grid.ok_or_else(|| too_large("grid=quantize".into(), "a grid of rows over heads and batches"))?;
    let mut plan = LaunchPlan::default();
    let regions = carve(f, &mut plan).ok_or_else(|| too_large("workspace=overflow".into(), "the workspace size"))?;
    if plan.workspace_bytes > total_memory {
        let bytes = plan.workspace_bytes;
        let reason =
            format!("the quantised copies need a workspace of {bytes} bytes; the device has {total_memory} bytes in all");
        return Err(row.decline(Code::Resources, format!("workspace={bytes}"), reason));
    }

    let plain = plain(f);
    let mut first = (walks.first)(row, &Facts::Sdpa(Box::new(plain.clone())), knobs, target)?;
    let second = (walks.second)(&Second { row, f, plain: &plain, knobs, scale, target })?;
    plan.steps.push(quantize::step(f, &regions.copies, grid, target));
    plan.steps.append(&mut first.steps);
    plan.steps.push(second);
    for step in &mut plan.steps[1..] {
        regions.place(step);
    }
    Ok(plan)
}

/// Workspace: the copies, and LSE where the graph does not ask for it.
struct Regions {
    copies: Copies,
    stats: Option<usize>,
}

fn carve(f: &SdpaFacts, plan: &mut LaunchPlan) -> Option<Regions> {
    let copies = Copies::carve(f, plan)?;
    let bytes = u64::try_from(product(&[4, f.b, f.h_q, f.s_q])?).ok()?;
    let stats = if stats(f).is_some() { None } else { Some(plan.region("lse", bytes)?) };
    Some(Regions { copies, stats })
}

impl Regions {
    /// Puts regions into the place of the operands that a walk reads from the workspace.
    fn place(&self, step: &mut Step) {
        let Step::Kernel(l) = step else { return };
        for (name, arg) in l.names.iter().zip(&mut l.args) {
            let lse = self.stats.filter(|_| ["stats", "lse"].contains(name)).map(Base::Region);
            let Some(base) = self.copies.base(name).or(lse) else { continue };
            match arg {
                Arg::Map(map) => map.base = base,
                Arg::Ptr(_) | Arg::Null | Arg::I32(_) | Arg::I64(_) | Arg::F32(_) | Arg::NoMap => *arg = Arg::Ptr(base),
            }
        }
    }
}

fn stats(f: &SdpaFacts) -> Option<&Port> {
    f.ports.stats.as_ref().filter(|_| f.wants_stats)
}

/// The first walk as a plain forward: operands laid out as their copies, O the high-precision one, LSE always.
///
/// A graph without high-precision O leaves it in O, which the second walk overwrites.
fn plain(f: &SdpaFacts) -> SdpaFacts {
    let mut g = f.clone();
    for port in [&mut g.ports.q, &mut g.ports.k, &mut g.ports.v] {
        *port = quantize::contiguous(port);
    }
    g.ports.o = f.ports.high_precision_o.clone().or(g.ports.o);
    g.ports.high_precision_o = None;
    let lse = stats(f).cloned().or_else(|| {
        let dim = [f.b, f.h_q, f.s_q, 1];
        let stride = [f.h_q * f.s_q, f.s_q, 1, 1];
        f.ports.q.as_ref().map(|q| Port { name: "LSE".into(), dim, stride, dtype: DType::F32, ragged: None, ..q.clone() })
    });
    (g.ports.stats, g.wants_stats) = (lse, true);
    g
}
