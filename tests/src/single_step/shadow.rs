//! The shadow stack of a thread: every return address pushed by a call and not yet popped, and every instruction
//! interrupted by a signal, each with its stack slot.
//!
//! Its only input is what the processor did: calls, the stack pointer, signal frames built by the kernel. An entry
//! whose slot is below the stack pointer is dead, no matter how that came about: by `ret`, by `longjmp`, by an
//! exception.

use std::collections::VecDeque;
use std::ops::Range;

/// How many popped return addresses are remembered.
const TAKEN: usize = 16;

/// One frame boundary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Address of the stack slot that keeps the entry alive.
    pub slot: u64,
    /// Return address, or the interrupted instruction.
    pub address: u64,
    /// What the address is.
    pub kind: Kind,
}

/// What an entry's address is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The instruction after a call.
    Return,
    /// The instruction that a signal interrupted.
    Interrupted,
    /// The first instruction of a function that is only ever returned to.
    Trampoline,
}

impl Entry {
    /// Whether the address is the next instruction to run there, rather than the one after a call.
    pub fn is_exact(&self) -> bool {
        self.kind != Kind::Return
    }
}

/// The entries on one contiguous stack; an alternate signal stack starts a segment of its own.
#[derive(Clone, Debug, Default)]
struct Segment {
    /// Range of the alternate stack; `None` for the stack the context began on.
    alternate: Option<Range<u64>>,
    entries: Vec<Entry>,
}

/// One context: a stack of segments. A thread has one, and one more per coroutine.
#[derive(Clone, Debug)]
struct Context {
    segments: Vec<Segment>,
}

impl Context {
    fn new() -> Self {
        Self { segments: vec![Segment::default()] }
    }

    fn top(&self) -> Option<&Entry> {
        self.segments.iter().rev().find_map(|s| s.entries.last())
    }
}

/// The shadow stack of one thread.
#[derive(Clone, Debug)]
pub struct Shadow {
    running: Context,
    suspended: Vec<Context>,
    /// Return addresses taken off the stack otherwise than by a return, oldest first.
    taken: VecDeque<Entry>,
}

impl Default for Shadow {
    fn default() -> Self {
        Self { running: Context::new(), suspended: Vec::new(), taken: VecDeque::new() }
    }
}

impl Shadow {
    /// A call stored `address` at `slot`, the new stack pointer.
    pub fn call(&mut self, slot: u64, address: u64) {
        self.prune(slot);
        self.last().entries.push(Entry { slot, address, kind: Kind::Return });
    }

    /// A context that begins at `slot` will return to `address`, the first instruction of a trampoline.
    pub fn begin(&mut self, slot: u64, address: u64) {
        self.last().entries.push(Entry { slot, address, kind: Kind::Trampoline });
    }

    /// The kernel built a signal frame at `frame` (the handler's return address) over the instruction `pc`;
    /// `alternate` is the alternate stack if the frame is the first on it.
    pub fn signal(&mut self, frame: u64, restorer: u64, pc: u64, alternate: Option<Range<u64>>) {
        if alternate.is_some() {
            self.running.segments.push(Segment { alternate, entries: Vec::new() });
        }
        let entries = &mut self.last().entries;
        entries.push(Entry { slot: frame + 8, address: pc, kind: Kind::Interrupted });
        entries.push(Entry { slot: frame, address: restorer, kind: Kind::Return });
    }

    /// A return set the stack pointer to `sp`: the slots that it popped are gone.
    pub fn returned(&mut self, sp: u64) {
        let taken = std::mem::take(&mut self.taken);
        self.prune(sp);
        self.taken = taken;
    }

    /// The stack pointer is `sp`: drops what is dead.
    pub fn prune(&mut self, sp: u64) {
        while self.running.segments.len() > 1
            && self.last().alternate.as_ref().is_some_and(|r| sp < r.start || sp > r.end)
        {
            self.running.segments.pop();
        }
        while let Some(entry) = self.last().entries.pop_if(|e| e.slot < sp) {
            if self.taken.len() == TAKEN {
                self.taken.pop_front();
            }
            self.taken.push_back(entry);
        }
    }

