//! The rings of perf_event_open(2) by which the kernel asks a thread for stacks.
//!
//! Each event of a thread has one ring, which its thread alone consumes: the handler reads how far the kernel has
//! written when it begins, carries that part into the pool, and gives its room back. A ring has no descriptor: its
//! mapping alone keeps the event alive, so that a program which closes every descriptor neither meets nor ends it.

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::sys;

/// Rings of one thread: one for each event of the session.
pub const RINGS: usize = 16;
/// Bytes of the page before the ring's data (perf_event_open(2), "MMAP layout").
pub const PAGE: usize = sys::PAGE as usize;

/// `data_head` and `data_tail` in that page.
const HEAD: usize = 1024;
const TAIL: usize = 1032;
/// Records of the ring begin and end at multiples of this.
const WORD: u64 = 8;
/// PERF_RECORD_LOST: id, then the number of records lost.
const RECORD_LOST: u32 = 2;
/// PERF_RECORD_SAMPLE.
const RECORD_SAMPLE: u32 = 9;
/// Time in the kernel that no sample stands for and that waits no longer for the thread to come from a call. A timer's
/// tick at most kernels' HZ.
const OVERDUE_NS: u64 = 4_000_000;
/// Bits of a nonce that hold the head; the ring's number lies above.
const HEAD_BITS: u32 = 40;

/// One ring, or none.
#[derive(Debug, Default)]
pub struct KernelRing {
    control: AtomicPtr<u8>,
    bytes: AtomicU32,
    id: AtomicU32,
    /// The head when the last answer was complete: below it everything came from handlers or was answered.
    answered: AtomicU64,
}

/// The rings of a thread, the last stack that answered them, and what they count.
#[derive(Debug, Default)]
pub struct KernelRings {
    rings: [KernelRing; RINGS],
    nonce: AtomicU64,
    ip: AtomicU64,
    sp: AtomicU64,
    /// Nanoseconds of CPU time that a unit of weight stands for; 0 if weights count events.
    period_ns: AtomicU64,
    /// The thread's CPU time that its samples stand for so far.
    counted_ns: AtomicU64,
    /// The kernel's events happen in user mode only.
    user_only: AtomicBool,
}

impl KernelRing {
    const fn none() -> Self {
        Self {
            control: AtomicPtr::new(ptr::null_mut()),
            bytes: AtomicU32::new(0),
            id: AtomicU32::new(0),
            answered: AtomicU64::new(0),
        }
    }

    /// Takes over a ring of `bytes` bytes of data, a power of two, that follow the page at `control`.
    ///
    /// # Safety
    /// The mapping is a ring of perf_event_open(2), readable and writable, and stays until [`KernelRing::detach`].
    pub unsafe fn attach(&self, control: *mut u8, bytes: u32, id: u32) {
        self.bytes.store(bytes, Ordering::Relaxed);
        self.id.store(id, Ordering::Relaxed);
        self.answered.store(0, Ordering::Relaxed);
        // Last: a handler that sees the mapping sees the rest, because it runs on this thread or after its event
        // was enabled.
        self.control.store(control, Ordering::Release);
    }

    /// Gives the ring up; its mapping, if there was one, with all its bytes.
    pub fn detach(&self) -> Option<(*mut u8, usize)> {
        let control = self.control.swap(ptr::null_mut(), Ordering::AcqRel);
        (!control.is_null()).then(|| (control, PAGE + self.bytes()))
    }

    /// True between [`KernelRing::attach`] and [`KernelRing::detach`].
    pub fn is_attached(&self) -> bool {
        self.control().is_some()
    }

    /// Its number in the region.
    pub fn id(&self) -> u32 {
        self.id.load(Ordering::Relaxed)
    }

