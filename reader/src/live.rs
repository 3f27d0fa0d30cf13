//! Names samples of running processes as they arrive, for `top` and `tail`.
//!
//! Only current mappings are known, without a history: good enough for a display, not for a profile. Addresses are named in
//! batches, which is much cheaper, and each only once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use selfwind_profile::events::{EventCount, Events};
use selfwind_profile::file_name::base_name;
use selfwind_profile::interpreted;
use selfwind_profile::mapped_memory::mark_name;
use selfwind_profile::measure::Measure;
use selfwind_profile::profile_file::{
    Event, InterpretedFunction, ModuleInfo, ProcessInfo, Sample, SamplePart, SessionInfo, WAKE_LATENCY,
    WAKE_LATENCY_NAME, WALL_MARKS,
};
use selfwind_profile::symbolize::{Request, SymbolSources, symbolize};
use selfwind_profile::tracepoint::Tracepoints;
use unwind::{FoundBy, Frame, Interpreted};

use crate::drain::namespaces::PID_HERE;
use crate::process_files;
use crate::record::kernel_symbols::KernelSymbols;

/// Maximum number of cached names; beyond it the cache is emptied.
const NAMES_KEPT: usize = 1 << 20;

/// The followed processes, and the names of their code.
#[derive(Default)]
pub(crate) struct Live {
    /// The definitions of their tracepoints.
    pub(crate) tracepoints: Tracepoints,
    processes: BTreeMap<u32, Image>,
    names: HashMap<(Arc<Binary>, u64), Vec<String>>,
    kernel: KernelSymbols,
    /// Names of the marker frames that wall-clock stacks have in place of kernel frames.
    marks: HashMap<u64, String>,
    /// The kernel and its modules, by name.
    kernel_binaries: BTreeMap<String, Arc<Binary>>,
}

/// A process image and its current mappings.
#[derive(Default)]
pub(crate) struct Image {
    /// The description by its agent.
    pub(crate) info: ProcessInfo,
    /// Its process id for this program.
    pid: u32,
    /// By first address.
    modules: BTreeMap<u64, Module>,
    threads: BTreeMap<u32, String>,
    /// Interpreted functions.
    functions: BTreeMap<u32, InterpretedFunction>,
}

struct Module {
    end: u64,
    bias: u64,
    binary: Arc<Binary>,
}

#[derive(Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Binary {
    path: PathBuf,
    build_id: Vec<u8>,
    in_kernel: bool,
    /// For a source file of an interpreted language: the mark of that language.
    interpreted: Option<String>,
    /// The process in which its functions are numbered.
    process: u32,
}

/// A frame with its binary.
#[derive(Clone)]
pub(crate) struct Located {
    binary: Option<Arc<Binary>>,
    /// The address in the binary's ELF file; without a binary, in the process.
    pub(crate) address: u64,
    /// How it was found.
    pub(crate) found_by: FoundBy,
}

/// A weight of a sample with its complete stack.
pub(crate) struct LiveSample {
    /// When it happened.
    pub(crate) ns: u64,
    /// Index of the event that it counts for.
    pub(crate) event: u8,
    /// Its weight.
    pub(crate) weight: u64,
    /// Leaf first: kernel frames, then those of the program.
    pub(crate) stack: Vec<Located>,
}

impl Located {
    /// True for a frame in the kernel.
    pub(crate) fn is_in_kernel(&self) -> bool {
        self.binary.as_ref().is_some_and(|binary| binary.in_kernel)
    }

    /// True for a frame of an interpreted function.
    pub(crate) fn is_interpreted(&self) -> bool {
        self.interpreted().is_some()
    }

    /// The mark of an interpreted function's language.
    fn interpreted(&self) -> Option<&str> {
        self.binary.as_ref()?.interpreted.as_deref()
    }

    /// Its mark in folded stacks.
    pub(crate) fn mark(&self) -> &str {
        match self.interpreted() {
            Some(mark) => mark,
            None if self.is_in_kernel() => "_[k]",
            None => "",
        }
    }

    /// The file name of its binary; empty outside all modules.
    pub(crate) fn module(&self) -> String {
        self.binary.as_ref().map(|binary| base_name(&binary.path)).unwrap_or_default()
    }
}

