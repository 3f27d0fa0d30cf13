//! Interpreted frames in a profile: finds function and line of each, and hides the interpreter's own frames.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use unwind::Interpreted as Frame;

use super::bucket::StackFrame;
use super::code::{Binary, FunctionId, SourceLine};
use super::contents::Profile;
use super::reshape;
use super::stacks::Counts;
use super::timeline::TimedSample;
use crate::interpreted::{InterpretedView, gap, is_internal};
use crate::profile_file::InterpretedFunction;
use crate::symbolize::Origin;

/// Number of bits for the line in the substitute address of an interpreted frame.
const LINE_BITS: u32 = 32;
/// Flag of a substitute address: a marker frame, with its reason in the other bits.
const MARK: u64 = 1 << 63;

/// The interpreted functions, each once for all processes that have it.
#[derive(Debug, Default)]
pub(super) struct InterpretedFunctions {
    /// By process index and number in the process.
    numbers: HashMap<(u32, u32), u32>,
    /// Indexes of processes that have some.
    processes: BTreeSet<u32>,
    /// By the function itself, without process and number.
    known: HashMap<InterpretedFunction, u32>,
    /// Each with the pseudo-binary for its file.
    functions: Vec<(InterpretedFunction, u32)>,
    files: HashMap<(PathBuf, String), u32>,
}

/// What is shown for a line of a function.
pub(super) struct Shown<'a> {
    pub(super) name: String,
    pub(super) file: Option<&'a str>,
    pub(super) line: u32,
}

impl InterpretedFunctions {
    /// Adds a function of a process.
    pub(super) fn learn(&mut self, profile: &mut Profile, process: u32, function: InterpretedFunction) {
        let number = function.id;
        let function = InterpretedFunction { process: 0, id: 0, ..function };
        let next = self.functions.len() as u32;
        let index = *self.known.entry(function.clone()).or_insert(next);
        if index == next {
            let key = (PathBuf::from(&function.file), function.mark());
            let stand_in = |(path, mark): &(PathBuf, String)| stand_in(profile, path, mark);
            let file = *self.files.entry(key).or_insert_with_key(stand_in);
            self.functions.push((function, file));
        }
        self.numbers.insert((process, number), index);
        self.processes.insert(process);
    }

    /// True if a process has its own function numbers.
    pub(super) fn is_of(&self, process: u32) -> bool {
        self.processes.contains(&process)
    }

    /// The pseudo-binary and substitute address of a frame.
    pub(super) fn locate(&self, process: u32, frame: Frame) -> (Option<u32>, u64) {
        if frame.function == Frame::NOTHING {
            return (None, MARK | u64::from(frame.offset));
        }
        let Some(&index) = self.numbers.get(&(process, frame.function)) else { return (None, MARK) };
        let Some((function, file)) = self.functions.get(index as usize) else { return (None, MARK) };
        (Some(*file), u64::from(index) << LINE_BITS | u64::from(function.line_of(frame.offset)))
    }

    /// What to show for a result of [`locate`](Self::locate); `None` if it is not an interpreted frame.
    pub(super) fn find(&self, binary: Option<u32>, address: u64, view: InterpretedView) -> Option<Shown<'_>> {
        if binary.is_none() && address & MARK != 0 && address < crate::profile_file::WALL_MARKS {
            return Some(Shown { name: gap(address as u32).into(), file: None, line: 0 });
        }
        let (function, file) = self.functions.get((address >> LINE_BITS) as usize)?;
        let line = address as u32;
        (Some(*file) == binary).then(|| Shown {
            name: function.shown(if view.lines { line } else { function.first_line }),
            file: Some(&function.file),
            line,
        })
    }
}

fn stand_in(profile: &mut Profile, path: &Path, mark: &str) -> u32 {
    // Not an ELF file: its names are in the profile, and its addresses have no meaning elsewhere.
    let origin = Some(Origin::PerfMap);
    let binary = profile.binaries.len() as u32;
    profile.binaries.push(Binary {
        path: path.into(),
        build_id: Vec::new(),
        file: None,
        origin,
        read: false,
    });
    profile.interpreted_binaries.insert(binary, mark.to_owned());
    binary
}

