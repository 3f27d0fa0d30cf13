//! Sequence numbers of a thread's records: what is missing between those that came.

/// What came of one thread.
pub(crate) struct Sequences {
    first: u64,
    last: u64,
    count: u64,
}

impl Default for Sequences {
    fn default() -> Self {
        Self { first: u64::MAX, last: 0, count: 0 }
    }
}

impl Sequences {
    /// This one came.
    pub(super) fn saw(&mut self, sequence: u64) {
        self.first = self.first.min(sequence);
        self.last = self.last.max(sequence);
        self.count += 1;
    }

    /// These came, too.
    pub(super) fn add(&mut self, others: Self) {
        self.first = self.first.min(others.first);
        self.last = self.last.max(others.last);
        self.count += others.count;
    }

    /// Numbers between the first and the last that did not come.
    pub(crate) fn holes(&self) -> u64 {
        self.last.wrapping_sub(self.first).saturating_add(1).saturating_sub(self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_in_sequences() {
        let mut sequences = Sequences::default();
        assert_eq!(Sequences::default().count, 0);
        for sequence in [7, 5, 9, 6] {
            sequences.saw(sequence);
        }
        assert_eq!(sequences.holes(), 1);
        let mut others = Sequences::default();
        others.add(Sequences::default());
        [4, 10].into_iter().for_each(|sequence| others.saw(sequence));
        sequences.add(others);
        assert_eq!(sequences.holes(), 1);
        sequences.saw(12);
        assert_eq!(sequences.holes(), 2);
    }
}
