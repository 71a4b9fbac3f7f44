//! What a plan is chosen by and kept as: knobs, and records that replay.

use super::planning::{built_everywhere, d128, plain};
use frostgraph::engines::{Knob, Knobs};
use frostgraph::plan::PlanRecord;
use frostgraph::ErrorCode;

#[test]
fn records_replay_by_number_and_refuse_what_they_cannot_honour() {
    let b = plain();
    let plan = b.select_plan(0).unwrap();
    let text = serde_json::to_string(&plan.records()).unwrap();
    assert_eq!(text, r#"[{"engine_id":20650,"engine":"sdpa_bwd_cpu","knobs":{}}]"#);
    let records: Vec<PlanRecord> = serde_json::from_str(&text).unwrap();
    assert_eq!(b.replay(&records).unwrap().to_string(), plan.to_string());
    let from = |t: &str| -> Vec<PlanRecord> { serde_json::from_str(t).unwrap() };
    assert!(b.replay(&from(r#"[{"engine_id":20650}]"#)).is_ok(), "a bare id");
    let code = |t: &str| b.replay(&from(t)).unwrap_err().code;
    assert_eq!(
        code(r#"[{"engine_id":20600,"engine":"sdpa_bwd_cpu"}]"#),
        ErrorCode::UnknownEngine,
        "id and name disagree or id unknown"
    );
    assert_eq!(code(r#"[{"engine_id":20650,"knobs":{"26":64}}]"#), ErrorCode::BadKnob, "a knob that the row lacks");
    assert_eq!(code(r#"[{"engine_id":20650,"knobs":{"4000":1}}]"#), ErrorCode::BadKnob, "a number that no knob has");
    assert_eq!(code("[]"), ErrorCode::UnknownEngine);
}

#[test]
fn every_listed_plan_replays_from_its_record() {
    for (name, device, b) in built_everywhere() {
        for p in b.plans() {
            if p.lower().is_err() {
                continue;
            }
            assert_eq!(b.replay(&p.records()).unwrap().to_string(), p.to_string(), "{name} on {device}");
        }
    }
}

#[test]
fn knobs_are_honoured_completed_or_refused_never_bent() {
    let b = d128();
    assert_eq!(b.best().unwrap().to_string(), "sdpa_bwd_sm120[TILE_M=64,TILE_N=64]");
    assert_eq!(
        b.create_plan(20600, &Knobs::NONE).unwrap().to_string(),
        "sdpa_bwd_sm120[TILE_M=64,TILE_N=64]",
        "left out: the heuristics' values"
    );
    let m32 = b.create_plan(20600, &Knobs::new(&[(Knob::TileM, 32)])).unwrap();
    assert_eq!(m32.to_string(), "sdpa_bwd_sm120[TILE_M=32,TILE_N=64]", "given: kept, the rest completed");
    let code = |k: Knob, v: i64| b.create_plan(20600, &Knobs::new(&[(k, v)])).unwrap_err().code;
    assert_eq!(code(Knob::TileM, 48), ErrorCode::BadKnob, "outside the domain");
    assert_eq!(code(Knob::SplitKv, 2), ErrorCode::BadKnob, "not an axis of the row");
}

#[test]
fn a_record_holds_public_numbers_i3() {
    let b = d128();
    let text = serde_json::to_string(&b.best().unwrap().records()).unwrap();
    assert_eq!(text, r#"[{"engine_id":20600,"engine":"sdpa_bwd_sm120","knobs":{"26":64,"27":64}}]"#);
    let back: Vec<PlanRecord> = serde_json::from_str(&text).unwrap();
    assert_eq!(b.replay(&back).unwrap().to_string(), "sdpa_bwd_sm120[TILE_M=64,TILE_N=64]");
}
