//! Counts the gaps in the sequence numbers of a thread's records: records that never arrived.

/// The sequence numbers seen of one thread.
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
    /// Adds a sequence number.
    pub(super) fn add(&mut self, sequence: u64) {
        self.first = self.first.min(sequence);
        self.last = self.last.max(sequence);
        self.count += 1;
    }

    /// Adds those seen by `others`.
    pub(super) fn merge(&mut self, others: Self) {
        self.first = self.first.min(others.first);
        self.last = self.last.max(others.last);
        self.count += others.count;
    }

    /// How many numbers between the first and the last are missing.
    pub(crate) fn gaps(&self) -> u64 {
        self.last.wrapping_sub(self.first).saturating_add(1).saturating_sub(self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_in_sequences() {
        let mut sequences = Sequences::default();
        assert_eq!(Sequences::default().count, 0);
        for sequence in [7, 5, 9, 6] {
            sequences.add(sequence);
        }
        assert_eq!(sequences.gaps(), 1);
        let mut others = Sequences::default();
        others.merge(Sequences::default());
        [4, 10].into_iter().for_each(|sequence| others.add(sequence));
        sequences.merge(others);
        assert_eq!(sequences.gaps(), 1);
        sequences.add(12);
        assert_eq!(sequences.gaps(), 2);
    }
}
