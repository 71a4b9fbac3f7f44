//! Texts that are kept in the repository, and what the README promises.

use super::{ok, root};

/// Compares with a committed file. `BLESS=1` rewrites it, which CI refuses.
pub fn golden(path: &str, text: &str) {
    let full = root().join(path);
    let committed = std::fs::read_to_string(&full).unwrap_or_default();
    if committed == text {
        return;
    }
    let bless = std::env::var_os("BLESS").is_some();
    assert!(!(bless && std::env::var_os("CI").is_some()), "blessing under CI");
    if bless {
        std::fs::create_dir_all(full.parent().unwrap()).unwrap();
        std::fs::write(&full, text).unwrap();
        return;
    }
    let first = committed.lines().zip(text.lines()).position(|(a, b)| a != b).unwrap_or(0);
    panic!("{path} differs from line {}; BLESS=1 rewrites it. Now:\n{text}", first + 1);
}

fn readme() -> String {
    std::fs::read_to_string(root().join("README.md")).expect("a README")
}

/// The first block of code is the quickstart, word for word.
#[test]
fn readme_begins_with_the_quickstart() {
    let readme = readme();
    let block = readme.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a Rust block");
    assert_eq!(block, include_str!("../../examples/quickstart.rs"));
}

/// The two commands that a newcomer types, and that CI and the tests run.
#[test]
fn readme_names_the_commands() {
    let readme = readme();
    for command in ["cargo run --release -- run examples/sdpa_backward.json --check", "cargo test --workspace"] {
        assert!(readme.lines().any(|l| l == command), "{command}");
    }
}

#[test]
fn readme_lists_verbs_and_statuses_as_the_help_does() {
    let (readme, help) = (readme(), ok(&["--help"]));
    let statuses = help.split("Exit status:\n").nth(1).and_then(|s| s.split("\n\n").next()).expect("statuses");
    for line in statuses.lines() {
        let (number, meaning) = line.trim().split_once("  ").expect("number and meaning");
        assert!(readme.contains(&format!("| {number} | {meaning} |")), "{line}");
    }
    for verb in ["plans", "explain", "run", "bench", "tune", "matrix", "compile", "cache", "schema"] {
        assert!(help.contains(&format!("\n  {verb} ")), "{verb} in\n{help}");
        assert!(readme.contains(&format!("`frostgraph {verb}")), "{verb}");
    }
}

/// Every error code of the program has its line in the README's table.
#[test]
fn readme_lists_code_ranges() {
    let readme = readme();
    for code in frostgraph::ErrorCode::ALL {
        let range = format!("{}xxx", &code.code()[..3]);
        assert!(readme.contains(&range), "{range}");
    }
}
