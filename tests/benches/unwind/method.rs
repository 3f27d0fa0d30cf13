//! One way to take a stack of the calling thread. A method that this machine does not have is left out, never faked.

use crate::workload::Walkway;

/// Maximum number of frames that a method may report; stacks of the bench stay well below.
pub(crate) const MOST: usize = 128;

/// Return addresses, innermost first; the method's own frames may come before the workload's.
pub(crate) type Stack = [u64; MOST];

/// selfwind or a peer.
pub(crate) trait Method {
    /// As printed in the table.
    fn name(&self) -> &'static str;
    /// Whether it takes stacks of the workload that was compiled with frame pointers.
    fn on_framed_code(&self) -> bool {
        false
    }
    /// Takes the stack of the calling thread; answers the number of frames.
    fn capture(&mut self, walkway: &Walkway, stack: &mut Stack) -> usize;
    /// Converts what `capture` wrote to plain addresses; not timed.
    fn finish(&mut self, _stack: &mut Stack, _depth: usize) {}
}

/// Number of variants of selfwind.
const OURS: usize = crate::selfwind::USES.len();

/// All methods that work here, selfwind first.
pub(crate) fn all() -> Vec<Box<dyn Method>> {
    (0..OURS).map(crate::selfwind::method).chain(peers()).collect()
}

/// One of [`all`], alone: in a fresh process no other method has warmed or cooled caches.
pub(crate) fn nth(index: usize) -> Box<dyn Method> {
    if index < OURS {
        return crate::selfwind::method(index);
    }
    peers().into_iter().nth(index - OURS).expect("a method's number")
}

fn peers() -> Vec<Box<dyn Method>> {
    let mut methods: Vec<Box<dyn Method>> = crate::libunwind::methods();
    methods.push(Box::new(crate::libgcc::UnwindBacktrace));
    methods.push(Box::new(crate::libgcc::Backtrace));
    methods.push(Box::new(crate::framehop::Framehop::new()));
    methods.push(Box::new(crate::frame_pointer::FramePointer));
    methods
}