    /// Bytes of its data.
    fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed) as usize
    }

    fn control(&self) -> Option<*mut u8> {
        let control = self.control.load(Ordering::Acquire);
        (!control.is_null()).then_some(control)
    }

    fn word_at(&self, place: usize) -> Option<&AtomicU64> {
        // SAFETY: an attached ring's first page is mapped, and the kernel's words in it are aligned.
        self.control().map(|control| unsafe { &*control.add(place).cast::<AtomicU64>() })
    }

    /// How far the kernel has written: a multiple of eight.
    pub fn head(&self) -> u64 {
        // Pairs with the kernel's barrier before it stores the head (kernel/events/ring_buffer.c).
        self.word_at(HEAD).map_or(0, |head| head.load(Ordering::Acquire)) & !(WORD - 1)
    }

    /// How far it has been consumed: a multiple of eight, and no further below the head than the ring is long. The page
    /// is the program's memory too; where it holds anything else, all is taken as consumed.
    pub fn tail(&self) -> u64 {
        let tail = self.word_at(TAIL).map_or(0, |tail| tail.load(Ordering::Relaxed));
        let head = self.head();
        let whole = self.bytes() as u64;
        if tail.is_multiple_of(WORD) && head.wrapping_sub(tail) <= whole { tail } else { head }
    }

    /// Gives the room below `tail` back to the kernel; `answered` is the head at the end of the handler.
    pub fn consume(&self, tail: u64, answered: u64) {
        self.answered.store(answered, Ordering::Relaxed);
        if let Some(word) = self.word_at(TAIL) {
            // The reads of the data come before.
            word.store(tail, Ordering::Release);
        }
    }

    /// The words of the stream from `from` on, without those beyond `to` or the end of the buffer: call again for what
    /// follows. Only for what lies between tail and head.
    pub fn words(&self, from: u64, to: u64) -> &[u64] {
        let bytes = self.bytes();
        let Some(control) = self.control() else { return &[] };
        let place = from as usize & bytes.wrapping_sub(1) & !(WORD as usize - 1);
        let len = (to.saturating_sub(from)).min(bytes.saturating_sub(place) as u64) as usize;
        // SAFETY: inside the data of the attached ring, which begins on a page, at a multiple of eight. The kernel does
        // not write there before the tail has passed.
        unsafe { core::slice::from_raw_parts(control.add(PAGE + place).cast::<u64>(), len / 8) }
    }

    fn word(&self, at: u64) -> Option<u64> {
        self.words(at, at.wrapping_add(8)).first().copied()
    }

    /// Events between tail and `head` that are not answered yet: records and those the kernel had no room for.
    fn events(&self, head: u64) -> u32 {
        let answered = self.answered.load(Ordering::Relaxed);
        let (mut at, mut events) = (self.tail(), 0u32);
        while at < head {
            // type:32, misc:16, size:16.
            let Some(word) = self.word(at) else { break };
            let size = word >> 48;
            if size < WORD || !size.is_multiple_of(WORD) {
                break;
            }
            match word as u32 {
                RECORD_SAMPLE if at >= answered => events = events.saturating_add(1),
                RECORD_LOST => {
                    let lost = self.word(at.wrapping_add(16)).unwrap_or(0);
                    events = events.saturating_add(lost.min(u32::MAX.into()) as u32);
                }
                _ => {}
            }
            at = at.wrapping_add(size);
        }
        events
    }
}

impl KernelRings {
    /// No rings.
    pub const fn new() -> Self {
        Self {
            rings: [const { KernelRing::none() }; RINGS],
            nonce: AtomicU64::new(0),
            ip: AtomicU64::new(0),
            sp: AtomicU64::new(0),
            period_ns: AtomicU64::new(0),
            counted_ns: AtomicU64::new(0),
            user_only: AtomicBool::new(false),
        }
    }

    /// The rings, attached or not.
    pub fn all(&self) -> &[KernelRing; RINGS] {
        &self.rings
    }

    /// Those that the thread has: the first ones. A handler does not look at more than one that it has not.
    pub(crate) fn attached(&self) -> impl Iterator<Item = &KernelRing> {
        self.rings.iter().take_while(|ring| ring.is_attached())
    }

