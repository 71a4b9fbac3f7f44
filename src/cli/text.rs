//! Plain text for people: wrapping, tables, units.

use frostgraph::error::one_line;

/// Wraps words to `width` columns; the first line begins with `first`, the others with `rest`. A longer word stands alone.
pub fn wrap(out: &mut String, text: &str, first: &str, rest: &str, width: usize) {
    let mut line = String::from(first);
    let mut empty = true;
    for word in text.split_whitespace() {
        let used = line.chars().count();
        if !empty && used + 1 + word.chars().count() > width {
            out.push_str(line.trim_end());
            out.push('\n');
            line = String::from(rest);
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    out.push_str(line.trim_end());
    out.push('\n');
}

/// Text for a terminal: names come from files, so control characters but for the ends of lines are escaped.
pub fn printable(text: &str) -> String {
    text.split_inclusive('\n').fold(String::with_capacity(text.len()), |mut out, line| {
        let (body, end) = line.strip_suffix('\n').map_or((line, ""), |body| (body, "\n"));
        out.push_str(&one_line(body));
        out.push_str(end);
        out
    })
}

/// Rows of cells, each column as wide as its widest cell; numbers to the right.
pub fn table(out: &mut String, indent: &str, head: &[&str], rows: &[Vec<String>]) {
    let columns = head.len();
    let rows: Vec<Vec<String>> = rows.iter().map(|r| r.iter().map(|c| one_line(c).into_owned()).collect()).collect();
    let width = |c: usize| {
        rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).chain([head[c].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let numeric = |c: usize| {
        rows.iter().filter_map(|r| r.get(c)).all(|s| s.is_empty() || s.starts_with(|x: char| x.is_ascii_digit() || x == '-'))
    };
    let right: Vec<bool> = (0..columns).map(|c| !rows.is_empty() && numeric(c)).collect();
    let heads: Vec<String> = head.iter().map(|h| (*h).to_string()).collect();
    for row in std::iter::once(&heads).chain(&rows) {
        let mut line = String::from(indent);
        for c in 0..columns {
            let cell = row.get(c).map_or("", String::as_str);
            let pad = " ".repeat(widths[c] - cell.chars().count());
            let sep = if c == 0 { "" } else { "  " };
            let parts = if right[c] { [sep, &pad, cell] } else { [sep, cell, &pad] };
            parts.iter().for_each(|p| line.push_str(p));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
}

/// `1 node`, `2 nodes`.
pub fn count(n: usize, what: &str) -> String {
    if n == 1 {
        format!("1 {what}")
    } else {
        format!("{n} {what}s")
    }
}

/// Seconds in a unit that leaves three to five digits.
pub fn seconds(s: f64) -> String {
    if s >= 1.0 {
        format!("{s:.3} s")
    } else if s >= 1e-3 {
        format!("{:.3} ms", s * 1e3)
    } else {
        format!("{:.3} us", s * 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wraps_and_keeps_long_words() {
        let mut out = String::new();
        wrap(&mut out, "alpha beta gamma delta_is_a_very_long_word e", "- ", "  ", 14);
        assert_eq!(out, "- alpha beta\n  gamma\n  delta_is_a_very_long_word\n  e\n");
        out.clear();
        wrap(&mut out, "", "x: ", "  ", 10);
        assert_eq!(out, "x:\n");
    }

    #[test]
    fn tables_align_numbers_right() {
        let mut out = String::new();
        table(&mut out, "  ", &["name", "ms"], &[vec!["a".into(), "1.5".into()], vec!["bcd".into(), "10.25".into()]]);
        assert_eq!(out, "  name     ms\n  a       1.5\n  bcd   10.25\n");
    }

    #[test]
    fn names_do_not_steer_the_terminal() {
        assert_eq!(printable("a\x1b[2J\r\nb\n"), "a\\u{1b}[2J\\r\nb\n");
        let mut out = String::new();
        table(&mut out, "", &["name"], &[vec!["x\ny".into()]]);
        assert_eq!(out, "name\nx\\ny\n");
    }

    #[test]
    fn units() {
        assert_eq!((seconds(2.0), seconds(0.0125), seconds(3e-6)), ("2.000 s".into(), "12.500 ms".into(), "3.000 us".into()));
        assert_eq!((count(1, "node"), count(3, "node")), ("1 node".into(), "3 nodes".into()));
    }
}
