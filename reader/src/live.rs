//! Samples of running processes, named as they come.
//!
//! What is mapped where is known only up to now, without a history: good enough to look on, not to keep.
//! Addresses are named many at a time, which is much cheaper, and each only once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use unwind::{FoundBy, Frame};

use crate::profile_file::{Event, ModuleInfo, ProcessInfo, Sample};
use crate::symbolize::{Request, SymbolSources, base_name, symbolize};

/// Named addresses kept; then naming starts anew.
const NAMES_KEPT: usize = 1 << 20;

/// The processes that are followed, and the names of their code.
#[derive(Default)]
pub struct Live {
    processes: BTreeMap<u32, Image>,
    names: HashMap<(Arc<Binary>, u64), Vec<String>>,
}

/// A process image and what is mapped in it.
#[derive(Default)]
pub struct Image {
    /// What its agent told of it.
    pub info: ProcessInfo,
    /// By first address.
    modules: BTreeMap<u64, Module>,
    threads: BTreeMap<u32, String>,
}

struct Module {
    end: u64,
    bias: u64,
    binary: Arc<Binary>,
}

#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Binary {
    path: PathBuf,
    build_id: Vec<u8>,
}

/// A frame that is ready to be named.
#[derive(Clone)]
pub struct Located {
    binary: Option<Arc<Binary>>,
    /// As the binary's ELF file numbers it, else as the process saw it.
    pub address: u64,
    /// How it was found.
    pub found_by: FoundBy,
}

impl Located {
    /// The file name of its binary; empty outside all modules.
    pub fn module(&self) -> String {
        self.binary.as_ref().map(|binary| base_name(&binary.path)).unwrap_or_default()
    }
}

impl Image {
    /// A short name of the program.
    pub fn program(&self) -> String {
        base_name(&self.info.exe)
    }

    /// The name of a thread by its number in the process.
    pub fn thread(&self, seq: u32) -> &str {
        self.threads.get(&seq).map_or("", String::as_str)
    }
}

impl Live {
    /// Takes in what is not a sample.
    pub fn learn(&mut self, event: Event) {
        match event {
            Event::Process(info) => {
                let id = info.id;
                self.image(id).info = info;
            }
            Event::Module(module) => self.map(module),
            // Samples of the time before are still to come: what takes its place ends a module.
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
            _ => {}
        }
    }

    /// The process with this number, if it is followed.
    pub fn process(&self, number: u32) -> Option<&Image> {
        self.processes.get(&number)
    }

    /// All that are followed.
    pub fn processes(&self) -> impl Iterator<Item = &Image> {
        self.processes.values()
    }

    fn image(&mut self, process: u32) -> &mut Image {
        self.processes.entry(process).or_default()
    }

    fn map(&mut self, module: ModuleInfo) {
        let binary = Arc::new(Binary { path: module.path, build_id: module.build_id });
        let ModuleInfo { start, end, bias, process, .. } = module;
        let modules = &mut self.image(process).modules;
        modules.retain(|&other, module| module.end <= start || end <= other);
        modules.insert(start, Module { end, bias, binary });
    }

    /// Finds the binaries of a sample's frames, leaf first.
    pub fn locate(&self, sample: &Sample) -> Vec<Located> {
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
        sample.frames.iter().map(locate).collect()
    }

    /// Names the addresses that have no name yet.
    pub fn name<'l>(&mut self, frames: impl Iterator<Item = &'l Located>) {
        if self.names.len() > NAMES_KEPT {
            self.names.clear();
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
            addresses: addresses.iter().copied().collect(),
        };
        let requests: Vec<Request> = missing.iter().map(request).collect();
        if requests.is_empty() {
            return;
        }
        let sources = SymbolSources { silent: true, ..SymbolSources::default() };
        let answers = symbolize(&requests, &sources);
        for ((binary, addresses), symbols) in missing.into_iter().zip(answers) {
            for (address, range) in addresses.into_iter().zip(&symbols.ranges) {
                let lines = symbols.lines.get(range.start as usize..range.end as usize).unwrap_or(&[]);
                let names = lines.iter().map(|line| symbols.names.get(line.function).to_owned()).collect();
                self.names.insert((binary.clone(), address), names);
            }
        }
    }

    /// The functions at a frame, innermost first; empty while it has no name.
    pub fn functions(&self, located: &Located) -> impl DoubleEndedIterator<Item = &str> {
        let (unknown, named) = match &located.binary {
            None => (Some("[unknown]"), None),
            Some(binary) => (None, self.names.get(&(binary.clone(), located.address))),
        };
        unknown.into_iter().chain(named.into_iter().flatten().map(String::as_str))
    }
}
