//! Golden files: `BLESS=1` rewrites them; with `CI` set that is an error.

use std::path::{Path, PathBuf};

/// `tests/golden`.
pub fn dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn blessing() -> bool {
    let bless = std::env::var_os("BLESS").is_some();
    assert!(!(bless && std::env::var_os("CI").is_some()), "BLESS rewrites goldens and must not be set in CI");
    bless
}

/// The difference from the golden, if there is one; rewrites it instead when blessing.
pub fn differs(name: &str, now: &str) -> Option<String> {
    let path = dir().join(name);
    if blessing() {
        std::fs::create_dir_all(dir()).unwrap();
        std::fs::write(&path, now).unwrap();
        return None;
    }
    let old = std::fs::read_to_string(&path).unwrap_or_default();
    if old == now {
        return None;
    }
    let first =
        old.lines().zip(now.lines()).position(|(a, b)| a != b).unwrap_or_else(|| old.lines().count().min(now.lines().count()));
    let line = |t: &str| t.lines().nth(first).unwrap_or("(end of file)").to_owned();
    Some(format!("{name} line {}:\n  golden: {}\n  now:    {}", first + 1, line(&old), line(now)))
}

/// Fails with the first difference.
pub fn check(name: &str, now: &str) {
    if let Some(d) = differs(name, now) {
        panic!("look at the difference and run with BLESS=1 if the new text is right\n{d}");
    }
}
