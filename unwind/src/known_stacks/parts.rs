//! A table whose further parts get memory when they are needed: few threads need more than the first.

/// The parts of a table: `PART` entries, and up to `MORE` times as many others. All zero, it has one part with entries that are
/// all zero.
pub(super) struct Parts<T: 'static, const PART: usize, const MORE: usize> {
    first: [T; PART],
    /// Those that there are come first.
    more: [Option<&'static mut [T; PART]>; MORE],
}

impl<T, const PART: usize, const MORE: usize> Parts<T, PART, MORE> {
    /// Number of entries.
    pub(super) fn count(&self) -> usize {
        PART * (1 + self.more.iter().take_while(|part| part.is_some()).count())
    }

    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&T> {
        match (index / PART).checked_sub(1) {
            None => self.first.get(index),
            Some(number) => self.more.get(number)?.as_deref()?.get(index % PART),
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        match (index / PART).checked_sub(1) {
            None => self.first.get_mut(index),
            Some(number) => self.more.get_mut(number)?.as_deref_mut()?.get_mut(index % PART),
        }
    }

    /// Adds a part; nothing if there are all.
    pub(super) fn add(&mut self, part: &'static mut [T; PART]) {
        if let Some(free) = self.more.iter_mut().find(|part| part.is_none()) {
            *free = Some(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::boxed::Box;

    use super::*;

    #[test]
    fn entries_of_missing_parts_are_missing() {
        let mut parts = Parts::<usize, 4, 2> { first: [0; 4], more: [None, None] };
        for count in [4, 8, 12, 12] {
            assert_eq!(parts.count(), count);
            for index in 0..16 {
                assert_eq!(parts.get(index).is_some(), index < count, "{index} of {count}");
                if let Some(entry) = parts.get_mut(index) {
                    *entry = index;
                }
            }
            assert!((0..count).all(|index| parts.get(index) == Some(&index)));
            parts.add(Box::leak(Box::new([0; 4])));
        }
    }
}
