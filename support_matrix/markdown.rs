//! The matrix for people.

use crate::columns::{features, Group, Operation, DTYPES, GEMM_DTYPES, GEMM_INPUTS, LAYOUTS, MOE_INPUTS};
use crate::matrix::{gemm_inputs_label, moe_inputs_label};
use crate::{Engine, FamilyLine, Flavour, Matrix, Record, Served};
use frostgraph_engines::Family;
use std::fmt::Write;

const HEAD: &str = "\
# Support matrix

Generated from the capability rows and the evidence records by `cargo run -p frostgraph-support-matrix`; do not edit. A test fails when it is stale.

Cells: **N** a kernel of that geometry, **E** zero-padded on a larger kernel at that kernel's cost, `·` declined with a reason.
Evidence: *verified* ran on a GPU with exactly these kernels (date, cases, worst relative error); *compiled* only that NVRTC makes cubins for the
architecture; *CI* a CPU engine whose numerics run in the project's own tests. Opt-in engines are offered with `FROSTGRAPH_ENABLE_FROST_ENGINES=1`.
";

/// The whole document.
pub fn render_markdown(families: &[&'static Family], records: &[Record]) -> String {
    let m = Matrix::new(families, records);
    let mut out = String::from(HEAD);
    overview(&mut out, &m);
    gaps(&mut out, &m);
    let mut notes: Vec<(&str, &str)> = Vec::new();
    for line in &m.lines {
        put(&mut out, format_args!("\n## {}\n", line.arch));
        for f in &line.families {
            if f.engines.is_empty() {
                put(&mut out, format_args!("\n### {} on {}\n\nNo engine.\n", f.name, line.arch));
                continue;
            }
            put(&mut out, format_args!("\n### {} on {}\n", f.name, line.arch));
            for e in &f.engines {
                if let Some(note) = e.row.note.filter(|_| !notes.iter().any(|n| n.0 == e.row.name)) {
                    notes.push((e.row.name, note));
                }
            }
            family(&mut out, f, &notes);
        }
    }
    if !notes.is_empty() {
        out.push_str("\n## Notes\n\n");
        for (i, (name, note)) in notes.iter().enumerate() {
            put(&mut out, format_args!("{}. `{name}`: {note}\n", i + 1));
        }
    }
    out
}

/// Writing to a `String` cannot fail.
fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text);
}

fn overview(out: &mut String, m: &Matrix) {
    out.push_str("\n## Engines by architecture\n\n| architecture |");
    let Some(first) = m.lines.first() else { return };
    for f in &first.families {
        put(out, format_args!(" {} |", f.name));
    }
    put(out, format_args!("\n|---|{}\n", "---|".repeat(first.families.len())));
    for line in &m.lines {
        put(out, format_args!("| {} |", line.arch));
        for f in &line.families {
            let names: Vec<String> = f.engines.iter().map(|e| format!("`{}` {}", e.row.name, short_status(e))).collect();
            put(out, format_args!(" {} |", if names.is_empty() { "–".to_string() } else { names.join("<br>") }));
        }
        out.push('\n');
    }
}

/// The evidence in one word.
fn short_status(e: &Engine) -> String {
    let text = e.status.to_string();
    text.split_once(" (").map_or(text.as_str(), |(word, _)| word).to_string()
}

fn gaps(out: &mut String, m: &Matrix) {
    out.push_str("\n## Gaps at a glance\n\nWhat no engine serves, by architecture.\n\n| architecture | family | not served |\n|---|---|---|\n");
    for line in &m.lines {
        for f in &line.families {
            let text = if f.engines.is_empty() { "everything".to_string() } else { f.gaps().join(", ") };
            put(out, format_args!("| {} | {} | {text} |\n", line.arch, f.name));
        }
    }
}

fn family(out: &mut String, f: &FamilyLine, notes: &[(&str, &str)]) {
    match f.operation {
        Operation::Attention(_) => attention(out, f, notes),
        Operation::GroupedGemm => grouped_gemm(out, f, notes),
        Operation::Moe => moe(out, f, notes),
    }
}

