//! Evidence records: what a GPU test run saw, and for which kernels.

use frostgraph_engines::row_by_name;
use serde::Deserialize;

/// Recorded files by name. A new file gets a line here; a test compares the list with the folder.
const FILES: &[(&str, &str)] = &[
    ("h200-grouped_gemm_dsrelu.json", include_str!("evidence/h200-grouped_gemm_dsrelu.json")),
    ("h200-grouped_gemm_dsrelu_mma.json", include_str!("evidence/h200-grouped_gemm_dsrelu_mma.json")),
    ("h200-moe_grouped_matmul.json", include_str!("evidence/h200-moe_grouped_matmul.json")),
    ("h200-qat_bwd.json", include_str!("evidence/h200-qat_bwd.json")),
    ("h200-qat_bwd_nvfp4_qat_bwd_sm90.json", include_str!("evidence/h200-qat_bwd_nvfp4_qat_bwd_sm90.json")),
    ("h200-qat_fwd.json", include_str!("evidence/h200-qat_fwd.json")),
    ("h200-qat_fwd_nvfp4_qat_fwd_sm90.json", include_str!("evidence/h200-qat_fwd_nvfp4_qat_fwd_sm90.json")),
    ("h200-sdpa_bwd.json", include_str!("evidence/h200-sdpa_bwd.json")),
    ("h200-sdpa_bwd_sdpa_bwd_sm90.json", include_str!("evidence/h200-sdpa_bwd_sdpa_bwd_sm90.json")),
    ("h200-sdpa_fwd.json", include_str!("evidence/h200-sdpa_fwd.json")),
    ("h200-sdpa_fwd_part.json", include_str!("evidence/h200-sdpa_fwd_part.json")),
    ("h200-sdpa_fwd_sdpa_fwd_prefill_sm90.json", include_str!("evidence/h200-sdpa_fwd_sdpa_fwd_prefill_sm90.json")),
];

/// One engine and feature group of one run. Written by the GPU test program, never by hand.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Row name.
    pub engine: String,
    /// Compiled architecture, such as `sm_90a`.
    pub arch: String,
    /// Device name.
    pub gpu: String,
    /// Driver version.
    pub driver: String,
    /// NVRTC version.
    pub nvrtc: String,
    /// Day of the run, `YYYY-MM-DD`.
    pub date: String,
    /// Digest of the include closure of the row's sources (64 hex digits).
    pub kernel_digest: String,
    /// Name of the case list.
    pub suite: String,
    /// Features the cases used.
    pub features: Vec<String>,
    /// Cases within tolerance.
    pub passed: u64,
    /// Cases outside it.
    pub failed: u64,
    /// Cases not run.
    pub skipped: u64,
    /// Largest relative error over the passed cases.
    pub worst_error: f64,
    /// Seed of the inputs.
    pub seed: u64,
}

/// A file that is not a list of well-formed records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvidenceError {
    /// File name.
    pub file: String,
    /// What was found, with its place.
    pub given: String,
    /// What is expected.
    pub expected: String,
}

impl EvidenceError {
    /// Stable code, in the numbering of the root crate's errors.
    pub const CODE: &'static str = "FG5006";
}

impl std::fmt::Display for EvidenceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at evidence/{}: {}; expected {}", EvidenceError::CODE, self.file, self.given, self.expected)
    }
}

impl std::error::Error for EvidenceError {}

/// The records compiled into this crate, in file order.
pub fn embedded_evidence() -> Result<Vec<Record>, EvidenceError> {
    let mut all = Vec::new();
    for (file, text) in FILES {
        all.extend(parse_records(file, text)?);
    }
    Ok(all)
}

/// The records of one file.
pub fn parse_records(file: &str, text: &str) -> Result<Vec<Record>, EvidenceError> {
    let error = |given: String, expected: &str| EvidenceError { file: file.into(), given, expected: expected.into() };
    let records: Vec<Record> = serde_json::from_str(text).map_err(|e| error(e.to_string(), "a list of evidence records"))?;
    for (i, r) in records.iter().enumerate() {
        let at = |what: String| format!("record {i}: {what}");
        let hex =
            r.kernel_digest.len() == 64 && r.kernel_digest.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if row_by_name(&r.engine).is_none() {
            return Err(error(at(format!("engine '{}'", r.engine)), "the name of a row"));
        }
        if !hex {
            return Err(error(at(format!("kernel_digest '{}'", r.kernel_digest)), "64 lower-case hexadecimal digits"));
        }
        if !is_date(&r.date) {
            return Err(error(at(format!("date '{}'", r.date)), "YYYY-MM-DD"));
        }
        if r.cc().is_none() {
            return Err(error(at(format!("arch '{}'", r.arch)), "an architecture such as sm_90a"));
        }
        if !r.worst_error.is_finite() || r.worst_error < 0.0 {
            return Err(error(at(format!("worst_error {}", r.worst_error)), "a finite number of at least 0"));
        }
        if r.passed == 0 && r.failed == 0 {
            return Err(error(at("no case was run".into()), "at least one passed or failed case"));
        }
    }
    Ok(records)
}