impl Image {
    /// A short name of the program.
    pub(crate) fn program(&self) -> String {
        base_name(&self.info.exe)
    }

    /// Samples per second of CPU time, if it is sampled by CPU time.
    pub(crate) fn hertz(&self) -> Option<u64> {
        let ProcessInfo { source, period_ns, .. } = &self.info;
        let events = Events::new(&SessionInfo::default(), [(source, *period_ns)].into_iter());
        let is_time = *period_ns > 0 && events.measures().iter().all(Measure::is_cpu_time);
        is_time.then(|| (1e9 / *period_ns as f64).round() as u64)
    }

    /// The name of a thread by its number in the process.
    pub(crate) fn thread(&self, seq: u32) -> &str {
        self.threads.get(&seq).map_or("", String::as_str)
    }
}

impl Live {
    /// Takes in an event other than a sample.
    pub(crate) fn learn(&mut self, event: Event) {
        match event {
            Event::Process(info) => {
                let image = self.image(info.id);
                (image.pid, image.info) = (info.pid, info);
            }
            Event::Setting(setting) if setting.key == PID_HERE => {
                self.image(setting.process).pid = setting.value.parse().unwrap_or(0);
            }
            Event::Module(module) => self.map(module),
            Event::Tracepoint(tracepoint) => self.tracepoints.learn(tracepoint),
            Event::Function(function) => {
                self.image(function.process).functions.insert(function.id, function);
            }
            // Earlier samples may still arrive, so a module is removed only when another is mapped in its place.
            Event::ModuleGone(_) => {}
            Event::Thread(thread) => {
                self.image(thread.process).threads.insert(thread.seq, thread.name);
            }
            Event::ThreadName(thread) => {
                self.image(thread.process).threads.insert(thread.seq, thread.name);
            }
            Event::ThreadEnd(thread) => {
                self.image(thread.process).threads.remove(&thread.seq);
            }
            Event::ProcessEnd(end) => {
                self.processes.remove(&end.process);
            }
            Event::KernelSymbol(symbol) if symbol.start >= WALL_MARKS => {
                self.marks.insert(symbol.start, symbol.name);
            }
            _ => {}
        }
    }

    /// The process with this number, if it is followed.
    pub(crate) fn process(&self, number: u32) -> Option<&Image> {
        self.processes.get(&number)
    }

    /// All followed processes.
    pub(crate) fn processes(&self) -> impl Iterator<Item = &Image> {
        self.processes.values()
    }

    fn image(&mut self, process: u32) -> &mut Image {
        self.processes.entry(process).or_default()
    }

    fn map(&mut self, module: ModuleInfo) {
        let ModuleInfo { start, end, bias, process, path, build_id, .. } = module;
        let image = self.image(process);
        let path = process_files::path_here(image.pid, &path);
        let binary = Arc::new(Binary { path, build_id, ..Binary::default() });
        let modules = &mut image.modules;
        modules.retain(|&other, module| module.end <= start || end <= other);
        modules.insert(start, Module { end, bias, binary });
    }

