//! The generated files and how they are kept current.

use crate::{embedded_evidence, render_json, render_markdown, EvidenceError};
use frostgraph_engines::MANIFEST;
use std::path::Path;

/// The document, below the repository's root.
pub const MARKDOWN_FILE: &str = "SUPPORT_MATRIX_TRACKER.md";
/// Its JSON twin, below the repository's root.
pub const JSON_FILE: &str = "support_matrix/matrix.json";

fn rendered() -> Result<[(&'static str, String); 2], EvidenceError> {
    let records = embedded_evidence()?;
    Ok([(MARKDOWN_FILE, render_markdown(MANIFEST, &records)), (JSON_FILE, render_json(MANIFEST, &records))])
}

/// Names of generated files below `root` that are missing or differ from what this build renders.
pub fn stale_files(root: &Path) -> Result<Vec<&'static str>, EvidenceError> {
    let current = |name: &str, text: &str| std::fs::read_to_string(root.join(name)).is_ok_and(|old| old == text);
    Ok(rendered()?.into_iter().filter(|(name, text)| !current(name, text)).map(|(name, _)| name).collect())
}

/// Writes the generated files below `root`, each beside its place and then renamed, so that none is ever half-written.
pub fn write_files(root: &Path) -> std::io::Result<()> {
    let files = rendered().map_err(std::io::Error::other)?;
    for (name, text) in files {
        let beside = root.join(format!("{name}.{}.tmp", std::process::id()));
        let done = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, root.join(name)));
        if done.is_err() {
            // The first error is the one to report.
            let _ = std::fs::remove_file(&beside);
            return done;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn support_matrix_is_current() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let stale = stale_files(&root).expect("well-formed evidence");
        if stale.is_empty() {
            return;
        }
        let rewritten = std::env::var_os("CI").is_none();
        if rewritten {
            write_files(&root).expect("the repository is writable");
        }
        let what = if rewritten { "rewritten: commit them" } else { "`cargo run -p frostgraph-support-matrix` rewrites them" };
        panic!("{} stale; {what}", stale.join(" and "));
    }

    #[test]
    fn rendering_is_deterministic_i8() {
        assert_eq!(rendered(), rendered());
    }

    #[test]
    fn an_unwritable_folder_is_an_error() {
        assert!(write_files(Path::new("/nonexistent/folder")).is_err());
        assert_eq!(stale_files(Path::new("/nonexistent/folder")), Ok(vec![MARKDOWN_FILE, JSON_FILE]));
    }
}
