//! Progress on standard error while something takes long; silent when it is no terminal.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// Runs work under a spinner.
pub fn spin<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let bar = ProgressBar::new_spinner().with_message(what.to_string());
    bar.enable_steady_tick(Duration::from_millis(120));
    let out = work();
    bar.finish_and_clear();
    out
}

/// A bar over a known number of steps.
pub fn bar(steps: u64, what: &str) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{msg} [{bar:32}] {pos}/{len} {eta}").unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(steps).with_style(style).with_message(what.to_string())
}