fn is_date(s: &str) -> bool {
    let digits = |r: std::ops::Range<usize>| {
        s.get(r).filter(|t| t.bytes().all(|b| b.is_ascii_digit())).and_then(|t| t.parse::<u32>().ok())
    };
    let month = digits(5..7).is_some_and(|m| (1..=12).contains(&m));
    let day = digits(8..10).is_some_and(|d| (1..=31).contains(&d));
    s.len() == 10 && digits(0..4).is_some() && month && day && s.as_bytes()[4] == b'-' && s.as_bytes()[7] == b'-'
}

impl Record {
    /// Compute capability of the architecture, major·10 + minor.
    pub fn cc(&self) -> Option<u32> {
        self.arch.strip_prefix("sm_")?.trim_end_matches('a').parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"[{"engine":"sdpa_bwd_sm120","arch":"sm_90a","gpu":"NVIDIA H200","driver":"580.1","nvrtc":"13.0.88","date":"2026-11-30",
        "kernel_digest":"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef","suite":"sdpa_bwd","features":["causal"],
        "passed":10,"failed":0,"skipped":0,"worst_error":0.002,"seed":7}]"#;

    #[test]
    fn good_records_parse() {
        let r = parse_records("h200.json", GOOD).expect("a record");
        assert_eq!((r[0].cc(), r[0].passed, r[0].seed), (Some(90), 10, 7));
        assert_eq!(parse_records("x.json", "[]"), Ok(vec![]));
    }

    #[test]
    fn malformed_records_say_what_and_where() {
        let text = |from: &str, to: &str| {
            assert!(GOOD.contains(from));
            parse_records("h.json", &GOOD.replace(from, to)).expect_err("malformed").to_string()
        };
        assert_eq!(
            text("sdpa_bwd_sm120", "sdpa_bwd_sm121"),
            "FG5006 at evidence/h.json: record 0: engine 'sdpa_bwd_sm121'; expected the name of a row"
        );
        assert_eq!(
            text("2026-11-30", "30.11.2026"),
            "FG5006 at evidence/h.json: record 0: date '30.11.2026'; expected YYYY-MM-DD"
        );
        assert!(text("0123456789abcdef\"", "0123456789ABCDEF\"").contains("64 lower-case hexadecimal digits"));
        assert!(text("sm_90a", "h200").contains("an architecture such as sm_90a"));
        assert!(text("0.002", "-1").contains("a finite number of at least 0"));
        assert!(text("\"passed\":10", "\"passed\":0").contains("no case was run"));
        assert!(text("\"seed\":7", "\"seed\":7,\"note\":1").contains("unknown field `note`"));
        assert!(text(",\"seed\":7", "").contains("missing field `seed`"));
        assert!(parse_records("h.json", "{").expect_err("truncated").to_string().contains("a list of evidence records"));
    }

    #[test]
    fn dates() {
        for bad in ["2026-13-01", "2026-00-01", "2026-01-32", "2026-1-01", "2026/01/01", "", "２026-01-01"] {
            assert!(!is_date(bad), "{bad}");
        }
        assert!(is_date("2026-12-31"));
    }

    #[test]
    fn the_list_is_the_folder() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/evidence");
        let mut found: Vec<String> = std::fs::read_dir(folder)
            .into_iter()
            .flatten()
            .map(|e| e.expect("a directory entry").file_name().to_string_lossy().into_owned())
            .filter(|n| n.ends_with(".json"))
            .collect();
        found.sort();
        let listed: Vec<&str> = FILES.iter().map(|f| f.0).collect();
        assert_eq!(listed, found, "FILES in support_matrix/evidence.rs lists every evidence file");
        embedded_evidence().expect("every recorded file parses");
    }
}