/// Removes the interpreter's own frames from stacks in which it runs a program, and merges stacks that become equal.
pub(super) fn fold(profile: &mut Profile, counts: &mut Counts, timed_samples: &mut Option<Vec<TimedSample>>) {
    if profile.interpreted_binaries.is_empty() {
        return;
    }
    fold_inlined(profile);
    let kinds: Vec<Kind> =
        (0..profile.locations.len() as u32).map(|location| kind(profile, location)).collect();
    reshape::reshape(profile, counts, timed_samples, |frames| shown(&frames, &kinds));
}

/// The kind of a location, for hiding an interpreter's own frames.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// An interpreted frame.
    Interpreted,
    /// A function of the interpreter that only calls the next interpreted function.
    Internal,
    /// Code of the interpreter without a name.
    Unnamed,
    Other,
}

fn kind(profile: &Profile, location: u32) -> Kind {
    let Some(binary) = profile.locations[location as usize].binary else { return Kind::Other };
    if profile.interpreted_binaries.contains_key(&binary) {
        return Kind::Interpreted;
    }
    let path = &profile.binaries[binary as usize].path;
    // The last one is the function itself; those before it are inlined into it.
    let Some(line) = profile.lines_of(location).last() else { return Kind::Other };
    let name = profile.names.get(line.linkage);
    if !crate::interpreted::is_interpreter(path) {
        Kind::Other
    } else if is_internal(path, name) {
        Kind::Internal
    } else if name.contains("+0x") {
        Kind::Unnamed
    } else {
        Kind::Other
    }
}

/// Removes the interpreter's internal functions among inlined ones.
fn fold_inlined(profile: &mut Profile) {
    for at in 0..profile.locations.len() as u32 {
        let Some(binary) = profile.locations[at as usize].binary else { continue };
        let path = &profile.binaries[binary as usize].path;
        let lines = profile.lines_of(at);
        let is_shown =
            |line: &&SourceLine| !line.inlined || !is_internal(path, profile.names.get(line.linkage));
        let shown: Vec<SourceLine> = lines.iter().filter(is_shown).copied().collect();
        if !shown.is_empty() && shown.len() < lines.len() {
            let first = profile.lines.len() as u32;
            profile.lines.extend(shown);
            profile.locations[at as usize].lines = first..profile.lines.len() as u32;
        }
    }
}

/// The frames of a stack to show, root first. All are shown before the first interpreted one; after it, internal frames are hidden,
/// and between two interpreted ones also unnamed frames.
fn shown(frames: &[StackFrame], kinds: &[Kind]) -> Vec<StackFrame> {
    let kind = |frame: &StackFrame| kinds[frame.location as usize];
    let Some(first) = frames.iter().position(|frame| kind(frame) == Kind::Interpreted) else {
        return frames.to_vec();
    };
    let last = frames.iter().rposition(|frame| kind(frame) == Kind::Interpreted).unwrap_or(first);
    // The call of the evaluation loop for the first interpreted frame.
    let first =
        frames[..first].iter().rposition(|frame| kind(frame) != Kind::Internal).map_or(0, |at| at + 1);
    let hides = |at: usize, frame: &StackFrame| match kind(frame) {
        Kind::Internal => at >= first,
        Kind::Unnamed => at > first && at < last,
        Kind::Interpreted | Kind::Other => false,
    };
    frames.iter().enumerate().filter(|&(at, frame)| !hides(at, frame)).map(|(_, frame)| *frame).collect()
}

impl Profile {
    /// True for an interpreted function.
    pub fn is_interpreted(&self, function: FunctionId) -> bool {
        self.interpreted_mark(function).is_some()
    }

    /// The mark of an interpreted function in folded stacks; `None` for any other.
    pub(crate) fn interpreted_mark(&self, function: FunctionId) -> Option<&str> {
        let binary = self.functions[function.0 as usize].binary?;
        self.interpreted_binaries.get(&binary).map(String::as_str)
    }
}