    /// Whether a return through `slot` to `address` undoes a pop: the program took the return address into a
    /// register and pushed it back, as musl's `sigsetjmp` does.
    pub fn was_taken(&self, slot: u64, address: u64) -> bool {
        self.taken.iter().any(|e| e.slot == slot && e.address == address)
    }

    /// The live entry at `slot`, if it is the innermost one.
    pub fn at(&self, slot: u64) -> Option<Entry> {
        self.running.top().filter(|e| e.slot == slot).copied()
    }

    /// A stack switch: the running context is suspended and the one whose saved stack pointer is `sp` runs.
    /// A context is known by the slot of its innermost return address, right below its saved stack pointer.
    /// Returns false when no context was suspended there: a new one begins, empty.
    pub fn switch(&mut self, sp: u64) -> bool {
        let index = self.suspended.iter().position(|c| c.top().is_some_and(|e| e.slot + 8 == sp));
        let next = index.map(|at| self.suspended.swap_remove(at));
        let known = next.is_some();
        self.suspended.push(std::mem::replace(&mut self.running, next.unwrap_or_else(Context::new)));
        known
    }

    /// The entries of the running context, innermost first.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        self.running.segments.iter().rev().flat_map(|s| s.entries.iter().rev().copied())
    }

    /// Whether a signal handler runs.
    pub fn is_interrupted(&self) -> bool {
        self.entries().any(|e| e.kind == Kind::Interrupted)
    }

    /// True when nothing was ever pushed and survives: the outermost function.
    pub fn is_empty(&self) -> bool {
        self.running.top().is_none()
    }

    fn last(&mut self) -> &mut Segment {
        self.running.segments.last_mut().expect("a context has at least the segment it began with")
    }
}

#[cfg(test)]
mod tests {
    use super::Shadow;

    fn addresses(shadow: &Shadow) -> Vec<u64> {
        shadow.entries().map(|e| e.address).collect()
    }

    #[test]
    fn a_return_pops_its_call_and_longjmp_many() {
        let mut shadow = Shadow::default();
        shadow.call(0x1000, 1);
        shadow.call(0xf00, 2);
        shadow.call(0xe00, 3);
        assert_eq!(addresses(&shadow), [3, 2, 1]);
        shadow.prune(0xe00);
        assert_eq!(shadow.at(0xe00).unwrap().address, 3, "alive until the stack pointer passes it");
        shadow.prune(0xe08);
        assert_eq!(addresses(&shadow), [2, 1]);
        shadow.prune(0xff8);
        assert_eq!(addresses(&shadow), [1]);
    }

    #[test]
    fn a_signal_frame_lies_between_handler_and_interrupted_code() {
        let mut shadow = Shadow::default();
        shadow.call(0x1000, 1);
        shadow.signal(0x800, 99, 42, None);
        shadow.call(0x700, 5);
        assert_eq!(addresses(&shadow), [5, 99, 42, 1]);
        shadow.prune(0x808);
        assert_eq!(addresses(&shadow), [42, 1], "in the restorer");
        shadow.prune(0xff0);
        assert_eq!(addresses(&shadow), [1]);
    }

    #[test]
    fn an_alternate_stack_is_left_by_sigreturn_or_longjmp() {
        let mut shadow = Shadow::default();
        shadow.call(0x1000, 1);
        shadow.call(0xf00, 2);
        shadow.signal(0x50800, 99, 42, Some(0x50000..0x51000));
        shadow.call(0x50700, 5);
        assert_eq!(addresses(&shadow), [5, 99, 42, 2, 1]);
        shadow.prune(0xf80);
        assert_eq!(addresses(&shadow), [1]);
    }

    #[test]
    fn coroutines_keep_their_stacks_apart() {
        let mut shadow = Shadow::default();
        shadow.call(0x1000, 1);
        assert!(!shadow.switch(0x9000), "nobody was suspended there");
        assert!(shadow.is_empty());
        shadow.call(0x8f00, 7);
        assert!(shadow.switch(0x1008));
        assert_eq!(addresses(&shadow), [1]);
        assert!(shadow.switch(0x8f08));
        assert_eq!(addresses(&shadow), [7]);
    }
}
