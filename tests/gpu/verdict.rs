//! Verdicts and their sums, in the form that evidence records take.

/// What came of one item: a case or a special.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    Passed(f64),
    Failed(String),
    /// What the machine lacks.
    Skipped(String),
}

/// Verdicts of a group.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    pub passed: u64,
    pub failed: u64,
    /// What the machine cannot show.
    pub skipped: u64,
    pub worst: f64,
}

impl Tally {
    pub fn add(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Passed(e) => {
                self.passed += 1;
                self.worst = self.worst.max(*e);
            }
            Verdict::Failed(_) => self.failed += 1,
            Verdict::Skipped(_) => self.skipped += 1,
        }
    }
}
