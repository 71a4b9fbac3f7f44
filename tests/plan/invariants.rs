//! The invariants of the architecture page that a test can hold, each named by its number. The others are held where they live:
//! I5, I6 in `execution.rs` and the GPU program, I7 in the engines, I9 and I10 in the support matrix and the kernels.

use frostgraph::engines::{family_of, row_by_id, Facts, Knob, Knobs, Mode, Target, MANIFEST, RETIRED};
use frostgraph::plan::BuildOptions;
use frostgraph::{analyze, Device};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Rust sources below a folder, as (path from the root, text without line comments and string literals on one line).
fn sources(folder: &str) -> Vec<(String, String)> {
    let mut out = Vec::new();
    let mut todo = vec![root().join(folder)];
    while let Some(dir) = todo.pop() {
        let mut entries: Vec<PathBuf> = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).collect();
        entries.sort();
        for path in entries {
            if path.is_dir() {
                if path.file_name().unwrap() != "target" {
                    todo.push(path);
                }
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let code: Vec<&str> = text.lines().map(|l| l.split("//").next().unwrap_or("")).collect();
                out.push((path.strip_prefix(root()).unwrap().display().to_string(), code.join("\n")));
            }
        }
    }
    assert!(!out.is_empty(), "no sources below {folder}");
    out
}

fn has_word(code: &str, word: &str) -> bool {
    code.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|w| w == word)
}

fn below(path: &str, folder: &str) -> bool {
    Path::new(path).starts_with(folder)
}

#[test]
fn i1_only_the_runtime_touches_cuda_and_unsafe() {
    let files: Vec<_> = ["src", "engines", "kernels", "support_matrix"].into_iter().flat_map(sources).collect();
    // The guard first proves that it still finds what it looks for.
    for word in ["cudarc", "unsafe"] {
        let seen = files.iter().any(|(p, c)| below(p, "src/runtime") && has_word(c, word));
        assert!(seen, "the search no longer sees {word} in src/runtime");
    }
    for (path, code) in &files {
        if !below(path, "src/runtime") {
            assert!(!has_word(code, "cudarc"), "{path} reaches cudarc");
            assert!(!has_word(code, "unsafe"), "{path} contains unsafe code");
        }
    }
    let engines = std::fs::read_to_string(root().join("engines/lib.rs")).unwrap();
    assert!(engines.contains("#![forbid(unsafe_code)]"), "engines forbid unsafe code");
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    assert!(manifest.contains("undocumented_unsafe_blocks = \"deny\""), "each unsafe block has a SAFETY comment");
}

#[test]
fn i1_the_arrows_between_packages_point_one_way() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let out = std::process::Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1", "--manifest-path"])
        .arg(root().join("Cargo.toml"))
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let meta: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let arrows = |package: &str| -> BTreeSet<String> {
        let p = meta["packages"].as_array().unwrap().iter().find(|p| p["name"] == package).unwrap();
        let deps = p["dependencies"].as_array().unwrap().iter().filter(|d| d["kind"] != "dev");
        deps.map(|d| d["name"].as_str().unwrap().to_owned()).filter(|n| n.starts_with("frostgraph") || n == "cudarc").collect()
    };
    let want = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(arrows("frostgraph-kernels"), want(&[]));
    assert_eq!(arrows("frostgraph-engines"), want(&["frostgraph-kernels"]));
    assert_eq!(arrows("frostgraph-support-matrix"), want(&["frostgraph-engines", "frostgraph-kernels"]));
    let all = want(&["cudarc", "frostgraph-engines", "frostgraph-kernels", "frostgraph-support-matrix"]);
    assert_eq!(arrows("frostgraph"), all);
}

/// Facts of every node of the catalogue that freezes.
fn facts() -> Vec<(String, Facts)> {
    let mut out = Vec::new();
    for (name, g) in crate::support::catalogue::all() {
        if let Ok(f) = g.freeze() {
            out.extend(f.order().iter().map(|&n| (format!("{name} node {n}"), analyze::analyze(&f, n))));
        }
    }
    assert!(out.len() > 40);
    out
}

#[test]
fn i2_no_engine_proposes_itself_and_ranking_is_pure() {
    let targets: Vec<Target> = ["cpu", "sm_90", "sm_120"].iter().map(|n| Device::describe(n).unwrap().target).collect();
    for (name, facts) in facts() {
        for target in &targets {
            for family in MANIFEST.iter().filter(|f| (f.serves)(&facts)) {
                let eligible: Vec<_> =
                    family.rows.iter().filter(|r| (family.mismatch)(r, &facts, &Knobs::NONE, target).is_none()).collect();
                for mode in [Mode::A, Mode::B, Mode::Fallback, Mode::OpenSource] {
                    let ranked = (family.recommend)(&facts, target, &eligible, mode);
                    assert_eq!(ranked, (family.recommend)(&facts, target, &eligible, mode), "{name}");
                    assert!((family.recommend)(&facts, target, &[], mode).is_empty(), "{name}: a row that was not offered");
                    for one in &eligible {
                        let alone = (family.recommend)(&facts, target, &[*one], mode);
                        assert!(alone.iter().all(|c| c.id == one.id), "{name}: {} alone brings others", one.name);
                    }
                }
            }
        }
    }
}

