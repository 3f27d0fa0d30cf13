//! framehop with its rule cache, under the policy that may not allocate while unwinding.

use crate::method::{MOST, Method, Stack};
use crate::workload::Walkway;
use crate::{modules, registers};
use ::framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use ::framehop::{ExplicitModuleSectionInfo, Module, MustNotAllocateDuringUnwind, Unwinder};

type Policy = MustNotAllocateDuringUnwind;

/// framehop's unwinder with all modules of this process.
pub(crate) struct Framehop {
    unwinder: UnwinderX86_64<&'static [u8], Policy>,
    cache: CacheX86_64<Policy>,
}

impl Framehop {
    /// Reads the modules as they are now.
    pub(crate) fn new() -> Framehop {
        let mut unwinder = UnwinderX86_64::new();
        for image in modules::images() {
            let svma = |address: u64| address - image.bias;
            let range = |section: unwind::Section<'_>| {
                svma(section.address)..svma(section.address) + section.bytes.len() as u64
            };
            let sections = ExplicitModuleSectionInfo {
                base_svma: svma(image.start),
                text_svma: Some(svma(image.text_start)..svma(image.text_end)),
                eh_frame_svma: image.eh_frame.map(range),
                eh_frame: image.eh_frame.map(|section| section.bytes),
                eh_frame_hdr_svma: image.eh_frame_hdr.map(range),
                eh_frame_hdr: image.eh_frame_hdr.map(|section| section.bytes),
                ..Default::default()
            };
            unwinder.add_module(Module::new(String::new(), image.start..image.end, image.start, sections));
        }
        Framehop { unwinder, cache: CacheX86_64::new_in() }
    }
}

impl Method for Framehop {
    fn name(&self) -> &'static str {
        "framehop 0.16"
    }

    fn capture(&mut self, _: &Walkway, stack: &mut Stack) -> usize {
        let registers = registers::here();
        let start = UnwindRegsX86_64::new(registers.pc, registers.sp(), registers.fp());
        // SAFETY: framehop reads only the stack above this frame, which is live; a wrong address shows as a wrong stack
        // or a crash of the bench, not of anybody else.
        let mut read = |address: u64| Ok(unsafe { (address as *const u64).read_volatile() });
        let mut frames = self.unwinder.iter_frames(registers.pc, start, &mut self.cache, &mut read);
        let mut depth = 0;
        while depth < MOST
            && let Ok(Some(frame)) = frames.next()
        {
            stack[depth] = frame.address();
            depth += 1;
        }
        depth
    }
}
