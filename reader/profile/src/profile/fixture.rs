//! A synthetic profile for tests: written with the real writer, named from a real ELF file.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use object::write::{Object, Symbol, SymbolSection};
use object::{Architecture, BinaryFormat, Endianness, SectionKind, SymbolFlags, SymbolKind, SymbolScope};
use unwind::{End, FoundBy, Frame};

use super::contents::Profile;
use super::load::load;

use crate::profile_file::{
    Counters, Event, ModuleGone, ModuleInfo, ProcessEnd, ProcessFate, ProcessInfo, ProfileWriter, Sample,
    SessionInfo, ThreadInfo,
};
use crate::symbolize::SymbolSources;

/// Functions of the program, 0x100 bytes each, from address 0x100.
const APP: [&str; 5] =
    ["_start", "main", "_ZN3app5parse17h0123456789abcdefE", "_ZN5space3fooEi", "worker;loop"];
/// Functions of the library that is loaded late.
const OLD: [&str; 1] = ["old_plugin"];
const NEW: [&str; 1] = ["new_plugin"];
/// Where the program is mapped.
pub const BASE: u64 = 0x5555_0000_0000;
/// Where both libraries are mapped, one after the other.
pub(crate) const PLUGIN: u64 = 0x7fff_0000_0000;

/// An empty directory for one test.
pub fn directory(test: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("selfwind-{}-{test}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    directory
}

/// Writes an ELF file with these functions.
pub fn binary(path: &Path, functions: &[&str]) {
    let mut object = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
    let text = object.add_section(Vec::new(), b".text".to_vec(), SectionKind::Text);
    object.append_section_data(text, &vec![0xcc; 0x100 * (functions.len() + 1)], 16);
    for (index, name) in functions.iter().enumerate() {
        object.add_symbol(Symbol {
            name: name.as_bytes().to_vec(),
            value: 0x100 * (index as u64 + 1),
            size: 0x100,
            kind: SymbolKind::Text,
            scope: SymbolScope::Dynamic,
            weak: false,
            section: SymbolSection::Section(text),
            flags: SymbolFlags::None,
        });
    }
    fs::write(path, object.write().unwrap()).unwrap();
}

/// A return address in the `function`th function of the program, counted from 0.
pub fn caller(function: u64) -> u64 {
    Frame::new(BASE + 0x100 * (function + 1) + 0x20, FoundBy::Cfi, false).bits()
}

/// An interrupted instruction: the first of the function.
pub fn leaf(function: u64) -> u64 {
    Frame::new(BASE + 0x100 * (function + 1), FoundBy::Cfi, true).bits()
}

/// A sample of one thread.
pub fn sample(process: u32, tid: u32, ns: u64, weight: u32, end: End, frames: Vec<u64>) -> Event {
    let thread_seq = tid % 10;
    Event::Sample(Sample {
        process,
        tid,
        thread_seq,
        ns,
        weight,
        end: end as u8,
        frames,
        ..Sample::default()
    })
}

/// A binary that is mapped from `ns` on.
pub fn module(process: u32, module: u32, path: &Path, start: u64, ns: u64) -> Event {
    Event::Module(ModuleInfo {
        process,
        module,
        start,
        end: start + 0x1000,
        bias: start,
        path: path.to_owned(),
        loaded_ns: ns,
        ..ModuleInfo::default()
    })
}

fn process(id: u32, pid: u32, parent: Option<u32>) -> Event {
    Event::Process(ProcessInfo {
        id,
        pid,
        ppid: pid - 1,
        parent,
        exe: "/opt/app".into(),
        argv: vec!["app".into(), "--fast".into()],
        period_ns: 10_000_000,
        source: "cpu".into(),
        ..ProcessInfo::default()
    })
}

fn thread(process: u32, tid: u32, name: &str) -> Event {
    Event::Thread(ThreadInfo { process, tid, seq: tid % 10, name: name.into(), start_ns: 0 })
}

/// The events of a program with two threads, a forked child and a plugin replaced by another.
pub fn events(directory: &Path) -> Vec<Event> {
    let [app, old, new] = ["app", "libold.so", "libnew.so"].map(|name| directory.join(name));
    binary(&app, &APP);
    binary(&old, &OLD);
    binary(&new, &NEW);
    let plugin = Frame::new(PLUGIN + 0x110, FoundBy::Cfi, true).bits();
    let jit = Frame::new(0x1234_5678, FoundBy::Cfi, true).bits();
    let guess = Frame::new(BASE + 0x220, FoundBy::Guess, false).bits();
    let pointer = Frame::new(BASE + 0x320, FoundBy::FramePointer, false).bits();
    let session = SessionInfo {
        version: "0.1.0".into(),
        command: vec!["app".into(), "--fast".into()],
        frequency: 99,
        source: "auto".into(),
        kernel: "6.1.0".into(),
        ..SessionInfo::default()
    };
    let root = [caller(1), caller(0)];
    let to_root = |inner: &[u64]| [inner, &root].concat();
    vec![
        Event::Session(session),
        process(0, 100, None),
        module(0, 1, &app, BASE, 0),
        thread(0, 100, "app"),
        thread(0, 101, "worker"),
        sample(0, 100, 10, 5, End::Root, to_root(&[leaf(2)])),
        sample(0, 100, 11, 1, End::Root, to_root(&[leaf(3), caller(2)])),
        sample(0, 100, 12, 1, End::Root, to_root(&[leaf(3), caller(2)])),
        sample(0, 101, 13, 3, End::NoCfi, vec![jit, pointer, caller(4)]),
        sample(0, 101, 14, 1, End::DepthLimit, vec![leaf(4), caller(4), guess]),
        // The plugin's record comes after a sample in it.
        sample(0, 100, 25, 2, End::Root, to_root(&[plugin])),
        module(0, 2, &old, PLUGIN, 20),
        Event::ModuleGone(ModuleGone { process: 0, module: 2, ns: 30 }),
        module(0, 3, &new, PLUGIN, 40),
        sample(0, 100, 35, 1, End::Root, to_root(&[plugin])),
        sample(0, 100, 45, 4, End::Root, to_root(&[plugin])),
        process(1, 200, Some(0)),
        module(1, 1, &app, BASE, 15),
        thread(1, 200, "app"),
        sample(1, 200, 16, 2, End::Root, to_root(&[leaf(2)])),
        Event::ProcessEnd(ProcessEnd {
            process: 0,
            ns: 50,
            fate: ProcessFate::Exited,
            counters: Counters { fired: 10, recorded: 9, ..Counters::default() },
        }),
        Event::End(crate::profile_file::End { ns: 60, wall_ns: 2_500_000_000, status: Some(0) }),
    ]
}

/// Writes events as a profile file.
pub fn write(path: &Path, events: &[Event]) {
    let mut writer = ProfileWriter::new(File::create(path).unwrap()).unwrap();
    for event in events {
        writer.push(event).unwrap();
    }
    writer.finish().unwrap();
}

/// The profile of [`events`], read from a file that is gone again.
pub fn loaded(test: &str) -> Profile {
    let directory = directory(test);
    let file = directory.join("p.data");
    write(&file, &events(&directory));
    let profile = load(&file, &SymbolSources::none()).unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    profile
}