#[test]
fn i2_one_family_serves_each_node() {
    for (name, facts) in facts() {
        let n = MANIFEST.iter().filter(|f| (f.serves)(&facts)).count();
        assert_eq!(n, 1, "{name}");
    }
}

/// What has been shipped; lines may be added, never changed.
const IDS: [(u32, &str); 6] = [
    (20508, "sdpa_fwd_prefill_sm80"),
    (20517, "sdpa_fwd_prefill_sm90"),
    (20550, "sdpa_fwd_cpu"),
    (20551, "sdpa_fwd_decode_sm80"),
    (20600, "sdpa_bwd_sm120"),
    (20650, "sdpa_bwd_cpu"),
];
const KNOBS: [(u32, &str); 15] = [
    (7, "STAGES"),
    (14, "TILE_CGA_M"),
    (15, "TILE_CGA_N"),
    (26, "TILE_M"),
    (27, "TILE_N"),
    (1000, "SCHED_POLICY"),
    (1001, "PACK_GQA"),
    (1002, "SPLIT_KV"),
    (1003, "PIPELINE_ARCH"),
    (1004, "MMA_TILE_M"),
    (1005, "MMA_TILE_N"),
    (1006, "MMA_TILE_K"),
    (1007, "CTA_GROUP"),
    (1008, "WARPS_M"),
    (1009, "WARPS_N"),
];

#[test]
fn i3_engine_ids_and_knob_numbers_are_append_only() {
    for (id, name) in IDS {
        match row_by_id(id) {
            Some(row) => assert_eq!(row.name, name, "id {id} has another name"),
            None => assert!(RETIRED.contains(&id), "id {id} ({name}) is gone without being retired"),
        }
    }
    let mut seen = BTreeSet::new();
    for family in MANIFEST {
        for row in family.rows {
            assert!(seen.insert(row.id) && !RETIRED.contains(&row.id), "id {} is used twice or retired", row.id);
            assert_eq!(family_of(row.id).map(|f| f.name), Some(family.name), "{} is outside its family's block", row.name);
        }
    }
    for (number, name) in KNOBS {
        assert_eq!(Knob::from_number(number).map(Knob::name), Some(name));
    }
}

#[test]
fn i4_every_decline_says_what_was_found() {
    for (name, g) in crate::support::catalogue::all() {
        for device in ["cpu", "sm_80", "sm_120"] {
            let options = BuildOptions { allow_empty: true, ..BuildOptions::all_engines() };
            let Ok(b) = g.build_with(&Device::describe(device).unwrap(), &options) else { continue };
            for d in b.declined() {
                assert!(d.fact.contains('=') && !d.reason.is_empty() && !d.reason.contains('\n'), "{name} on {device}: {d}");
            }
        }
    }
}

#[test]
fn i8_what_is_printed_is_the_same_every_time() {
    let print = || {
        let mut out = String::new();
        for (name, g) in crate::support::catalogue::all() {
            for device in ["cpu", "sm_120"] {
                let options = BuildOptions { allow_empty: true, ..BuildOptions::all_engines() };
                match g.build_with(&Device::describe(device).unwrap(), &options) {
                    Err(e) => out.push_str(&format!("{name} {e}\n")),
                    Ok(b) => {
                        for p in b.plans() {
                            out.push_str(&format!("{name} {p}\n{}", p.launch_text().unwrap_or_else(|e| e.to_string())));
                        }
                    }
                }
            }
        }
        out
    };
    let text = print();
    assert!(text.len() > 4096);
    assert!(text == print(), "two renderings differ");
    assert!(!text.contains(" 0x") && !text.contains("(0x"), "an address is printed");
    for folder in ["src/plan", "src/exec", "src/graph", "src/analyze", "src/json", "engines", "support_matrix"] {
        for (path, code) in sources(folder) {
            assert!(
                !has_word(&code, "HashMap") && !has_word(&code, "HashSet"),
                "{path} iterates in an order that differs between runs"
            );
        }
    }
}

/// A page that sends readers to files that are gone is worse than none.
#[test]
fn the_architecture_page_and_the_readme_name_files_that_exist() {
    let places = ["src/", "engines/", "kernels/", "tests/", "examples/", "benches/", "support_matrix/"];
    let mut found = 0;
    for page in ["src/ARCHITECTURE.md", "README.md"] {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        let spans = text.split('`').skip(1).step_by(2).flat_map(str::split_whitespace);
        for path in spans.filter(|s| places.iter().any(|p| s.starts_with(p)) && !s.contains(['*', '<', '{', ':'])) {
            assert!(root().join(path).exists(), "{page} names {path}");
            found += 1;
        }
    }
    assert!(found > 30, "the search still finds what the pages name: {found}");
}