    /// True if the thread has any.
    pub fn are_attached(&self) -> bool {
        self.attached().next().is_some()
    }

    /// Weights count periods of CPU time from `from_ns` of the thread's CPU clock on. By the thread itself with signals
    /// blocked, or before its first sample.
    pub fn count_time(&self, from_ns: u64, period_ns: u64, user_only: bool) {
        self.counted_ns.store(from_ns, Ordering::Relaxed);
        self.user_only.store(user_only, Ordering::Relaxed);
        self.period_ns.store(period_ns, Ordering::Relaxed);
    }

    /// Nanoseconds of CPU time that a unit of weight stands for, while there are rings; 0 if weights count events.
    pub(crate) fn period_ns(&self) -> u64 {
        if self.are_attached() { self.period_ns.load(Ordering::Relaxed) } else { 0 }
    }

    /// Nanoseconds of CPU time that a unit of weight stands for; 0 if weights count events, or nobody has counted from the
    /// thread's birth on.
    pub(crate) fn counted_period_ns(&self) -> u64 {
        self.period_ns.load(Ordering::Relaxed)
    }

    /// How many periods a sample stands for when the thread's CPU clock says `cpu_ns`; they are counted. It was asked for by
    /// so many `events`, or by the timer for time in the kernel, of a thread that comes from a system call or not.
    pub(crate) fn weigh(
        &self,
        cpu_ns: u64,
        period_ns: u64,
        events: Option<u32>,
        is_behind_a_call: bool,
    ) -> u32 {
        let due = self.due(cpu_ns, period_ns);
        let left_ns = u64::from(due) * period_ns;
        let weight = match events {
            // Events in user mode are right in number; what they leave is time in the kernel, which waits for its timer, but
            // not if that does not come.
            Some(events) if self.user_only.load(Ordering::Relaxed) && left_ns < 4 * OVERDUE_NS => {
                events.max(1)
            }
            Some(events) => events.max(due),
            // This timer is for time in the kernel, which goes to whoever has just been there; in time, to anybody.
            None if is_behind_a_call || left_ns >= OVERDUE_NS => due,
            None => 0,
        };
        self.count(weight, period_ns);
        weight
    }

    /// The full periods that no sample stands for when the thread's CPU clock says `cpu_ns`.
    fn due(&self, cpu_ns: u64, period_ns: u64) -> u32 {
        // Samples may stand for a part of a period that has not passed yet.
        let passed = cpu_ns.wrapping_sub(self.counted_ns.load(Ordering::Relaxed)).cast_signed();
        let periods = u64::try_from(passed).map_or(0, |ns| ns / period_ns.max(1));
        periods.min(u32::MAX.into()) as u32
    }

    /// The full periods that no sample stands for yet; they are counted.
    pub(crate) fn take_due(&self, cpu_ns: u64, period_ns: u64) -> u32 {
        let due = self.due(cpu_ns, period_ns);
        self.count(due, period_ns);
        due
    }

    /// A sample stands for so many periods.
    pub(crate) fn count(&self, periods: u32, period_ns: u64) {
        let counted = self.counted_ns.load(Ordering::Relaxed);
        self.counted_ns
            .store(counted.wrapping_add(u64::from(periods).wrapping_mul(period_ns)), Ordering::Relaxed);
    }

    /// Forgets the rings, which a forked child has not inherited.
    pub fn forget(&self) {
        for ring in &self.rings {
            ring.detach();
        }
        self.count_time(0, 0, false);
        self.note_answer(0, (0, 0));
    }

    /// Ends the events of the thread, by a system call for each; the last one first, as handlers look from the first on.
    pub fn close(&self) {
        for ring in self.rings.iter().rev() {
            if let Some((control, bytes)) = ring.detach() {
                // SAFETY: the ring's own mapping, which nobody uses any more. With it goes the event.
                unsafe { sys::call(libc::SYS_munmap, [control as usize, bytes, 0, 0, 0, 0]) };
            }
        }
    }

