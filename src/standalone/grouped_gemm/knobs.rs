//! Tile, cluster and vectorised arithmetic of the specification as knobs, and the plan that honours them.

use super::{bad, GroupedGemmDsreluCall};
use crate::plan::{Built, Plan};
use crate::{Error, ErrorCode, Result};
use frostgraph_engines::{Knob, Knobs};

/// The best plan with these knobs; the first engine's refusal where none takes them.
pub(super) fn plan(built: &Built, knobs: &Knobs) -> Result<Plan> {
    if knobs.is_empty() {
        return built.best();
    }
    let mut refusal = None;
    for entry in built.nodes().iter().flat_map(|n| n.ranked()) {
        match built.create_plan(entry.row.id, knobs) {
            Ok(plan) => return Ok(plan),
            Err(e) => refusal = refusal.or(Some(e)),
        }
    }
    Err(refusal.unwrap_or_else(|| Error::new(ErrorCode::NoPlan, "no engine", "an engine that serves the call")))
}

/// Rules 9 and 15 to 18 of facts §9.2, tile columns of 128 included, then the choices as knobs.
pub(super) fn knobs(c: &GroupedGemmDsreluCall<'_>) -> Result<Knobs> {
    let mut knobs = Knobs::NONE;
    if c.vector_f32 {
        if c.c.shape.is_some_and(|s| s.dtype.is_fp8()) {
            return Err(bad(
                ErrorCode::GemmCType,
                "vector_f32 with FP8 C".into(),
                "C of f32, f16 or bf16 (rule 9 of facts §9.2)",
            ));
        }
        knobs = knobs.with(Knob::VectorF32, 1);
    }
    let Some((m, n)) = c.mma_tiler_mn else {
        return match c.cluster_shape_mn {
            None => Ok(knobs),
            Some((m, n)) => {
                Err(bad(ErrorCode::GemmCluster, format!("cluster_shape_mn ({m}, {n}) without mma_tiler_mn"), "the tile as well"))
            }
        };
    };
    if ![128, 256].contains(&m) || ![128, 256].contains(&n) {
        let expected = "128 or 256 rows and 128 or 256 columns (rules 15 and 16 of facts §9.2)";
        return Err(bad(ErrorCode::GemmTile, format!("mma_tiler_mn ({m}, {n})"), expected));
    }
    let two_cta = m == 256;
    let (cm, cn) = c.cluster_shape_mn.unwrap_or(if two_cta { (2, 1) } else { (1, 1) });
    let power = |x: i64| [1, 2, 4].contains(&x);
    let rows = if two_cta { cm / 2 * m } else { cm * m };
    if !power(cm) || !power(cn) || (two_cta && cm % 2 != 0) || ![128, 256].contains(&rows) {
        let expected =
            "powers of two up to 4, M even with 256 rows, and 128 or 256 rows of a cluster (rules 17 and 18 of facts §9.2)";
        return Err(bad(ErrorCode::GemmCluster, format!("cluster_shape_mn ({cm}, {cn}) with {m} rows"), expected));
    }
    Ok(knobs.with(Knob::TileM, m).with(Knob::TileN, n).with(Knob::TileCgaM, cm).with(Knob::TileCgaN, cn))
}