fn grouped_gemm(out: &mut String, f: &FamilyLine, notes: &[(&str, &str)]) {
    let mut heads: Vec<String> = GEMM_INPUTS.iter().map(gemm_inputs_label).collect();
    heads.extend(GEMM_DTYPES.iter().map(|d| format!("C {d}")));
    heads.extend(GEMM_DTYPES.iter().map(|d| format!("D {d}")));
    heads.push("evidence".into());
    table(out, f, "Types", "geometry", &heads, notes, |e, fl| {
        let mut cells: Vec<String> = GEMM_INPUTS.iter().map(|i| mark(e.gemm_inputs(fl, *i))).collect();
        cells.extend(GEMM_DTYPES.iter().map(|d| mark(e.gemm_c(fl, *d))));
        cells.extend(GEMM_DTYPES.iter().map(|d| mark(e.gemm_d(fl, *d))));
        cells.push(e.status.to_string());
        cells
    });
    let list = features(f.operation, Group::Feature);
    let heads: Vec<String> = list.iter().map(|x| x.label().to_string()).collect();
    table(out, f, "Features", "geometry", &heads, notes, |e, fl| list.iter().map(|x| mark(e.feature(fl, *x))).collect());
}

fn moe(out: &mut String, f: &FamilyLine, notes: &[(&str, &str)]) {
    let mut heads: Vec<String> = MOE_INPUTS.iter().map(moe_inputs_label).collect();
    heads.extend(DTYPES.iter().map(|d| format!("output {d}")));
    heads.push("evidence".into());
    table(out, f, "Types", "geometry", &heads, notes, |e, fl| {
        let mut cells: Vec<String> = MOE_INPUTS.iter().map(|i| mark(e.moe_inputs(fl, *i))).collect();
        cells.extend(DTYPES.iter().map(|d| mark(e.moe_output(fl, *d))));
        cells.push(e.status.to_string());
        cells
    });
    let list = features(f.operation, Group::Feature);
    let heads: Vec<String> = list.iter().map(|x| x.label().to_string()).collect();
    table(out, f, "Features", "geometry", &heads, notes, |e, fl| list.iter().map(|x| mark(e.feature(fl, *x))).collect());
}

fn attention(out: &mut String, f: &FamilyLine, notes: &[(&str, &str)]) {
    let mut heads: Vec<String> = DTYPES.iter().map(|d| d.short().to_string()).collect();
    heads.extend(LAYOUTS.iter().map(|l| l.to_string()));
    heads.extend(["16-byte rule", "evidence"].map(String::from));
    table(out, f, "Types and layouts", "head dims", &heads, notes, |e, fl| {
        let mut cells: Vec<String> = DTYPES.iter().map(|d| mark(e.dtype(fl, *d))).collect();
        cells.extend((0..LAYOUTS.len()).map(|l| mark(e.layout(fl, l))));
        cells.push(if e.aligned_16() { "required" } else { "no" }.to_string());
        cells.push(e.status.to_string());
        cells
    });
    for (title, group) in [("Masks", Group::Mask), ("Features", Group::Feature)] {
        let list = features(f.operation, group);
        let heads: Vec<String> = list.iter().map(|x| x.label().to_string()).collect();
        table(out, f, title, "head dims", &heads, notes, |e, fl| list.iter().map(|x| mark(e.feature(fl, *x))).collect());
    }
}

fn table(
    out: &mut String,
    f: &FamilyLine,
    title: &str,
    geometry: &str,
    heads: &[String],
    notes: &[(&str, &str)],
    cells: impl Fn(&Engine, &Flavour) -> Vec<String>,
) {
    put(
        out,
        format_args!("\n{title}\n\n| engine | {geometry} | {} |\n|---|---|{}\n", heads.join(" | "), "---|".repeat(heads.len())),
    );
    for e in &f.engines {
        let note = notes.iter().position(|n| n.0 == e.row.name).map_or(String::new(), |i| format!(" [{}]", i + 1));
        for flavour in &e.flavours {
            let row = cells(e, flavour).join(" | ");
            put(out, format_args!("| `{}` {} ({}){note} | {} | {row} |\n", e.row.name, e.row.id, e.maturity(), flavour.label));
        }
    }
}

fn mark(s: Served) -> String {
    match s {
        Served::Native => "N",
        Served::Envelope => "E",
        Served::Declined => "·",
    }
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use frostgraph_engines::MANIFEST;

    #[test]
    fn every_table_row_has_as_many_cells_as_its_head() {
        let text = render_markdown(MANIFEST, &[]);
        let mut width = 0;
        for line in text.lines() {
            if !line.starts_with('|') {
                width = 0;
                continue;
            }
            let cells = line.matches('|').count();
            assert!(width == 0 || cells == width, "{line}");
            width = cells;
        }
        assert!(text.lines().filter(|l| l.starts_with('|')).count() > 50);
    }

    #[test]
    fn every_row_and_note_appears() {
        let text = render_markdown(MANIFEST, &[]);
        for row in MANIFEST.iter().flat_map(|f| f.rows) {
            assert!(text.contains(&format!("`{}` {}", row.name, row.id)), "{}", row.name);
            assert!(row.note.is_none_or(|n| text.contains(n)), "{}", row.name);
        }
    }
}
