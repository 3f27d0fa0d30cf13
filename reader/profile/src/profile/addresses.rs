//! Addresses of samples, gathered while a profile is written: with them its names are found without reading the samples.

/// Frames, each with a process and a time at which it stood for its code: in those of a sample, or of several.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    groups: Vec<Group>,
    words: Vec<u64>,
}

/// Frames of one process and time.
#[derive(Clone, Copy, Debug)]
struct Group {
    process: u32,
    ns: u64,
    /// Where they end in `words`.
    end: usize,
}

impl Addresses {
    /// Adds a frame, as a sample of that process at that time (CLOCK_MONOTONIC) has it.
    pub fn add(&mut self, process: u32, ns: u64, word: u64) {
        self.words.push(word);
        let end = self.words.len();
        match self.groups.last_mut() {
            Some(group) if (group.process, group.ns) == (process, ns) => group.end = end,
            _ => self.groups.push(Group { process, ns, end }),
        }
    }

    /// How many frames have been added.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Process, time and frames of each group.
    pub fn groups(&self) -> impl Iterator<Item = (u32, u64, &[u64])> {
        let starts = std::iter::once(0).chain(self.groups.iter().map(|group| group.end));
        let words = |(start, group): (usize, &Group)| (group.process, group.ns, start..group.end);
        starts
            .zip(&self.groups)
            .map(words)
            .map(|(process, ns, range)| (process, ns, self.words.get(range).unwrap_or(&[])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_grouped_by_process_and_time() {
        let mut addresses = Addresses::default();
        assert!(addresses.is_empty());
        for (process, ns, word) in [(1, 10, 7), (1, 10, 8), (2, 10, 7), (2, 11, 7)] {
            addresses.add(process, ns, word);
        }
        let groups: Vec<_> = addresses.groups().collect();
        assert_eq!(groups, [(1, 10, &[7, 8][..]), (2, 10, &[7]), (2, 11, &[7])]);
        assert_eq!(addresses.len(), 4);
    }
}
