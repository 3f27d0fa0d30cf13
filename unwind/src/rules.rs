//! The rules of a walk: from the rule cache, and on a miss from the modules.

use crate::arch::native;
use crate::end::End;
use crate::memory::Memory;
use crate::module::Module;
use crate::modules::Modules;
use crate::regions::Regions;
use crate::rule::Rule;
use crate::rule_cache::{FastRule, Key, RuleCache};

/// The modules of one walk and the rule cache.
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

    /// The cached rule for the call before return address `address`, if it is a fast one.
    #[inline]
    pub(crate) fn fast(self, address: u64) -> Option<FastRule> {
        self.cache.fast(address, self.key)
    }

    /// Whether the cache has any rule for the call before return address `address`.
    #[inline]
    pub(crate) fn knows(self, address: u64) -> bool {
        self.cache.get(address.wrapping_sub(1), self.key).is_some()
    }

    /// Whether the cache is nearly empty, so that lookups are not worthwhile.
    pub(crate) fn knows_little(self) -> bool {
        self.cache.is_nearly_empty()
    }

    /// The rule from the module's table for the call before return address `address`, if it is a fast one. The caller
    /// should [insert](Self::learn) it into the cache. Never decodes call frame information: the handler's stack is
    /// small.
    ///
    /// `is_exact` says that `address` is not a return address but the address of an instruction plus one. `last` is the
    /// module of the previous frame, which most often matches again.
    #[inline(never)]
    pub(crate) fn in_table(
        self,
        address: u64,
        is_exact: bool,
        last: &mut Option<&'w Module<'w>>,
    ) -> Option<FastRule> {
        self.cache.prefetch(address);
        let lookup = address.wrapping_sub(1);
        let module = match *last {
            Some(module) if module.contains(lookup) => module,
            _ => {
                let module = self.modules.find(lookup)?;
                module.table()?.prefetch();
                last.insert(module)
            }
        };
        if !is_exact && may_be_made_up(module, address) {
            return None;
        }
        FastRule::new(module.table()?.lookup(lookup.wrapping_sub(module.bias)))
    }

    /// Inserts the rule for the call before return address `address` into the cache.
    #[inline]
    pub(crate) fn learn(self, address: u64, rule: FastRule) {
        self.cache.insert_fast(address, self.key, rule);
    }

    /// The rule for `lookup`: an instruction if `is_exact`, else a return address minus one. `None` if no call can
    /// return there.
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

    /// The rule for `lookup`, which no rule covered, after its module may have got another table.
    #[cold]
    #[inline(never)]
    pub(crate) fn late<'r, R: Regions<'r>>(self, lookup: u64, regions: &mut R) -> Result<Rule, End> {
        match self.modules.find(lookup) {
            Some(module) if regions.adopt(module) => module.rule_at(lookup),
            _ => Ok(Rule::UNCOVERED),
        }
    }

    /// The rule from the modules, which is then cached.
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

/// Whether the return address `pc` was placed on a new stack (as `makecontext` does) instead of pushed by a call: a
/// function begins there, and neither another function nor a call ends there.
#[inline(never)]
fn is_made_up<M: Memory>(module: &Module<'_>, pc: u64, memory: &mut M) -> bool {
    may_be_made_up(module, pc)
        && matches!(module.fde_at(pc), Ok(Some(fde)) if fde.start == pc)
        && matches!(module.fde_at(pc.wrapping_sub(1)), Ok(None))
        && native::call_before(pc, memory).is_none()
}

/// False, cheaply, for nearly every return address.
#[inline]
fn may_be_made_up(module: &Module<'_>, pc: u64) -> bool {
    pc.is_multiple_of(native::FUNCTION_ALIGNMENT) && module.may_begin(pc)
}
