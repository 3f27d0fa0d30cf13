//! Where a walk gets its rules: from the cache, and behind it from the modules.

use crate::arch::native;
use crate::end::End;
use crate::memory::Memory;
use crate::module::Module;
use crate::modules::Modules;
use crate::rule::Rule;
use crate::rule_cache::{Key, RuleCache, SimpleRule};

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

    /// Whether the cache has hardly any rules, so that it is not worth asking.
    pub(crate) fn knows_little(self) -> bool {
        self.cache.is_nearly_empty()
    }

    /// The rule from the module's table for the call before the return address `address`, if it is simple; it should be
    /// [learnt](Self::learn). What needs call frame information itself is not for here: the handler's stack is small.
    ///
    /// `is_exact` says that `address` is no return address, but one more than that of an instruction. `last` is the module
    /// of the frame before, most often the same.
    #[inline(never)]
    pub(crate) fn in_table(
        self,
        address: u64,
        is_exact: bool,
        last: &mut Option<&'w Module<'w>>,
    ) -> Option<SimpleRule> {
        self.cache.prefetch(address);
        let lookup = address.wrapping_sub(1);
        let module = match *last {
            Some(module) if module.contains(lookup) => module,
            _ => {
                let module = self.modules.find(lookup)?;
                module.table.as_ref()?.prefetch();
                last.insert(module)
            }
        };
        if !is_exact && may_be_made_up(module, address) {
            return None;
        }
        SimpleRule::new(module.table.as_ref()?.lookup(lookup.wrapping_sub(module.bias)))
    }

    /// Puts a rule for the call before the return address `address`, which has one, into the cache.
    #[inline]
    pub(crate) fn learn(self, address: u64, rule: SimpleRule) {
        self.cache.insert_simple(address, self.key, rule);
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
        let Some(module) = self.modules.find(lookup) else { return Ok(Some(Rule::UNCOVERED)) };
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
        && matches!(module.fde_at(pc), Ok(Some(fde)) if fde.start == pc)
        && matches!(module.fde_at(pc.wrapping_sub(1)), Ok(None))
        && native::call_before(pc, memory).is_none()
}

/// False, at little cost, for nearly every return address.
#[inline]
fn may_be_made_up(module: &Module<'_>, pc: u64) -> bool {
    pc.is_multiple_of(native::FUNCTION_ALIGNMENT) && module.may_begin(pc)
}
