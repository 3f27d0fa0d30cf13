//! Compares the unwinder's result with the shadow stack after every instruction, frame by frame to the root.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io;

use nix::unistd::Pid;
use unwind::{End, FoundBy, Frame};

use super::image::Images;
use super::shadow::{Entry, Kind};
use super::stepper::{Landing, Moment, Observer, describes_its_landing};
use super::tracee::Tracee;
use super::walker::Walker;

/// Functions of the exception unwinder that replace a return address below the frame they return through.
const REWRITERS: [&str; 4] =
    ["_Unwind_RaiseException", "_Unwind_Resume", "_Unwind_ForcedUnwind", "_Unwind_Resume_or_Rethrow"];

/// Functions that these call meanwhile, which the shared library does not export.
const INSTALLERS: [&str; 2] = ["uw_install_context_1", "_Unwind_DebugHook"];

/// A place where the file's own call frame information is wrong: no unwinder can do better.
#[derive(Clone, Copy, Debug)]
pub struct Hole {
    /// Prefix of the file's name.
    pub file: &'static str,
    /// Function.
    pub function: &'static str,
    /// First bytes of the instructions it is about; empty: all of the function.
    pub code: &'static [&'static [u8]],
    /// What the file claims, and what is true.
    pub reason: &'static str,
}

/// One difference.
#[derive(Clone, Debug)]
pub struct Mismatch {
    /// The instruction at which it was found.
    pub pc: u64,
    /// File and function the instruction is in.
    pub function: String,
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
    /// Stacks that differ from the shadow stack, by location.
    pub mismatches: BTreeMap<u64, Mismatch>,
    /// Stacks that were wrong at known holes, by function.
    pub holes: BTreeMap<&'static str, u64>,
    /// Stacks through code without any call frame information, where the unwinder guessed wrong and said so, or gave
    /// up; by function.
    pub undescribed: BTreeMap<String, u64>,
    /// Stacks of handlers whose signal interrupted such code. One signal gives as many as its handler has instructions,
    /// so they say nothing about how much code lacks information.
    pub handling: u64,
    /// Stacks that already describe the target of a jump in progress, by function.
    pub landings: BTreeMap<String, u64>,
    /// Stacks with a return address that the exception unwinder had rewritten.
    pub rewritten: u64,
    /// Stacks taken while the exception unwinder replaced its own frame's saved registers by those of the landing pad:
    /// nothing beyond can be found meanwhile.
    pub installing: u64,
}

impl Verdict {
    /// All mismatches counted.
    pub fn wrong(&self) -> u64 {
        self.mismatches.values().map(|m| m.count).sum()
    }

    /// The mismatches by function, each with its first place in full, for a failure message.
    pub fn report(&self, functions: usize) -> String {
        let mut by_function: BTreeMap<&str, (u64, BTreeMap<u64, &Mismatch>)> = BTreeMap::new();
        for mismatch in self.mismatches.values() {
            let entry = by_function.entry(&mismatch.function).or_default();
            entry.0 += mismatch.count;
            entry.1.insert(mismatch.pc, mismatch);
        }
        let mut text = String::new();
        for (function, (count, by_pc)) in by_function.into_iter().take(functions) {
            let _ = writeln!(text, "{function}: {count} wrong at {} instructions", by_pc.len());
            if let Some(first) = by_pc.values().next() {
                let _ = writeln!(text, "{}", first.text);
            }
        }
        text
    }
}

/// Upper bound of instructions from the start of the installation of registers to the landing.
const INSTALLATION: u64 = 1000;

