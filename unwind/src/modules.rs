//! The sorted snapshot of all modules for one walk.

use core::ops::Range;

use crate::arch::native;
use crate::module::Module;

/// An immutable snapshot of the loaded modules, sorted by address, without overlaps.
#[derive(Clone, Copy, Debug, Default)]
pub struct Modules<'a> {
    list: &'a [Module<'a>],
    generation: u32,
}

impl<'a> Modules<'a> {
    /// Sorts `list` for [`Modules::new`].
    pub fn sort(list: &mut [Module<'_>]) {
        // Shell sort, with the gaps that Ciura found: programs load hundreds of libraries, each below the last one, and the sort
        // of `core` would add 3 KiB to the agent.
        for gap in [701, 301, 132, 57, 23, 10, 4, 1] {
            for end in gap..list.len() {
                for at in (gap..=end).rev().step_by(gap) {
                    if list[at - gap].start <= list[at].start {
                        break;
                    }
                    list.swap(at - gap, at);
                }
            }
        }
    }

    /// A snapshot of `list`; `None` if it is not sorted or modules overlap.
    ///
    /// `generation` invalidates cached rules: it must differ from that of the previous snapshot whenever the meaning of
    /// an address may have changed, that is after a module was removed. Adding modules does not need a new generation.
    pub fn new(list: &'a [Module<'a>], generation: u32) -> Option<Self> {
        let sorted = list.windows(2).all(|pair| match pair {
            [a, b] => a.end <= b.start,
            _ => true,
        });
        (sorted && list.iter().all(|module| module.start <= module.end)).then_some(Self { list, generation })
    }

    /// The module that contains `address`.
    pub fn find(&self, address: u64) -> Option<&'a Module<'a>> {
        let after = self.list.partition_point(|module| module.start <= address);
        self.list.get(after.checked_sub(1)?).filter(|module| module.contains(address))
    }

    /// The module, or the gap between two modules, that contains `address`, and whether it is a module.
    pub fn span(&self, address: u64) -> (Range<u64>, bool) {
        let after = self.list.partition_point(|module| module.start <= address);
        let next = self.list.get(after).map_or(u64::MAX, |module| module.start);
        match after.checked_sub(1).and_then(|before| self.list.get(before)) {
            Some(module) if module.contains(address) => (module.start..module.end, true),
            Some(module) => (module.end..next, false),
            None => (0..next, false),
        }
    }

    /// Prefetches the modules, up to a usual number of them.
    pub(crate) fn prefetch(&self) {
        native::prefetch(self.list.get(..32).unwrap_or(self.list));
    }

    /// All modules, by address.
    pub fn as_slice(&self) -> &'a [Module<'a>] {
        self.list
    }

    /// The generation given to [`Modules::new`].
    pub fn generation(&self) -> u32 {
        self.generation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(start: u64, end: u64) -> Module<'static> {
        Module { start, end, ..Module::default() }
    }

    #[test]
    fn any_order_is_sorted() {
        for count in [0, 1, 2, 3, 10, 100, 1500] {
            for step in [1, count.max(1) - 1, 7] {
                let start = |at: u64| at * step % count.max(1) * 16;
                let mut list: std::vec::Vec<Module<'_>> = (0..count)
                    .map(|at| Module { start: start(at), end: start(at) + 16, ..Module::default() })
                    .collect();
                Modules::sort(&mut list);
                assert!(list.is_sorted_by_key(|module| module.start), "{count} {step}");
            }
        }
    }

    #[test]
    fn finds_by_address() {
        let mut list = [module(0x3000, 0x4000), module(0x1000, 0x2000)];
        assert!(Modules::new(&list, 0).is_none());
        Modules::sort(&mut list);
        let modules = Modules::new(&list, 0).unwrap();
        for (address, start) in [(0x1000, 0x1000), (0x1fff, 0x1000), (0x3000, 0x3000), (0x3fff, 0x3000)] {
            assert_eq!(modules.find(address).unwrap().start, start);
        }
        for address in [0, 0xfff, 0x2000, 0x2fff, 0x4000, u64::MAX] {
            assert!(modules.find(address).is_none());
        }
    }

    #[test]
    fn a_span_is_a_module_or_the_gap_between_two() {
        let list = [module(0x1000, 0x2000), module(0x2000, 0x3000), module(0x4000, 0x5000)];
        let modules = Modules::new(&list, 0).unwrap();
        for (address, span) in [
            (0, (0..0x1000, false)),
            (0x1000, (0x1000..0x2000, true)),
            (0x2fff, (0x2000..0x3000, true)),
            (0x3000, (0x3000..0x4000, false)),
            (0x5000, (0x5000..u64::MAX, false)),
            (u64::MAX, (0x5000..u64::MAX, false)),
        ] {
            assert_eq!(modules.span(address), span);
        }
        assert_eq!(Modules::default().span(7), (0..u64::MAX, false));
    }

    #[test]
    fn overlaps_are_refused() {
        assert!(Modules::new(&[module(0x1000, 0x2001), module(0x2000, 0x3000)], 0).is_none());
    }
}
