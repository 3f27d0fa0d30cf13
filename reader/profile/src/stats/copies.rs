//! Statistics of stack copies compared with the threads' own walks.

use std::fmt;

use serde::Serialize;

use crate::profile_file::{Comparison, Recovered, Verdict};

/// How copies compare with the threads' own walks, and their size.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CopyStats {
    /// Copies that give the same frames and the same end.
    pub identical: u64,
    /// Copies that differ.
    pub differ: u64,
    /// Copies that do not contain the whole stack, and agree as far as they go.
    pub cut: u64,
    /// Bytes of stacks that were copied.
    pub stack_bytes: u64,
    /// Bytes of the words that the copies contain.
    pub kept_bytes: u64,
    /// Bytes of the copies as recorded.
    pub recorded_bytes: u64,
    /// Number of frames of the stacks.
    pub frames: u64,
    /// What code addresses alone recover.
    pub code_only: RecoveredStats,
    /// What guessing recovers.
    pub guess: RecoveredStats,
}

/// What is recovered from less than the copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecoveredStats {
    /// Stacks recovered exactly.
    pub identical: u64,
    /// Number of frames recovered.
    pub frames: u64,
    /// How many of them are the stack's, in its order.
    pub right: u64,
}

impl RecoveredStats {
    fn add(&mut self, recovered: Recovered, depth: u64) {
        self.identical += u64::from(recovered.frames == depth && recovered.right == depth);
        self.frames += recovered.frames;
        self.right += recovered.right;
    }
}

impl CopyStats {
    /// Counts one comparison.
    pub fn add(&mut self, comparison: &Comparison) {
        match comparison.verdict {
            Verdict::Identical => self.identical += 1,
            Verdict::Cut => self.cut += 1,
            Verdict::Differs => self.differ += 1,
        }
        self.stack_bytes += comparison.copied;
        self.kept_bytes += comparison.kept * 8;
        self.recorded_bytes += comparison.recorded;
        self.frames += comparison.depth;
        self.code_only.add(comparison.code_only, comparison.depth);
        self.guess.add(comparison.guess, comparison.depth);
    }
}

impl fmt::Display for CopyStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "identical {}, differ {}", self.identical, self.differ)?;
        if self.cut > 0 {
            write!(f, ", cut off {}", self.cut)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_add_up() {
        let mut stats = CopyStats::default();
        for (verdict, right) in [(Verdict::Identical, 3), (Verdict::Identical, 2), (Verdict::Differs, 1)] {
            let recovered = Recovered { frames: 3, right };
            stats.add(&Comparison {
                verdict,
                copied: 1000,
                kept: 5,
                recorded: 60,
                depth: 3,
                code_only: recovered,
                ..Comparison::default()
            });
        }
        assert_eq!(stats.to_string(), "identical 2, differ 1");
        assert_eq!((stats.stack_bytes, stats.kept_bytes, stats.recorded_bytes), (3000, 120, 180));
        assert_eq!(stats.code_only, RecoveredStats { identical: 1, frames: 9, right: 6 });
        stats.add(&Comparison { verdict: Verdict::Cut, ..Comparison::default() });
        assert_eq!(stats.to_string(), "identical 2, differ 1, cut off 1");
    }
}