    /// Events in user mode stand for the time in the kernel, too: nothing else does.
    pub fn weigh_all(&self) {
        self.user_only.store(false, Ordering::Relaxed);
    }

    /// Reads what the kernel asks for of the thread, which is interrupted at this instruction and stack pointer: as early in a
    /// handler as the rings are known to be the thread's own.
    pub fn request(&self, blocked: bool, at: (u64, u64)) -> Request {
        let mut request = Request { heads: [0; RINGS], nonce: 0, events: 0, blocked, at };
        for (ring, place) in self.attached().zip(&mut request.heads) {
            let head = ring.head();
            *place = head;
            if head == ring.tail() {
                continue;
            }
            if request.nonce == 0 {
                request.nonce = u64::from(ring.id()) << HEAD_BITS | head & ((1 << HEAD_BITS) - 1);
            }
            request.events = request.events.saturating_add(ring.events(head));
        }
        request
    }

    /// Notes which request was answered last, and where the thread was.
    pub(crate) fn note_answer(&self, nonce: u64, (ip, sp): (u64, u64)) {
        self.nonce.store(nonce, Ordering::Relaxed);
        self.ip.store(ip, Ordering::Relaxed);
        self.sp.store(sp, Ordering::Relaxed);
    }
}

/// What the kernel asks for: all it has recorded for a thread when the handler begins.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// How far each ring was written.
    pub heads: [u64; RINGS],
    /// Name of the stack that will answer.
    pub nonce: u64,
    /// Events that it answers.
    pub events: u32,
    /// The signal was blocked when the kernel asked.
    pub blocked: bool,
    /// The interrupted instruction and stack pointer.
    pub at: (u64, u64),
}

impl Request {
    /// True if nothing was recorded since the last answer.
    pub fn is_empty(&self) -> bool {
        self.nonce == 0
    }

