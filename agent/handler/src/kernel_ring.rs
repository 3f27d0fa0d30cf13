//! The perf rings by which the kernel requests stacks from a thread.
//!
//! Each perf event of a thread has one ring, consumed by that thread only: the handler reads how far the kernel has
//! written when it starts, copies that part into the pool, and releases the space. A ring has no descriptor: its
//! mapping keeps the event alive, so that a program which closes all descriptors neither sees nor ends it.

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use platform::bounds::Bounds;
use platform::sys;
use shm_format::answer_nonce;

/// Maximum number of rings of a thread: one per event of the session.
pub const RINGS: usize = 16;
/// Size of the control page before the ring's data (perf_event_open(2), "MMAP layout").
pub const PAGE: usize = sys::PAGE as usize;

/// Offsets of `data_head` and `data_tail` in that page.
const HEAD: usize = 1024;
const TAIL: usize = 1032;
/// Alignment of records in the ring.
const WORD: u64 = 8;
/// PERF_RECORD_LOST: id, then the number of records lost.
const RECORD_LOST: u32 = 2;
/// PERF_RECORD_SAMPLE.
const RECORD_SAMPLE: u32 = 9;
/// Kernel time not yet accounted for that no longer waits for the thread to return from a system call: one tick at the
/// HZ of most kernels.
const OVERDUE_NS: u64 = 4_000_000;

/// One ring; not attached to a mapping at first.
#[derive(Debug, Default)]
#[repr(C)]
pub struct KernelRing {
    control: AtomicPtr<u8>,
    bytes: AtomicU32,
    id: AtomicU32,
    /// The head at the last answer: everything below it was answered, or caused by handlers.
    answered: AtomicU64,
}

/// The rings of a thread, the last stack that answered them, and the accounting of CPU time.
#[derive(Debug, Default)]
#[repr(C)]
pub struct KernelRings {
    /// Nanoseconds of CPU time per unit of weight; 0 if weights count events.
    period_ns: AtomicU64,
    /// CPU time of the thread that its samples account for so far.
    counted_ns: AtomicU64,
    rings: [KernelRing; RINGS],
    nonce: AtomicU64,
    ip: AtomicU64,
    sp: AtomicU64,
    /// Whether the perf events cover user mode only.
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

    /// Attaches a ring with `bytes` bytes of data, a power of two, after the page at `control`.
    ///
    /// # Safety
    /// The mapping must be a ring of perf_event_open(2), readable and writable, and stay until [`KernelRing::detach`].
    pub unsafe fn attach(&self, control: *mut u8, bytes: u32, id: u32) {
        self.bytes.store(bytes, Ordering::Relaxed);
        self.id.store(id, Ordering::Relaxed);
        self.answered.store(0, Ordering::Relaxed);
        // Last: a handler that sees the mapping also sees the rest, because it runs on this thread or after its event
        // was enabled.
        self.control.store(control, Ordering::Release);
    }

    /// Detaches the ring. Returns its mapping and total size, if there was one.
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

