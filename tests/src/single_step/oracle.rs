//! Compares what the unwinder finds with the shadow stack, at every moment, frame by frame to the root.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io;

use nix::unistd::Pid;
use unwind::{End, Frame};

use super::image::Images;
use super::stepper::{Moment, Observer, describes_its_landing};
use super::tracee::Tracee;
use super::walker::Walker;

/// Functions of the exception unwinder that replace a return address below the frame they return through.
const REWRITERS: [&str; 4] =
    ["_Unwind_RaiseException", "_Unwind_Resume", "_Unwind_ForcedUnwind", "_Unwind_Resume_or_Rethrow"];

/// A place whose call frame information is wrong in the file itself: no unwinder can know better.
#[derive(Clone, Copy, Debug)]
pub struct Hole {
    /// File name as mapped.
    pub file: &'static str,
    /// Function.
    pub function: &'static str,
    /// What the file says and what is true.
    pub reason: &'static str,
}

/// One difference.
#[derive(Clone, Debug)]
pub struct Mismatch {
    /// The instruction at which it was found.
    pub pc: u64,
    /// How often it was found there.
    pub count: u64,
    /// The instruction, both stacks and the registers, for people.
    pub text: String,
}

/// What the oracle found.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Stacks compared.
    pub compared: u64,
    /// Frames compared.
    pub frames: u64,
    /// Stacks that ended otherwise than the shadow, by place.
    pub mismatches: BTreeMap<u64, Mismatch>,
    /// Stacks that were wrong at named holes, by function.
    pub holes: BTreeMap<&'static str, u64>,
    /// Stacks that describe the landing of a jump in progress, by function.
    pub landings: BTreeMap<String, u64>,
    /// Stacks with a return address that the exception unwinder had rewritten.
    pub rewritten: u64,
}

impl Verdict {
    /// All mismatches counted.
    pub fn wrong(&self) -> u64 {
        self.mismatches.values().map(|m| m.count).sum()
    }

    /// The first mismatches, for a failure message.
    pub fn report(&self, places: usize) -> String {
        let mut text = String::new();
        for mismatch in self.mismatches.values().take(places) {
            let _ = writeln!(text, "{} times at {}", mismatch.count, mismatch.text);
        }
        text
    }
}

/// A stack that agrees with nothing so far: it may describe the landing of the jump its function prepares.
struct Undecided {
    pc: u64,
    function: String,
    found: Vec<Frame>,
    text: String,
}

/// Compares an unwinder with the shadow stack.
pub struct Oracle<'h> {
    walker: Walker,
    holes: &'h [Hole],
    found: Vec<Frame>,
    undecided: HashMap<Pid, Vec<Undecided>>,
    verdict: Verdict,
}

impl<'h> Oracle<'h> {
    /// An oracle for `walker` that knows these holes.
    pub fn new(walker: Walker, holes: &'h [Hole]) -> Self {
        Self {
            walker,
            holes,
            found: Vec::new(),
            undecided: HashMap::new(),
            verdict: Verdict::default(),
        }
    }

    /// The verdict; jumps that never landed count as mismatches.
    pub fn finish(mut self) -> Verdict {
        for (_, all) in std::mem::take(&mut self.undecided) {
            for one in all {
                self.mismatch(one.pc, one.text);
            }
        }
        self.verdict
    }

    fn mismatch(&mut self, pc: u64, text: String) {
        let entry = self.verdict.mismatches.entry(pc).or_insert(Mismatch { pc, count: 0, text });
        entry.count += 1;
    }

    /// True if `found` is the shadow stack seen from `moment`, rewritten return addresses allowed where the
    /// exception unwinder runs.
    fn agrees(&mut self, moment: &Moment<'_>, end: End) -> bool {
        let mut found = self.found.iter();
        let leaf = found.next().is_some_and(|f| f.is_exact() && f.address() == moment.registers.rip);
        if !leaf || !end.is_complete() {
            return false;
        }
        let mut rewritten = false;
        for entry in moment.shadow.entries() {
            let Some(frame) = found.next() else { return false };
            if frame.is_exact() != entry.exact {
                return false;
            }
            if frame.address() != entry.address {
                let in_memory = moment.tracee.word(entry.slot) == Some(frame.address());
                if !in_memory || !is_in(moment, &REWRITERS) {
                    return false;
                }
                rewritten = true;
            }
        }
        self.verdict.rewritten += u64::from(rewritten);
        found.next().is_none()
    }

    fn describe(&self, moment: &Moment<'_>, end: End) -> String {
        let images = moment.images;
        let mut text = format!("{}\n  expected:\n", images.describe(moment.registers.rip));
        for entry in moment.shadow.entries().take(24) {
            let mark = if entry.exact { " (interrupted)" } else { "" };
            let _ = writeln!(text, "    {}{mark} in slot {:#x}", images.describe(entry.address), entry.slot);
        }
        let _ = writeln!(text, "  found, ending with {}:", end.name());
        for frame in self.found.iter().skip(1).take(24) {
            let mark = if frame.is_exact() { " (interrupted)" } else { "" };
            let _ = writeln!(text, "    {}{mark} by {:?}", images.describe(frame.address()), frame.found_by());
        }
        let r = moment.registers;
        let _ = write!(
            text,
            "  rax {:#x} rbx {:#x} rcx {:#x} rdx {:#x} rsi {:#x} rdi {:#x} rbp {:#x} rsp {:#x} r8 {:#x} r9 {:#x} r10 {:#x} \
             r11 {:#x} r12 {:#x} r13 {:#x} r14 {:#x} r15 {:#x}",
            r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15
        );
        text
    }
}

impl Observer for Oracle<'_> {
    fn remapped(&mut self, tracee: &Tracee, images: &Images) -> io::Result<()> {
        self.walker.remap(tracee, images)
    }

    fn moment(&mut self, moment: &Moment<'_>) {
        let end = self.walker.walk(moment.tracee, moment.registers, &mut self.found);
        self.verdict.compared += 1;
        self.verdict.frames += self.found.len() as u64;
        if self.agrees(moment, end) {
            return;
        }
        let pc = moment.registers.rip;
        let place = moment.images.at(pc).and_then(|i| i.function(pc).map(|(name, _)| (i.name(), name)));
        let (file, function) = place.unwrap_or(("", ""));
        if let Some(hole) = self.holes.iter().find(|h| h.function == function && file.starts_with(h.file)) {
            *self.verdict.holes.entry(hole.function).or_default() += 1;
            return;
        }
        let text = self.describe(moment, end);
        if describes_its_landing(function) && end.is_complete() {
            let found = self.found.clone();
            let one = Undecided { pc, function: function.to_string(), found, text };
            self.undecided.entry(moment.thread).or_default().push(one);
        } else {
            self.mismatch(pc, text);
        }
    }

    fn landed(&mut self, moment: &Moment<'_>) {
        for one in self.undecided.remove(&moment.thread).unwrap_or_default() {
            let mut rest = one.found.iter().skip(1);
            let there = rest.next().is_some_and(|f| f.address() == moment.registers.rip);
            let entries = moment.shadow.entries().map(|e| (e.address, e.exact));
            if there && entries.eq(rest.map(|f| (f.address(), f.is_exact()))) {
                *self.verdict.landings.entry(one.function).or_default() += 1;
            } else {
                self.mismatch(one.pc, one.text);
            }
        }
    }
}

fn is_in(moment: &Moment<'_>, functions: &[&str]) -> bool {
    let pc = moment.registers.rip;
    let function = moment.images.at(pc).and_then(|i| i.function(pc));
    function.is_some_and(|(name, _)| functions.contains(&name))
}
