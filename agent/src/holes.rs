//! Cuts holes into modules where a registered region has its own unwinder, so that no other rule is found for code
//! there.

use alloc::vec::Vec;

use interpreter::regions::Region;
use unwind::Module;

/// The modules with holes for the regions, both sorted by address. Each region is told which module it lies in.
pub(crate) fn cut(modules: Vec<Module<'static>>, regions: &mut [Region]) -> Vec<Module<'static>> {
    if regions.is_empty() {
        return modules;
    }
    for region in regions.iter_mut() {
        let holds = |module: &&Module<'static>| module.start <= region.start && region.end <= module.end;
        region.under = modules.iter().find(holds).copied();
    }
    let mut parts = Vec::with_capacity(modules.len() + regions.len());
    for module in modules {
        let mut start = module.start;
        for region in regions.iter().filter(|region| region.start < module.end && module.start < region.end) {
            if start < region.start {
                parts.push(Module { start, end: region.start, ..module });
            }
            start = region.end;
        }
        if start < module.end {
            parts.push(Module { start, ..module });
        }
    }
    parts
}
