use super::*;
use frostgraph_engines::{DType, Feature, MANIFEST};

fn sm120() -> &'static Row {
    frostgraph_engines::row_by_name("sdpa_bwd_sm120").expect("a row")
}

fn record(digest: &str, passed: u64, failed: u64) -> Record {
    Record {
        engine: "sdpa_bwd_sm120".into(),
        arch: "sm_90a".into(),
        gpu: "NVIDIA H200".into(),
        driver: "580".into(),
        nvrtc: "13.0".into(),
        date: "2026-11-30".into(),
        kernel_digest: digest.into(),
        suite: "sdpa_bwd".into(),
        features: vec![],
        passed,
        failed,
        skipped: 0,
        worst_error: 0.004,
        seed: 1,
    }
}

/// I9: evidence counts only for the kernels it was recorded with, and only for the architecture it ran on.
#[test]
fn verified_needs_the_current_digest_i9() {
    let (now, old) = ("a".repeat(64), "b".repeat(64));
    let on = |cc, records: &[Record]| status(sm120(), Some(cc), Some(&now), records);
    assert_eq!(on(90, &[]), Status::Compiled);
    assert_eq!(on(90, &[record(&old, 500, 0)]), Status::Compiled);
    let two = [record(&now, 500, 0), record(&now, 40, 0), record(&old, 7, 3)];
    assert_eq!(on(90, &two).to_string(), "verified (2026-11-30, 540 cases, worst error 4.0e-3, NVIDIA H200)");
    assert_eq!(on(120, &two), Status::Compiled, "what ran on sm_90 says nothing of sm_120");
    assert_eq!(on(90, &[record(&now, 500, 0), record(&now, 1, 2)]), Status::Failing { failed: 2, cases: 503 });
    assert_eq!(status(sm120(), Some(90), None, &two), Status::NoSource);
    assert_eq!(status(sm120(), None, None, &two), Status::Ci);
}

#[test]
fn lines_hold_the_rows_of_their_architecture() {
    let m = Matrix::new(MANIFEST, &[]);
    let names = |arch: &str| -> Vec<&str> {
        let line = m.lines.iter().find(|l| l.arch == arch).expect("a line");
        line.families.iter().flat_map(|f| f.engines.iter().map(|e| e.row.name)).collect()
    };
    assert_eq!(names("cpu").iter().filter(|n| n.ends_with("_cpu")).count(), names("cpu").len());
    assert!(names("cpu").contains(&"sdpa_fwd_cpu"));
    assert!(!names("sm_89").contains(&"sdpa_bwd_sm120"));
    for arch in ["sm_90", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121"] {
        assert!(names(arch).contains(&"sdpa_bwd_sm120"), "{arch}");
    }
}

#[test]
fn envelopes_are_told_from_native_head_dims() {
    let f = flavours(sm120());
    assert_eq!(f[0], Flavour { label: "32".into(), served: Served::Native });
    let last = f.last().expect("an envelope");
    assert_eq!(last, &Flavour { label: "other multiples of 8 to 256, d_qk ≥ d_v".into(), served: Served::Envelope });
    let e = Engine { row: sm120(), flavours: f.clone(), status: Status::Compiled };
    assert_eq!(e.dtype(last, DType::BF16), Served::Envelope);
    assert_eq!(e.dtype(&f[0], DType::F32), Served::Declined);
    assert_eq!(e.feature(&f[0], Feature::Causal), Served::Native);
    assert_eq!([e.layout(&f[0], 0), e.layout(&f[0], 1), e.layout(&f[0], 2)], [Served::Native, Served::Native, Served::Declined]);
}

#[test]
fn gaps_name_what_nobody_serves() {
    let m = Matrix::new(MANIFEST, &[]);
    let cpu = &m.lines[0].families;
    let backward = cpu.iter().find(|f| f.name == "sdpa_bwd").expect("a family").gaps();
    assert!(backward.contains(&"dropout".to_string()) && !backward.contains(&"causal".to_string()), "{backward:?}");
    assert!(!backward.contains(&"paged K/V".to_string()), "a backward cannot ask for pages");
}
