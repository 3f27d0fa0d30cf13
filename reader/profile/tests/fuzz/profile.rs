//! What the fuzzer of profile files feeds: a reader, everything that follows it, and the writer.

use std::path::PathBuf;
use std::sync::OnceLock;

use selfwind_profile::call_tree::{CallTree, Direction, weights};
use selfwind_profile::output::{Format, Grouping, export_grouped};
use selfwind_profile::profile::of_events;
use selfwind_profile::profile_file::{Event, MAGIC, ProfileReader, ProfileWriter, VERSION};
use selfwind_profile::selection::{Filters, Heading, Selection, Unit};
use selfwind_profile::stats::Tally;
use selfwind_profile::symbolize::SymbolSources;

/// Takes `bytes` for a profile file, as they are and as events under a right checksum.
///
/// # Panics
/// When a promise is broken.
pub(crate) fn profile(bytes: &[u8]) {
    read(bytes);
    names(bytes);
    let sealed = sealed(bytes);
    let events = read(&sealed);
    rewritten(&events);
    let mut tally = Tally::default();
    events.iter().for_each(|event| tally.add(event));
    let stats = tally.finish(sealed.len() as u64);
    let profile = of_events(events, &SymbolSources::none());
    assert_eq!((profile.totals.samples, profile.totals.weight), (stats.samples, stats.weight));
    for heading in [Heading::Threads, Heading::ProgramsIfSeveral] {
        let selection = Selection::new(&profile, Unit::Function, heading, &Filters::default());
        let tree = CallTree::new(&selection, Direction::Callers, selection.headings());
        assert_eq!(tree.nodes[0].total, stats.weight);
        let own: u64 = weights(&selection).iter().map(|weight| weight.own).sum();
        assert!(own <= stats.weight);
    }
    export(&sealed, stats.weight);
}

/// The events of a file, up to its first fault.
fn read(file: &[u8]) -> Vec<Event> {
    let Ok(reader) = ProfileReader::new(file, "fuzzed") else { return Vec::new() };
    reader.map_while(Result::ok).collect()
}

/// A file with one block of events: what a fuzzer would hardly guess.
fn sealed(payload: &[u8]) -> Vec<u8> {
    let mut block = [1, payload.len() as u32].map(u32::to_le_bytes).concat();
    let checksum = crc32fast::hash(&[&block, payload].concat());
    block.extend_from_slice(&checksum.to_le_bytes());
    [&MAGIC[..], &VERSION.to_le_bytes(), &[0; 4], &block, payload].concat()
}

/// A file with one block of names, the first and the last of its section, not compressed: all that is in it refers to
/// what is in it.
fn names(entries: &[u8]) {
    let payload = [&[1, 3], entries].concat();
    let mut block = [2, payload.len() as u32].map(u32::to_le_bytes).concat();
    let checksum = crc32fast::hash(&[&block[..], &payload].concat());
    block.extend_from_slice(&checksum.to_le_bytes());
    let file = [&MAGIC[..], &VERSION.to_le_bytes(), &[0; 4], &block, &payload].concat();
    let Ok(reader) = ProfileReader::new(&*file, "fuzzed") else { return };
    let mut reader = reader.with_names();
    assert!(reader.by_ref().map_while(Result::ok).next().is_none(), "names are no events");
    let Some(section) = reader.take_names() else { return };
    for frame in &section.frames {
        let texts = [Some(frame.function), Some(frame.linkage), frame.file];
        assert!(texts.into_iter().flatten().all(|text| (text as usize) < section.texts.len()));
    }
    for binary in &section.binaries {
        assert_eq!(binary.addresses.len(), binary.ends.len());
        assert!(binary.addresses.is_sorted() && binary.ends.is_sorted());
        assert_eq!(binary.ends.last().map_or(0, |&end| end as usize), binary.frames.len());
        assert!(binary.frames.iter().all(|&frame| (frame as usize) < section.frames.len()));
    }
}

/// What was read can be written, and read again.
fn rewritten(events: &[Event]) {
    let mut writer = ProfileWriter::new(Vec::new()).expect("memory takes everything");
    if events.iter().all(|event| writer.push(event).is_ok()) {
        let file = writer.finish().expect("memory takes everything");
        assert_eq!(read(&file), events);
    }
}

/// Every format is written or refused, with all of the weight.
fn export(file: &[u8], weight: u64) {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let path =
        PATH.get_or_init(|| std::env::temp_dir().join(format!("selfwind-fuzz-{}", std::process::id())));
    std::fs::write(path, file).expect("the directory for temporary files takes a small one");
    for format in Format::ALL {
        let exported =
            export_grouped(format, Grouping::Thread, path, &SymbolSources::none(), &mut std::io::sink());
        if let Ok(totals) = exported {
            assert_eq!(totals.weight, weight, "{}", format.name());
        }
    }
    let _ = std::fs::remove_file(path);
}
