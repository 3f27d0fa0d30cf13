//! Where a walk gets its rules: from the cache, and behind it from the modules.

use crate::cfi;
use crate::end::End;
use crate::memory::Memory;
use crate::module::Module;
use crate::modules::Modules;
use crate::rule::Rule;
use crate::rule_cache::{Key, RuleCache, SimpleRule};
use crate::x86_64;

/// What of one frame helps with the next.
pub(crate) struct Learnt<'w> {
    /// The module, most often the same.
    module: Option<&'w Module<'w>>,
    /// The rule was not in the cache, and so it will be with the next, as in the first walk of a stack. Then the table is
    /// asked before the cache: neither has to wait for the other's memory.
    is_new: bool,
    is_first_walk: bool,
}

impl Learnt<'_> {
    /// Nothing.
    pub(crate) const fn new(is_first_walk: bool) -> Self {
        Self { module: None, is_new: is_first_walk, is_first_walk }
    }
}

/// The modules of one walk and the cache of their rules.
#[derive(Clone, Copy)]
pub(crate) struct Rules<'w> {
    pub(crate) modules: &'w Modules<'w>,
    cache: &'w RuleCache,
    key: Key,
}

impl<'w> Rules<'w> {
    pub(crate) fn new(modules: &'w Modules<'w>, cache: &'w RuleCache) -> Self {
        Self { modules, cache, key: Key::new(modules.generation()) }
    }

    /// The cached rule for the call before the return address `address`, if it is simple.
    #[inline]
    pub(crate) fn simple(self, address: u64) -> Option<SimpleRule> {
        self.cache.simple(address, self.key)
    }

    /// Whether the cache has a rule for the call before the return address `address`, of whatever kind.
    #[inline]
    pub(crate) fn knows(self, address: u64) -> bool {
        self.cache.get(address.wrapping_sub(1), self.key).is_some()
    }

    /// As [`simple`](Self::simple); where the cache has no rule of whatever kind, that of the module's table, which the
    /// cache learns. `is_exact` says that `address` is no return address, but one more than that of an instruction. `last`
    /// is of the frame before.
    #[inline(always)]
    pub(crate) fn simple_or_learnt(
        self,
        address: u64,
        is_exact: bool,
        last: &mut Learnt<'w>,
    ) -> Option<SimpleRule> {
        if last.is_new {
            self.cache.prefetch(address);
        } else if let Some(entry) = self.cache.entry(address, self.key) {
            return entry.simple();
        }
        self.learn(address, is_exact, last)
    }

    /// The rule from the module's table, if it is simple. What needs call frame information itself is not for here: the
    /// handler's stack is small.
    #[inline(never)]
    fn learn(self, address: u64, is_exact: bool, last: &mut Learnt<'w>) -> Option<SimpleRule> {
        let lookup = address.wrapping_sub(1);
        let module = match last.module {
            Some(module) if module.contains(lookup) => module,
            _ => self.modules.find(lookup)?,
        };
        last.module = Some(module);
        if !is_exact && may_be_made_up(module, address) {
            return None;
        }
        let rule = module.table.as_ref()?.lookup(lookup.wrapping_sub(module.bias));
        if last.is_first_walk
            && let Some(entry) = self.cache.entry(address, self.key)
        {
            last.is_new = false;
            return entry.simple();
        }
        last.is_new = last.is_first_walk;
        self.cache.insert(lookup, self.key, rule)
    }

    /// The rule for `lookup`, which `is_exact` or one less than a return address. None if nobody returns there.
    #[inline]
    pub(crate) fn get<M: Memory>(
        self,
        lookup: u64,
        is_exact: bool,
        memory: &mut M,
    ) -> Result<Option<Rule>, End> {
        match self.cache.get(lookup, self.key) {
            Some(rule) => Ok(Some(rule)),
            None => self.find(lookup, is_exact, memory),
        }
    }

    /// What the modules say, which is put into the cache.
    #[inline(never)]
    fn find<M: Memory>(self, lookup: u64, is_exact: bool, memory: &mut M) -> Result<Option<Rule>, End> {
        let Some(module) = self.modules.find(lookup) else { return Ok(Some(Rule::GAP)) };
        if !is_exact && is_made_up(module, lookup.wrapping_add(1), memory) {
            return Ok(None);
        }
        let rule = module.rule_at(lookup)?;
        self.cache.insert(lookup, self.key, rule);
        Ok(Some(rule))
    }
}

/// Whether the return address `pc` was never pushed by a call but laid on a new stack, as `makecontext` does: a function
/// begins there, nothing stands before it, and no call does.
#[inline(never)]
fn is_made_up<M: Memory>(module: &Module<'_>, pc: u64, memory: &mut M) -> bool {
    may_be_made_up(module, pc)
        && matches!(cfi::find(module, pc), Ok(Some(fde)) if fde.start == pc)
        && matches!(cfi::find(module, pc.wrapping_sub(1)), Ok(None))
        && x86_64::call_before(pc, memory).is_none()
}

/// False, at little cost, for nearly every return address.
#[inline]
fn may_be_made_up(module: &Module<'_>, pc: u64) -> bool {
    pc.is_multiple_of(x86_64::FUNCTION_ALIGNMENT) && module.may_begin(pc)
}
