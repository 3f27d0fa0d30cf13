//! Names for 100 000 addresses of a program of more than 200 MB with full DWARF: ours without a cache, filling it,
//! and from it, beside `addr2line` and `object` used directly on the same addresses.
//!
//! usage: cargo bench -p selfwind --bench symbolize [-- --long | PROGRAM]

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use object::{Object, ObjectSection};
use selfwind_profile::symbolize::{Request, SymbolCache, SymbolSources, Symbols, symbolize};

const ADDRESSES: usize = 100_000;

/// A way to name the addresses.
struct Method {
    name: &'static str,
    times: Vec<Duration>,
}

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).filter(|text| text != "--bench").collect();
    let long = arguments.iter().position(|text| text == "--long").map(|at| arguments.remove(at)).is_some();
    let program = arguments.first().map_or_else(generated, PathBuf::from);
    let request = request(&program);
    let bytes = program.metadata().unwrap().len();
    let base = program.with_extension("cache");
    let _ = std::fs::remove_dir_all(&base);
    let cached =
        SymbolSources { cache: Some(SymbolCache { directory: base.clone() }), ..SymbolSources::none() };
    let names = [
        "addr2line + object, raw names",
        "addr2line + object, demangled",
        "selfwind",
        "selfwind, filling the cache",
        "selfwind, cached",
    ];
    let mut methods = names.map(|name| Method { name, times: Vec::new() });
    let rounds = if long { 11 } else { 5 };
    let mut frames = 0;
    // Interleaved, so that what else happens on the machine hits all alike.
    for _ in 0..rounds {
        frames = time(&mut methods[0], || directly(&program, &request.addresses, false));
        time(&mut methods[1], || directly(&program, &request.addresses, true));
        let found = time(&mut methods[2], || ours(&request, &SymbolSources::none()));
        assert_eq!(found.lines.len(), frames, "not the same frames");
        let _ = std::fs::remove_dir_all(&base);
        time(&mut methods[3], || ours(&request, &cached));
        let again = time(&mut methods[4], || ours(&request, &cached));
        assert!(!again.read && again.lines.len() == frames, "not from the cache");
    }
    let size: u64 =
        std::fs::read_dir(&base).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    let _ = std::fs::remove_dir_all(&base);
    println!(
        "{}: {} MB, {ADDRESSES} addresses, {frames} frames, cache {} KB, {rounds} rounds",
        program.display(),
        bytes / 1_000_000,
        size / 1000
    );
    println!("{:<30} {:>12} {:>10}", "method", "median ms", "ratio");
    let reference = methods[0].median();
    for method in &methods {
        let median = method.median();
        println!(
            "{:<30} {:>12.1} {:>10.2}",
            method.name,
            median.as_secs_f64() * 1e3,
            median.as_secs_f64() / reference.as_secs_f64()
        );
    }
}

impl Method {
    fn median(&self) -> Duration {
        let mut times = self.times.clone();
        times.sort();
        times[times.len() / 2]
    }
}

fn time<T>(method: &mut Method, work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let result = black_box(work());
    method.times.push(started.elapsed());
    result
}

/// Built once; takes some minutes.
fn generated() -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("symbolize-program");
    if !program.exists() {
        eprintln!("building a large program, once");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/symbolize/program.sh");
        let status = Command::new(script).arg(&program).status().expect("bash is needed");
        assert!(status.success(), "the program could not be built");
    }
    program
}

/// Random addresses of the code, ascending.
fn request(program: &Path) -> Request {
    let bytes = std::fs::read(program).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let text = file.section_by_name(".text").unwrap();
    let mut random = selfwind_tests::random::Random::new(0x5eed_1234_9abc_def1);
    let mut addresses = std::collections::BTreeSet::new();
    while addresses.len() < ADDRESSES {
        addresses.insert(text.address() + random.below(text.size() as usize) as u64);
    }
    let build_id = file.build_id().unwrap().unwrap_or_default().to_vec();
    Request { path: program.to_owned(), build_id, file: None, addresses: addresses.into_iter().collect() }
}

fn ours(request: &Request, sources: &SymbolSources) -> Symbols {
    symbolize(std::slice::from_ref(request), sources).pop().unwrap()
}

/// What a program would do that calls the libraries itself, addresses in order: names, files and lines.
fn directly(program: &Path, addresses: &[u64], readable: bool) -> usize {
    let map = selfwind_profile::mapped_file::map_file(program).unwrap();
    let object = object::File::parse(&*map).unwrap();
    let load = |id: gimli::SectionId| {
        let section = object.section_by_name(id.name());
        let data = section.and_then(|section| section.uncompressed_data().ok()).unwrap_or_default();
        Ok::<_, gimli::Error>(data)
    };
    let sections = gimli::DwarfSections::load(load).unwrap();
    let dwarf = sections.borrow(|bytes| gimli::EndianSlice::new(bytes, gimli::RunTimeEndian::Little));
    let context = addr2line::Context::from_dwarf(dwarf).unwrap();
    let mut found = Vec::new();
    for &address in addresses {
        let first = found.len();
        let mut frames = context.find_frames(address).skip_all_loads().unwrap();
        while let Some(frame) = frames.next().unwrap() {
            let name = frame.function.map(|function| {
                let raw = function.raw_name().unwrap().into_owned();
                let symbol = readable.then(|| cpp_demangle::Symbol::new(&raw).ok()).flatten();
                symbol.and_then(|symbol| symbol.demangle().ok()).unwrap_or(raw)
            });
            let location = frame.location.map(|l| (l.file.map(str::to_owned), l.line.unwrap_or(0)));
            found.push((name, location));
        }
        if found.len() == first {
            found.push((None, None));
        }
    }
    found.len()
}