    /// Splits a sample: one part for each kernel event that its stack belongs to, or the sample itself.
    pub(crate) fn parts(&mut self, sample: &Sample) -> Vec<LiveSample> {
        let user = self.locate(sample);
        let part = |SamplePart { ns, weight, event, kernel }: SamplePart<'_>| LiveSample {
            ns,
            event,
            weight: weight.into(),
            stack: self.on_top(kernel, &user),
        };
        sample.parts().map(part).collect()
    }

    /// The weights of a sample for each of the `events`.
    pub(crate) fn counted(&mut self, sample: &Sample, events: &Events) -> Vec<LiveSample> {
        let user = self.locate(sample);
        let mut counted = Vec::new();
        events.counts(sample, |EventCount { ns, event, weight, kernel, .. }| {
            counted.push(LiveSample { ns, event, weight, stack: self.on_top(kernel, &user) });
        });
        counted
    }

    /// A stack of kernel frames on top of the program's frames.
    fn on_top(&mut self, kernel: &[u64], user: &[Located]) -> Vec<Located> {
        let kernel = kernel.iter().map(|&address| self.locate_in_kernel(address));
        kernel.collect::<Vec<_>>().into_iter().chain(user.iter().cloned()).collect()
    }

    /// Names a kernel address at once, because the symbols are loaded already.
    fn locate_in_kernel(&mut self, address: u64) -> Located {
        if address == WAKE_LATENCY || address >= WALL_MARKS {
            return Located { binary: None, address, found_by: FoundBy::Cfi };
        }
        let symbol = self.kernel.find(address);
        let module = symbol.as_ref().map_or("", |symbol| &symbol.module);
        let module = if module.is_empty() { "kernel" } else { module };
        let binary = match self.kernel_binaries.get(module) {
            Some(known) => known.clone(),
            None => {
                let path = PathBuf::from(format!("[{module}]"));
                let new = Arc::new(Binary { path, in_kernel: true, ..Binary::default() });
                self.kernel_binaries.insert(module.to_owned(), new.clone());
                new
            }
        };
        let name = symbol.map_or_else(|| "[unknown]".into(), |symbol| symbol.name);
        self.names.entry((binary.clone(), address)).or_insert_with(|| vec![name]);
        Located { binary: Some(binary), address, found_by: FoundBy::Cfi }
    }

    /// Names an interpreted frame at once, from what the agent reported.
    fn locate_interpreted(&mut self, process: u32, word: u64) -> Option<Located> {
        let Interpreted { function, offset } = Frame::from_bits(word).as_interpreted()?;
        let known = self.processes.get(&process).and_then(|image| image.functions.get(&function));
        let (path, name, mark) = match known {
            Some(known) => (PathBuf::from(&known.file), known.shown(known.first_line), known.mark()),
            None => {
                let reason = if function == Interpreted::NOTHING { offset } else { 0 };
                let mark = if interpreted::is_of_interpreter(reason) { "_[py]" } else { "" };
                (PathBuf::new(), interpreted::gap(reason).to_owned(), mark.to_owned())
            }
        };
        // Function numbers are per process. A function that is unknown now may be known at the next sample.
        let binary = Arc::new(Binary { path, interpreted: Some(mark), process, ..Binary::default() });
        self.names.insert((binary.clone(), word), vec![name]);
        Some(Located { binary: Some(binary), address: word, found_by: FoundBy::Region })
    }

    /// The frames to show, leaf first, without the interpreter's internal ones. All frames must have been named.
    pub(crate) fn shown<'s>(&self, stack: &'s [Located]) -> impl DoubleEndedIterator<Item = &'s Located> {
        let outermost = stack.iter().rposition(Located::is_interpreted);
        let is_internal = |located: &Located| {
            let path = located.binary.as_ref().map(|binary| binary.path.as_path());
            path.is_some_and(|path| self.functions(located).all(|name| interpreted::is_internal(path, name)))
        };
        // The outermost interpreted frame is followed by the loop that evaluates it.
        let hidden: Vec<bool> = stack
            .iter()
            .enumerate()
            .map(|(at, located)| {
                outermost.is_some_and(|last| at <= last + 1)
                    && !located.is_interpreted()
                    && is_internal(located)
            })
            .collect();
        stack.iter().zip(hidden).filter(|(_, hidden)| !hidden).map(|(located, _)| located)
    }

    /// Finds the binaries of a sample's user frames, leaf first.
    fn locate(&mut self, sample: &Sample) -> Vec<Located> {
        let interpreted: Vec<Option<Located>> =
            sample.frames.iter().map(|&word| self.locate_interpreted(sample.process, word)).collect();
        let modules = self.processes.get(&sample.process).map(|image| &image.modules);
        let locate = |&word: &u64| {
            let frame = Frame::from_bits(word);
            let (address, found_by) = (frame.lookup_address(), frame.found_by());
            let below = modules.and_then(|modules| modules.range(..=address).next_back());
            match below.filter(|(_, module)| address < module.end) {
                Some((_, module)) => Located {
                    binary: Some(module.binary.clone()),
                    address: address.wrapping_sub(module.bias),
                    found_by,
                },
                None => Located { binary: None, address, found_by },
            }
        };
        sample
            .frames
            .iter()
            .zip(interpreted)
            .map(|(word, known)| known.unwrap_or_else(|| locate(word)))
            .collect()
    }

    /// Looks up the names of new addresses.
    pub(crate) fn name<'l>(&mut self, frames: impl Iterator<Item = &'l Located>) {
        if self.names.len() > NAMES_KEPT {
            // Kernel names are few, and may be needed by samples not shown yet.
            self.names.retain(|(binary, _), _| binary.in_kernel);
        }
        let mut missing: BTreeMap<Arc<Binary>, BTreeSet<u64>> = BTreeMap::new();
        for located in frames {
            let Some(binary) = &located.binary else { continue };
            if !self.names.contains_key(&(binary.clone(), located.address)) {
                missing.entry(binary.clone()).or_default().insert(located.address);
            }
        }
        let request = |(binary, addresses): (&Arc<Binary>, &BTreeSet<u64>)| Request {
            path: binary.path.clone(),
            build_id: binary.build_id.clone(),
            file: None,
            addresses: addresses.iter().copied().collect(),
        };
        let requests: Vec<Request> = missing.iter().map(request).collect();
        if requests.is_empty() {
            return;
        }
        let sources = SymbolSources::default();
        let answers = symbolize(&requests, &sources);
        for ((binary, addresses), symbols) in missing.into_iter().zip(answers) {
            for (address, range) in addresses.into_iter().zip(&symbols.ranges) {
                let lines = symbols.lines.get(range.start as usize..range.end as usize).unwrap_or(&[]);
                let names = lines.iter().map(|line| symbols.names.get(line.function).to_owned()).collect();
                self.names.insert((binary.clone(), address), names);
            }
        }
    }

    /// The functions at a frame, innermost first; empty if it is not named yet.
    pub(crate) fn functions(&self, located: &Located) -> impl DoubleEndedIterator<Item = &str> {
        let (unknown, named) = match &located.binary {
            None if located.address == WAKE_LATENCY => (Some(WAKE_LATENCY_NAME), None),
            None => {
                let mark = self.marks.get(&located.address).map(String::as_str);
                (mark.or_else(|| mark_name(located.address)).or(Some("[unknown]")), None)
            }
            Some(binary) => (None, self.names.get(&(binary.clone(), located.address))),
        };
        unknown.into_iter().chain(named.into_iter().flatten().map(String::as_str))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use selfwind_profile::profile_file::KernelSample;

    #[test]
    fn kernel_frames_lie_on_top() {
        let mut live = Live::default();
        live.learn(Event::Process(ProcessInfo { id: 1, ..ProcessInfo::default() }));
        let module =
            ModuleInfo { process: 1, start: 0x1000, end: 0x2000, path: "/job".into(), ..Default::default() };
        live.learn(Event::Module(module));
        let kernel = |ns, frames: &[u64]| KernelSample { ns, weight: 2, event: 0, frames: frames.to_vec() };
        let address = 0xffff_ffff_8100_0100;
        let sample = Sample {
            process: 1,
            weight: 7,
            ns: 5,
            frames: vec![0x1010],
            kernel: vec![kernel(8, &[address]), kernel(9, &[WAKE_LATENCY, address])],
            ..Sample::default()
        };
        let parts = live.parts(&sample);
        let told: Vec<_> = parts.iter().map(|part| (part.ns, part.weight, part.stack.len())).collect();
        assert_eq!(told, [(8, 2, 2), (9, 2, 3), (5, 3, 1)]);
        let [top, user] = &parts[0].stack[..] else { panic!("{}", parts[0].stack.len()) };
        assert!(top.is_in_kernel() && !user.is_in_kernel());
        assert_eq!((top.module().as_str(), user.module().as_str()), ("[kernel]", "job"));
        // Named at once, whether symbols of the kernel can be read or not.
        assert_eq!(live.functions(top).count(), 1);
        assert_eq!(live.functions(&parts[1].stack[0]).next(), Some(WAKE_LATENCY_NAME));
    }

    #[test]
    fn only_what_is_sampled_by_time_has_a_rate() {
        let hertz = |source: &str, period_ns| {
            let info = ProcessInfo { source: source.into(), period_ns, ..ProcessInfo::default() };
            Image { info, ..Image::default() }.hertz()
        };
        assert_eq!((hertz("cpu", 10_000_000), hertz("perf", 1_000_000)), (Some(100), Some(1000)));
        assert_eq!((hertz("perf", 1000), hertz("perf", 0), hertz("", 0)), (None, None, None));
    }
}
