//! When a file that a process appends to had how many bytes: a lower bound of when each part was written.

/// Maximum number of sizes remembered. What is appended later counts as written after the last of them.
const MOST: usize = 1 << 16;

/// The sizes that were seen, with the time at which each was seen last, on the recording's clock.
#[derive(Debug, Default)]
pub(super) struct FileGrowth(Vec<(u64, u64)>);

impl FileGrowth {
    /// Notes the size at a time, in nanoseconds.
    pub(super) fn note(&mut self, bytes: u64, ns: u64) {
        let Self(seen) = self;
        if seen.last().is_some_and(|(before, _)| bytes < *before) {
            seen.clear();
        }
        match seen.last_mut() {
            Some((before, last)) if *before == bytes => *last = ns,
            _ => seen.push((bytes, ns)),
        }
        seen.truncate(MOST);
    }

    /// A time, in nanoseconds, before what begins at `offset` was written; 0 if none is known.
    pub(super) fn written_since(&self, offset: u64) -> u64 {
        let Self(seen) = self;
        let after = seen.partition_point(|(bytes, _)| *bytes <= offset);
        after.checked_sub(1).map_or(0, |last| seen[last].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_appended_is_newer_than_the_size_before() {
        let mut growth = FileGrowth::default();
        assert_eq!(growth.written_since(5), 0);
        for (bytes, ns) in [(10, 100), (10, 200), (30, 300), (31, 400)] {
            growth.note(bytes, ns);
        }
        let times = [0, 9, 10, 29, 30, 31, 1000].map(|offset| growth.written_since(offset));
        assert_eq!(times, [0, 0, 200, 200, 300, 400, 400]);
        growth.note(5, 500);
        assert_eq!([0, 5, 10].map(|offset| growth.written_since(offset)), [0, 500, 500], "written anew");
    }

    #[test]
    fn a_file_that_grows_all_the_time_is_bounded() {
        let mut growth = FileGrowth::default();
        (0..MOST as u64 + 10).for_each(|n| growth.note(n, n));
        assert_eq!((growth.0.len(), growth.written_since(u64::MAX)), (MOST, MOST as u64 - 1));
    }
}
