//! Writes `SUPPORT_MATRIX_TRACKER.md` and its JSON twin, or checks them with `--check`.
fn main() {}