    /// The nonce of the last answer, if the thread still stands where it stood then, having been in the handler ever
    /// since: what the kernel recorded came from the handler.
    pub fn repeats(&self, rings: &KernelRings) -> Option<u64> {
        let nonce = rings.nonce.load(Ordering::Relaxed);
        let at = (rings.ip.load(Ordering::Relaxed), rings.sp.load(Ordering::Relaxed));
        let stands = at == self.at && nonce != 0;
        (self.blocked && stands).then_some(nonce)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::alloc::{Layout, alloc_zeroed};
    use std::vec::Vec;

    use super::*;

    /// A ring as the kernel would fill it, of one page of data.
    struct Made {
        base: *mut u8,
        rings: KernelRings,
    }

    impl Made {
        fn new() -> Self {
            // SAFETY: two zeroed pages, leaked.
            let base = unsafe { alloc_zeroed(Layout::from_size_align(2 * PAGE, PAGE).unwrap()) };
            let rings = KernelRings::new();
            // SAFETY: as long as a ring of one page.
            unsafe { rings.rings[0].attach(base, PAGE as u32, 3) };
            Made { base, rings }
        }

        fn write(&self, words: &[u64]) {
            let head = self.rings.rings[0].head();
            for (offset, word) in words.iter().enumerate() {
                let place = (head as usize + offset * 8) & (PAGE - 1);
                // SAFETY: inside the second page.
                unsafe { self.base.add(PAGE + place).cast::<u64>().write(*word) };
            }
            // SAFETY: the word of the head.
            unsafe { self.base.add(HEAD).cast::<u64>().write(head + words.len() as u64 * 8) };
        }

        fn record(&self, kind: u32, rest: &[u64]) {
            let head = u64::from(kind) | (rest.len() as u64 + 1) << 51;
            self.write(&[&[head], rest].concat());
        }
    }

    #[test]
    fn events_are_counted_once_and_lost_ones_too() {
        let made = Made::new();
        assert!(made.rings.request(false, (7, 8)).is_empty());
        made.record(RECORD_SAMPLE, &[1, 2]);
        made.record(RECORD_LOST, &[0, 5]);
        made.record(14, &[9]);
        let request = made.rings.request(false, (7, 8));
        assert_eq!((request.events, request.heads[0], request.nonce), (6, 64, 3 << 40 | 64));
        // One more comes while the handler runs: it is the handler's own.
        made.record(RECORD_SAMPLE, &[1, 2]);
        made.rings.rings[0].consume(request.heads[0], made.rings.rings[0].head());
        let request = made.rings.request(true, (7, 8));
        assert_eq!((request.events, request.is_empty()), (0, false));
        assert_eq!(request.repeats(&made.rings), None);
        made.rings.note_answer(11, (7, 8));
        assert_eq!(request.repeats(&made.rings), Some(11));
        assert_eq!(made.rings.request(false, (7, 8)).repeats(&made.rings), None);
    }

    #[test]
    fn the_stream_goes_round_the_end_of_the_buffer() {
        let made = Made::new();
        let ring = &made.rings.rings[0];
        let all: Vec<u64> = (0..500).collect();
        made.write(&all);
        ring.consume(4000, 4000);
        made.write(&[500, 501, 502, 503, 504, 505, 506, 507, 508, 509, 510, 511, 512, 513]);
        let first = ring.words(4000, ring.head());
        assert_eq!((first.len(), first.first(), first.last()), (12, Some(&500), Some(&511)));
        assert_eq!(ring.words(4096, ring.head()), [512, 513]);
    }

    #[test]
    fn a_head_or_tail_that_the_kernel_cannot_have_written_reads_as_nothing() {
        let set = |made: &Made, place: usize, value: u64| {
            // SAFETY: a word of the first page.
            unsafe { made.base.add(place).cast::<u64>().write(value) };
        };
        for (head, tail) in
            [(u64::MAX, 0), (1 << 62, 0), (64, 65), (64, 3), (64, 128), (0, 8), (PAGE as u64 + 8, 0)]
        {
            let made = Made::new();
            made.record(RECORD_SAMPLE, &[1, 2]);
            set(&made, HEAD, head);
            set(&made, TAIL, tail);
            let request = made.rings.request(false, (7, 8));
            assert_eq!((request.events, request.is_empty()), (0, true), "{head} {tail}");
            let ring = &made.rings.rings[0];
            assert_eq!((ring.tail(), ring.head() % 8), (ring.head(), 0), "{head} {tail}");
        }
        let made = Made::new();
        // A size that would leave the words' places.
        made.write(&[u64::from(RECORD_SAMPLE) | 9 << 48, 0, 0, 0]);
        assert_eq!(made.rings.request(false, (7, 8)).events, 0);
        assert_eq!(made.rings.rings[0].words(3, 32).as_ptr().align_offset(8), 0);
    }

    #[test]
    fn weights_are_what_the_clock_says() {
        let made = Made::new();
        let rings = &made.rings;
        assert_eq!(rings.period_ns(), 0);
        rings.count_time(10_000, 1000, true);
        assert_eq!((rings.period_ns(), rings.user_only.load(Ordering::Relaxed)), (1000, true));
        assert_eq!([10_000, 10_999, 11_000, 13_400, 0].map(|ns| rings.due(ns, 1000)), [0, 0, 1, 3, 0]);
        rings.count(4, 1000);
        assert_eq!([13_400, 14_999, 15_000].map(|ns| rings.take_due(ns, 1000)), [0, 0, 1]);
        assert_eq!(rings.due(15_999, 1000), 0);
        rings.forget();
        assert_eq!(rings.period_ns(), 0);
    }

    #[test]
    fn garbage_in_the_ring_ends_the_count() {
        let made = Made::new();
        made.write(&[0; 64]);
        assert_eq!(made.rings.request(false, (7, 8)).events, 0);
        made.rings.forget();
        assert!(made.rings.request(false, (7, 8)).is_empty());
    }
}