/// A stack that does not agree yet: it may describe the target of the jump that its function prepares.
struct Undecided {
    /// [`Verdict::compared`] when it was taken.
    at: u64,
    /// Taken in the exception unwinder.
    installing: bool,
    pc: u64,
    function: String,
    found: Vec<Frame>,
    end: End,
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
        Self { walker, holes, found: Vec::new(), undecided: HashMap::new(), verdict: Verdict::default() }
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
        let entry = self.verdict.mismatches.entry(pc).or_insert_with(|| {
            let function = function_of(&text).to_string();
            Mismatch { pc, function, count: 0, text }
        });
        entry.count += 1;
    }

    /// How many frames agree, counted from the leaf, and whether the whole stack does: every frame, no frame more, and
    /// the end. Rewritten return addresses are permitted while the exception unwinder runs.
    fn agreement(&mut self, moment: &Moment<'_>, end: End) -> (usize, bool) {
        let mut rewritten = false;
        let leaf = Entry { slot: 0, address: moment.registers.rip, kind: Kind::Interrupted };
        let mut expected = std::iter::once(leaf).chain(moment.shadow.entries());
        for (depth, frame) in self.found.iter().enumerate() {
            let Some(entry) = expected.next() else { return (depth, false) };
            let same = frame.address() == entry.address;
            let in_memory = || moment.tracee.word(entry.slot) == Some(frame.address());
            if frame.is_exact() != entry.is_exact() || !(same || is_in(moment, &REWRITERS) && in_memory()) {
                return (depth, false);
            }
            rewritten |= !same;
        }
        self.verdict.rewritten += u64::from(rewritten);
        (self.found.len(), expected.next().is_none() && end.is_complete())
    }

    /// The known hole among the first `depth` frames, which agree: it explains the difference behind them.
    fn hole(&self, moment: &Moment<'_>, depth: usize) -> Option<&'h Hole> {
        self.found[..depth].iter().find_map(|frame| {
            let pc = frame.address();
            let image = moment.images.at(pc)?;
            let (function, _) =
                image.function(if frame.is_exact() { pc } else { pc - 1 }).or_else(|| image.function(pc))?;
            let mut bytes = [0; 8];
            let got = moment.tracee.read(pc, &mut bytes);
            let here = |code: &&[u8]| frame.is_exact() && bytes[..got].starts_with(code);
            let fits = |h: &&Hole| {
                h.function == function
                    && image.name().starts_with(h.file)
                    && (h.code.is_empty() || h.code.iter().any(here))
            };
            self.holes.iter().find(fits)
        })
    }

    /// Which of the first `depth` frames, which agree, is in code without call frame information, provided that the
    /// unwinder marked what it found there as a guess, or gave up.
    fn undescribed(&self, moment: &Moment<'_>, depth: usize, end: End) -> Option<usize> {
        (0..depth).find(|&at| {
            let frame = self.found[at];
            let image = moment.images.at(frame.address());
            let described = image.is_some_and(|image| image.describes(frame.lookup_address()));
            let marked = self.found.get(at + 1).is_some_and(|next| next.found_by() != FoundBy::Cfi);
            let gave_up = at + 1 == self.found.len() && !end.is_complete();
            !described && (marked || gave_up)
        })
    }

    /// Whether the exception unwinder runs: in one of its functions, or in a callee that has no name.
    fn is_installing(&self, moment: &Moment<'_>) -> bool {
        // In a handler, the interrupted code counts.
        let interrupted = moment.shadow.entries().position(|e| e.kind == Kind::Interrupted);
        let mut behind = moment.shadow.entries().skip(interrupted.unwrap_or(0));
        let here = match interrupted {
            Some(_) => behind.next().map_or(0, |e| e.address),
            None => moment.registers.rip,
        };
        let caller = behind.next().map(|e| e.address);
        let image = moment.images.at(here);
        let nameless = image.is_some_and(|i| i.function(here).is_none()) || is_at(moment, here, &INSTALLERS);
        is_at(moment, here, &REWRITERS) || nameless && caller.is_some_and(|c| is_at(moment, c, &REWRITERS))
    }

    /// Whether an undecided stack describes this landing: the place, and everything behind it.
    fn describes(&mut self, one: &Undecided, landing: &Moment<'_>) -> bool {
        let mut rest = one.found.iter().skip(1);
        let there = rest.next().is_some_and(|f| f.address() == landing.registers.rip);
        let entries = landing.shadow.entries().map(|e| (e.address, e.is_exact()));
        let same = there && entries.eq(rest.map(|f| (f.address(), f.is_exact())));
        self.found.clone_from(&one.found);
        same && (one.end.is_complete() || self.hole(landing, self.found.len()).is_some())
    }

    fn describe(&self, moment: &Moment<'_>, end: End) -> String {
        let images = moment.images;
        let mut text = format!("{}\n  expected:\n", images.describe(moment.registers.rip));
        for entry in moment.shadow.entries().take(24) {
            let mark = if entry.is_exact() { " (exact)" } else { "" };
            let _ = writeln!(text, "    {}{mark} in slot {:#x}", images.describe(entry.address), entry.slot);
        }
        let _ = writeln!(text, "  found, ending with {}:", end.name());
        for frame in self.found.iter().skip(1).take(24) {
            let mark = if frame.is_exact() { " (exact)" } else { "" };
            let _ =
                writeln!(text, "    {}{mark} by {:?}", images.describe(frame.address()), frame.found_by());
        }
        let r = moment.registers;
        let _ = write!(
            text,
            "  rax {:#x} rbx {:#x} rcx {:#x} rdx {:#x} rsi {:#x} rdi {:#x} rbp {:#x} rsp {:#x} r8 {:#x} r9 {:#x} r10 {:#x} \
             r11 {:#x} r12 {:#x} r13 {:#x} r14 {:#x} r15 {:#x}",
            r.rax,
            r.rbx,
            r.rcx,
            r.rdx,
            r.rsi,
            r.rdi,
            r.rbp,
            r.rsp,
            r.r8,
            r.r9,
            r.r10,
            r.r11,
            r.r12,
            r.r13,
            r.r14,
            r.r15
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
        let (depth, whole) = self.agreement(moment, end);
        if whole {
            return;
        }
        if let Some(hole) = self.hole(moment, depth) {
            *self.verdict.holes.entry(hole.function).or_default() += 1;
            return;
        }
        if let Some(at) = self.undescribed(moment, depth, end) {
            if at > 0 && self.found[at].is_exact() {
                self.verdict.handling += 1;
            } else {
                let description = moment.images.describe(self.found[at].address());
                *self.verdict.undescribed.entry(function_of(&description).to_string()).or_default() += 1;
            }
            return;
        }
        let pc = moment.registers.rip;
        let function = moment.images.at(pc).and_then(|i| i.function(pc)).map_or("", |(name, _)| name);
        let text = self.describe(moment, end);
        let installing = self.is_installing(moment);
        if describes_its_landing(function) || installing {
            let (at, found) = (self.verdict.compared, self.found.clone());
            let one = Undecided { at, installing, pc, function: function.to_string(), found, end, text };
            self.undecided.entry(moment.thread).or_default().push(one);
        } else {
            self.mismatch(pc, text);
        }
    }

    fn landed(&mut self, moment: &Moment<'_>, landing: Landing, origin: u64) {
        let Some(all) = self.undecided.remove(&moment.thread) else { return };
        let unwinder = is_at(moment, origin, &REWRITERS) && landing == Landing::Elsewhere;
        let mut waiting = Vec::new();
        for one in all {
            if one.installing {
                if unwinder {
                    self.verdict.installing += 1;
                } else if self.verdict.compared - one.at > INSTALLATION {
                    self.mismatch(one.pc, one.text);
                } else {
                    waiting.push(one);
                }
            } else if self.describes(&one, moment) {
                *self.verdict.landings.entry(one.function).or_default() += 1;
            } else {
                self.mismatch(one.pc, one.text);
            }
        }
        if !waiting.is_empty() {
            self.undecided.insert(moment.thread, waiting);
        }
    }
}

/// `file!function` of a text that begins `address file!function+offset`.
fn function_of(text: &str) -> &str {
    let symbol = text.split_whitespace().nth(1).unwrap_or("");
    if symbol.contains('!') { symbol.split('+').next().unwrap_or("") } else { symbol }
}

fn is_in(moment: &Moment<'_>, functions: &[&str]) -> bool {
    is_at(moment, moment.registers.rip, functions)
}

fn is_at(moment: &Moment<'_>, pc: u64, functions: &[&str]) -> bool {
    let function = moment.images.at(pc).and_then(|i| i.function(pc));
    function.is_some_and(|(name, _)| functions.contains(&name))
}