    /// Size of its data in bytes.
    fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed) as usize
    }

    fn control(&self) -> Option<*mut u8> {
        let control = self.control.load(Ordering::Acquire);
        (!control.is_null()).then_some(control)
    }

    fn word_at(&self, offset: usize) -> Option<&AtomicU64> {
        // SAFETY: an attached ring's first page is mapped, and the kernel's words in it are aligned.
        self.control().map(|control| unsafe { &*control.add(offset).cast::<AtomicU64>() })
    }

    /// How far the kernel has written; a multiple of eight.
    pub fn head(&self) -> u64 {
        // Acquire: pairs with the kernel's barrier before it stores the head (kernel/events/ring_buffer.c).
        self.word_at(HEAD).map_or(0, |head| head.load(Ordering::Acquire)) & !(WORD - 1)
    }

    /// How far it has been consumed; a multiple of eight, at most the ring's size below the head. The program can write
    /// to the page: an invalid value means that everything is consumed.
    pub fn tail(&self) -> u64 {
        let tail = self.word_at(TAIL).map_or(0, |tail| tail.load(Ordering::Relaxed));
        let head = self.head();
        let whole = self.bytes() as u64;
        if tail.is_multiple_of(WORD) && head.wrapping_sub(tail) <= whole { tail } else { head }
    }

    /// Releases the space below `tail` to the kernel. `answered` is the head at the end of the handler.
    pub fn consume(&self, tail: u64, answered: u64) {
        self.answered.store(answered, Ordering::Relaxed);
        if let Some(word) = self.word_at(TAIL) {
            // Release: after the reads of the data.
            word.store(tail, Ordering::Release);
        }
    }

    /// The words of the stream from `from` up to `to` or the end of the buffer; call again for the rest. Only valid
    /// between tail and head.
    pub fn words(&self, from: u64, to: u64) -> &[u64] {
        let bytes = self.bytes();
        let Some(control) = self.control() else { return &[] };
        let offset = from as usize & bytes.wrapping_sub(1) & !(WORD as usize - 1);
        let len = (to.saturating_sub(from)).min(bytes.saturating_sub(offset) as u64) as usize;
        // SAFETY: inside the data of the attached ring, which is page-aligned, at a multiple of eight. The kernel does
        // not write there until the tail has passed.
        unsafe { core::slice::from_raw_parts(control.add(PAGE + offset).cast::<u64>(), len / 8) }
    }

    fn word(&self, at: u64) -> Option<u64> {
        self.words(at, at.wrapping_add(8)).first().copied()
    }

    /// Type and size of the record at `at`; `None` if the kernel cannot have written it.
    fn record(&self, at: u64) -> Option<(u32, u64)> {
        // type:32, misc:16, size:16.
        let word = self.word(at)?;
        let size = word >> 48;
        (size >= WORD && size.is_multiple_of(WORD)).then_some((word as u32, size))
    }

    /// Whether the kernel has written anything since the last answer.
    fn has_unanswered(&self) -> bool {
        self.head() > self.answered.load(Ordering::Relaxed).max(self.tail())
    }

    /// Number of unanswered events between tail and `head`: records, and those that the kernel had no space for.
    fn events(&self, head: u64) -> u32 {
        let answered = self.answered.load(Ordering::Relaxed);
        let (mut at, mut events) = (self.tail(), 0u32);
        while at < head {
            let Some((kind, size)) = self.record(at) else { break };
            match kind {
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

    /// Where the unanswered events between tail and `head` happened.
    pub(crate) fn places(&self, head: u64) -> impl Iterator<Item = EventPlace> {
        let mut at = self.tail().max(self.answered.load(Ordering::Relaxed));
        core::iter::from_fn(move || self.next_place(&mut at, head))
    }

    /// Where the first event from `at` on happened; moves `at` behind it.
    #[inline(never)]
    fn next_place(&self, at: &mut u64, head: u64) -> Option<EventPlace> {
        while *at < head {
            let offset = *at;
            let (kind, size) = self.record(offset)?;
            *at = offset.wrapping_add(size);
            let word = |number: u64| self.word(offset.wrapping_add(number.wrapping_mul(WORD)));
            if kind != RECORD_SAMPLE || size < 4 * WORD {
                continue;
            }
            // Header, ip, time, length of the call chain, call chain, ABI of the registers (0: none), sp, ip.
            let registers = word(3)?.saturating_add(4);
            if registers <= (size / WORD).saturating_sub(3) && word(registers)? != 0 {
                return Some(EventPlace { offset, sp: word(registers + 1)?, ip: word(registers + 2)? });
            }
        }
        None
    }
}

/// Where an event happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventPlace {
    /// Of its record in the ring's stream.
    pub(crate) offset: u64,
    /// The program counter and the stack pointer in user mode.
    pub(crate) ip: u64,
    pub(crate) sp: u64,
}

impl KernelRings {
    /// Without rings.
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

    /// All rings, attached or not.
    pub fn all(&self) -> &[KernelRing; RINGS] {
        &self.rings
    }

    /// The attached ones, which come first. Stops at the first that is not, to keep handlers short.
    pub(crate) fn attached(&self) -> impl Iterator<Item = &KernelRing> {
        self.rings.iter().take_while(|ring| ring.is_attached())
    }

    /// Whether any is attached.
    pub fn are_attached(&self) -> bool {
        self.attached().next().is_some()
    }

    /// Whether the kernel has written anything since the last answer.
    pub(crate) fn have_unanswered(&self) -> bool {
        self.attached().any(KernelRing::has_unanswered)
    }

    /// Makes weights count periods of CPU time, from `from_ns` of the thread's CPU clock on. Called by the thread
    /// itself with signals blocked, or before its first sample.
    pub fn count_time(&self, from_ns: u64, period_ns: u64, user_only: bool) {
        self.counted_ns.store(from_ns, Ordering::Relaxed);
        self.user_only.store(user_only, Ordering::Relaxed);
        self.period_ns.store(period_ns, Ordering::Relaxed);
    }

    /// Nanoseconds of CPU time per unit of weight while there are rings; 0 if weights count events.
    pub(crate) fn period_ns(&self) -> u64 {
        if self.are_attached() { self.period_ns.load(Ordering::Relaxed) } else { 0 }
    }

    /// Nanoseconds of CPU time per unit of weight; 0 if weights count events, or if the thread's time was not accounted
    /// for from its start.
    pub(crate) fn counted_period_ns(&self) -> u64 {
        self.period_ns.load(Ordering::Relaxed)
    }

    /// CPU time of the thread in nanoseconds that its samples account for so far.
    pub(crate) fn counted_ns(&self) -> u64 {
        self.counted_ns.load(Ordering::Relaxed)
    }

    /// The number of periods that a sample stands for at `cpu_ns` of the thread's CPU clock; accounts for them.
    pub(crate) fn weigh(&self, cpu_ns: u64, period_ns: u64, cause: Cause) -> u32 {
        let due = self.due(cpu_ns, period_ns);
        let left_ns = u64::from(due) * period_ns;
        let weight = match cause {
            // Events in user mode have the right number. The remaining time was spent in the kernel and waits for its
            // timer, unless that fails to come.
            Cause::Events(events) if self.user_only.load(Ordering::Relaxed) && left_ns < 4 * OVERDUE_NS => {
                events.max(1)
            }
            Cause::Events(events) => events.max(due),
            // This timer is for kernel time, which belongs to a sample in a system call; when overdue, to any sample.
            Cause::TimerInCall => due,
            Cause::Timer if left_ns >= OVERDUE_NS => due,
            Cause::Timer => 0,
        };
        self.count(weight, period_ns);
        weight
    }

    /// The full periods not accounted for at `cpu_ns` of the thread's CPU clock.
    fn due(&self, cpu_ns: u64, period_ns: u64) -> u32 {
        // Samples may account for a part of a period that has not passed yet.
        let passed = cpu_ns.wrapping_sub(self.counted_ns.load(Ordering::Relaxed)).cast_signed();
        let periods = u64::try_from(passed).map_or(0, |ns| ns / period_ns.max(1));
        periods.min(u32::MAX.into()) as u32
    }

    /// The full periods not accounted for; accounts for them.
    pub(crate) fn take_due(&self, cpu_ns: u64, period_ns: u64) -> u32 {
        let due = self.due(cpu_ns, period_ns);
        self.count(due, period_ns);
        due
    }

    /// Accounts for periods that a sample stands for.
    pub(crate) fn count(&self, periods: u32, period_ns: u64) {
        let counted = self.counted_ns.load(Ordering::Relaxed);
        self.counted_ns
            .store(counted.wrapping_add(u64::from(periods).wrapping_mul(period_ns)), Ordering::Relaxed);
    }

    /// Forgets the rings, which a forked child does not inherit.
    pub fn forget(&self) {
        for ring in &self.rings {
            ring.detach();
        }
        self.count_time(0, 0, false);
        self.note_answer(0, (0, 0));
    }

    /// Ends the thread's events, by one system call each; the last one first, since handlers search from the first.
    pub fn close(&self) {
        for ring in self.rings.iter().rev() {
            if let Some((control, bytes)) = ring.detach() {
                // SAFETY: the ring's mapping, which nobody uses any more. Unmapping it ends the event.
                unsafe { sys::call(libc::SYS_munmap, [control as usize, bytes, 0, 0, 0, 0]) };
            }
        }
    }

    /// Makes events in user mode stand for kernel time, too, because nothing else accounts for it.
    pub fn weigh_all(&self) {
        self.user_only.store(false, Ordering::Relaxed);
    }

    /// Reads what the kernel requests from the thread, which was interrupted at this program counter and stack pointer, and has
    /// this alternate signal stack. Must run as soon as the handler knows that the rings are this thread's.
    pub fn request(&self, blocked: bool, at: (u64, u64), alternate_stack: Bounds) -> Request {
        let heads = [0; RINGS];
        let mut request = Request { heads, nonce: 0, events: 0, blocked, at, alternate_stack };
        for (ring, known) in self.attached().zip(&mut request.heads) {
            let head = ring.head();
            *known = head;
            if head == ring.tail() {
                continue;
            }
            if request.nonce == 0 {
                request.nonce = answer_nonce(ring.id(), head);
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

/// What a thread with perf events is sampled for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// This many events.
    Events(u32),
    /// The timer for kernel time, when the thread has just returned from a system call.
    TimerInCall,
    /// That timer, at another place.
    Timer,
}

/// A request of the kernel: everything that it has recorded for a thread when the handler starts.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The head of each ring.
    pub heads: [u64; RINGS],
    /// Nonce of the stack that will answer.
    pub nonce: u64,
    /// Number of events that it answers.
    pub events: u32,
    /// The signal was blocked when the kernel made the request.
    pub blocked: bool,
    /// The interrupted program counter and stack pointer.
    pub at: (u64, u64),
    /// The thread's alternate signal stack.
    pub alternate_stack: Bounds,
}

impl Request {
    /// Whether nothing has been recorded since the last answer.
    pub fn is_empty(&self) -> bool {
        self.nonce == 0
    }

    /// The nonce of the last answer, if the thread is still at the same place and has been in the handler ever since:
    /// then the handler itself caused the events.
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

    /// A ring with one page of data, filled as the kernel would.
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
                let offset = (head as usize + offset * 8) & (PAGE - 1);
                // SAFETY: inside the second page.
                unsafe { self.base.add(PAGE + offset).cast::<u64>().write(*word) };
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
        assert!(made.rings.request(false, (7, 8), Bounds::NONE).is_empty());
        made.record(RECORD_SAMPLE, &[1, 2]);
        made.record(RECORD_LOST, &[0, 5]);
        made.record(14, &[9]);
        assert!(made.rings.have_unanswered());
        let request = made.rings.request(false, (7, 8), Bounds::NONE);
        assert_eq!((request.events, request.heads[0], request.nonce), (6, 64, 3 << 40 | 64));
        // Another event during the handler is caused by the handler itself.
        made.record(RECORD_SAMPLE, &[1, 2]);
        made.rings.rings[0].consume(request.heads[0], made.rings.rings[0].head());
        assert!(!made.rings.have_unanswered());
        let request = made.rings.request(true, (7, 8), Bounds::NONE);
        assert_eq!((request.events, request.is_empty()), (0, false));
        assert_eq!(request.repeats(&made.rings), None);
        made.rings.note_answer(11, (7, 8));
        assert_eq!(request.repeats(&made.rings), Some(11));
        assert_eq!(made.rings.request(false, (7, 8), Bounds::NONE).repeats(&made.rings), None);
    }

    #[test]
    fn events_have_places() {
        let made = Made::new();
        // Two kernel frames; no registers; a call chain that is longer than the record.
        made.record(RECORD_SAMPLE, &[1, 2, 2, 0xf00, 0xf01, 2, 80, 40]);
        made.record(RECORD_SAMPLE, &[1, 2, 1, 0xf00, 0]);
        made.record(RECORD_LOST, &[0, 5]);
        made.record(RECORD_SAMPLE, &[1, 2, u64::MAX, 2, 80, 40]);
        made.record(RECORD_SAMPLE, &[1]);
        made.record(RECORD_SAMPLE, &[1, 2, 0, 2, 88, 48]);
        let ring = &made.rings.rings[0];
        let places = || ring.places(ring.head()).collect::<Vec<_>>();
        let last = EventPlace { offset: ring.head() - 56, ip: 48, sp: 88 };
        assert_eq!(places(), [EventPlace { offset: 0, ip: 40, sp: 80 }, last]);
        // What was answered is not told again.
        ring.consume(0, 72);
        assert_eq!(places(), [last]);
        made.write(&[0; 4]);
        assert_eq!(places(), [last]);
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
        let set = |made: &Made, offset: usize, value: u64| {
            // SAFETY: a word of the first page.
            unsafe { made.base.add(offset).cast::<u64>().write(value) };
        };
        for (head, tail) in
            [(u64::MAX, 0), (1 << 62, 0), (64, 65), (64, 3), (64, 128), (0, 8), (PAGE as u64 + 8, 0)]
        {
            let made = Made::new();
            made.record(RECORD_SAMPLE, &[1, 2]);
            set(&made, HEAD, head);
            set(&made, TAIL, tail);
            let request = made.rings.request(false, (7, 8), Bounds::NONE);
            assert_eq!((request.events, request.is_empty()), (0, true), "{head} {tail}");
            let ring = &made.rings.rings[0];
            assert_eq!((ring.tail(), ring.head() % 8), (ring.head(), 0), "{head} {tail}");
        }
        let made = Made::new();
        // A size that would break the alignment.
        made.write(&[u64::from(RECORD_SAMPLE) | 9 << 48, 0, 0, 0]);
        assert_eq!(made.rings.request(false, (7, 8), Bounds::NONE).events, 0);
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
        assert_eq!(made.rings.request(false, (7, 8), Bounds::NONE).events, 0);
        made.rings.forget();
        assert!(made.rings.request(false, (7, 8), Bounds::NONE).is_empty());
    }
}
