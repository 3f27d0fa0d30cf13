//! pprof's gzipped protocol buffer (<https://github.com/google/pprof/blob/main/proto/profile.proto>).
//!
//! One sample per thread, event and distinct stack. Its values are timer periods and their nanoseconds, microseconds off the
//! CPU, or one value for each event of the recording (for allocations the four of heap profiles). Addresses are those of the
//! ELF files, so each file is one mapping for all processes, at address 0.
//! Records are written one by one; only texts and functions are kept until the end.

mod protobuf;

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;

use self::protobuf::Message;
use super::description::{self, Description};
use super::grouping::Grouping;
use super::sampled_thread::{SampledThread, heaviest, mark, sampled_threads};
use super::strings::Strings;
use super::title::source;
use crate::heap::{self, HeapValue};
use crate::measure::{Measure, Unit};
use crate::names::NameId;
use crate::profile::{Bucket, FunctionId, Profile};
use crate::profile_file::SessionInfo;
use crate::source_list;
use crate::symbolize::{Origin, hex};
use crate::tracepoint::{Carried, FieldValue};

/// The format.
pub(super) const DESCRIPTION: Description = Description {
    is_binary: true,
    shown_by: Some("go tool pprof -top"),
    ..Description::text("pprof", &["pb.gz", "pprof"], description::Writer::Detailed(write))
};

/// Field numbers of message Profile.
mod field {
    pub(super) const SAMPLE_TYPE: u64 = 1;
    pub(super) const SAMPLE: u64 = 2;
    pub(super) const MAPPING: u64 = 3;
    pub(super) const LOCATION: u64 = 4;
    pub(super) const FUNCTION: u64 = 5;
    pub(super) const STRING_TABLE: u64 = 6;
    pub(super) const TIME_NANOS: u64 = 9;
    pub(super) const DURATION_NANOS: u64 = 10;
    pub(super) const PERIOD_TYPE: u64 = 11;
    pub(super) const PERIOD: u64 = 12;
    pub(super) const COMMENT: u64 = 13;
    pub(super) const DEFAULT_SAMPLE_TYPE: u64 = 14;
}

/// Mappings end at a multiple of this.
const PAGE: u64 = shm_format::layout::PAGE as u64;

/// Writes a profile for pprof.
fn write(profile: &Profile, _: Grouping, out: &mut dyn Write) -> io::Result<()> {
    // No name and no time in the gzip header, so that equal profiles give equal bytes.
    let mut writer = Writer {
        profile,
        strings: Strings::default(),
        functions: HashMap::new(),
        marks: Vec::new(),
        message: Message::default(),
        out: GzEncoder::new(out, Compression::default()),
    };
    writer.strings.index_of(""); // the format wants it first
    writer.head()?;
    writer.samples()?;
    writer.mappings()?;
    writer.locations()?;
    writer.strings()?;
    writer.out.finish()?;
    Ok(())
}

struct Writer<'a, W: Write> {
    profile: &'a Profile,
    strings: Strings,
    functions: HashMap<FunctionKey, u64>,
    /// The marks seen so far; their locations follow those of the profile.
    marks: Vec<String>,
    /// Buffer for a field of the profile.
    message: Message,
    out: GzEncoder<W>,
}

/// Functions of pprof have a file; a mark has only a name.
#[derive(PartialEq, Eq, Hash)]
enum FunctionKey {
    InFile(FunctionId, NameId, Option<NameId>),
    Mark(u32),
}

impl<W: Write> Writer<'_, W> {
    fn text(&mut self, text: &str) -> u64 {
        u64::from(self.strings.index_of(text))
    }

    /// Writes the fields collected in `message`.
    fn flush(&mut self) -> io::Result<()> {
        self.out.write_all(self.message.as_bytes())?;
        self.message.clear();
        Ok(())
    }

    fn value_type(&mut self, name: &str, unit: &str) -> Message {
        let mut value_type = Message::default();
        value_type.integer(1, self.text(name)).integer(2, self.text(unit));
        value_type
    }

    /// Writes the fields that occur once.
    fn head(&mut self) -> io::Result<()> {
        let session = &self.profile.session;
        let stats = &self.profile.stats;
        let columns = columns(self.profile);
        let types: Vec<Message> =
            columns.iter().map(|column| self.value_type(&column.name, column.unit)).collect();
        let main = self.profile.measure(self.profile.main);
        let shown = columns.iter().position(|column| column.name == main.name).unwrap_or(0);
        let threads = sampled_threads(self.profile);
        let period = match columns[shown].value {
            Value::CpuTime => threads.get(heaviest(&threads)).map_or(0, SampledThread::period_ns),
            Value::Weight | Value::Samples => 1,
            Value::Events(events) => events,
        };
        let default = self.text(&columns[shown].name);
        // As in profiles of Go and gperftools.
        let mean =
            heap_mean(session).filter(|_| HeapValue::ALL.iter().any(|value| value.name() == main.name));
        let heap = mean.map(|mean| (self.value_type("space", "bytes"), mean));
        let comments: Vec<u64> = comments(self.profile).iter().map(|comment| self.text(comment)).collect();
        for value_type in &types {
            self.message.message(field::SAMPLE_TYPE, value_type);
        }
        self.message
            .integer(field::TIME_NANOS, session.started_realtime_ns)
            .integer(field::DURATION_NANOS, stats.detail.duration_ns)
            .message(field::PERIOD_TYPE, heap.as_ref().map_or(&types[shown], |(space, _)| space))
            .integer(field::PERIOD, heap.as_ref().map_or(period, |(_, mean)| *mean))
            .integers(field::COMMENT, comments)
            .integer(field::DEFAULT_SAMPLE_TYPE, default);
        self.flush()
    }

    fn samples(&mut self) -> io::Result<()> {
        let columns = columns(self.profile);
        if self.profile.measures.len() > 1 {
            return self.several(&columns);
        }
        for thread in sampled_threads(self.profile) {
            let period = thread.period_ns();
            let labels = self.labels(thread.number());
            for bucket in thread.buckets() {
                let values: Vec<u64> = columns.iter().map(|column| column.of(bucket, period)).collect();
                let carried = self.carried(bucket.fields);
                let labels: Vec<&Message> = labels.iter().chain(&carried).collect();
                self.sample(bucket.stack, &values, &labels)?;
            }
        }
        Ok(())
    }

    /// The fields of events, as labels: integers as numbers, everything else as texts.
    fn carried(&mut self, fields: u32) -> Vec<Message> {
        let profile = self.profile;
        let Some(Carried { event, fields }) = profile.tracepoints.carried(fields) else { return Vec::new() };
        let name = ("tracepoint".to_owned(), FieldValue::Text(event.clone()));
        let label = |(name, value): &(String, FieldValue)| {
            let mut label = Message::default();
            label.integer(1, self.text(name));
            match value.number() {
                Some(number) => label.integer(3, number as u64),
                None => label.integer(2, self.text(&value.to_string())),
            };
            label
        };
        [&name].into_iter().chain(fields).map(label).collect()
    }

    /// Several events: all values of a thread's stack in one sample, as in heap profiles.
    fn several(&mut self, columns: &[Column]) -> io::Result<()> {
        let mut stacks: BTreeMap<(u32, u32, u32), Vec<u64>> = BTreeMap::new();
        for bucket in self.profile.buckets.iter().filter(|bucket| bucket.weight > 0) {
            let period = self.profile.period_ns(bucket.thread, bucket.event);
            let key = (bucket.thread, bucket.stack, bucket.fields);
            let values = stacks.entry(key).or_insert_with(|| vec![0; columns.len()]);
            for (value, column) in values.iter_mut().zip(columns) {
                *value += column.of(bucket, period);
            }
        }
        let mut labels = (u32::MAX, Vec::new());
        for ((thread, stack, fields), values) in stacks {
            if labels.0 != thread {
                labels = (thread, self.labels(thread));
            }
            let carried = self.carried(fields);
            let labels: Vec<&Message> = labels.1.iter().chain(&carried).collect();
            self.sample(stack, &values, &labels)?;
        }
        Ok(())
    }

    fn sample(&mut self, stack: u32, values: &[u64], labels: &[&Message]) -> io::Result<()> {
        let locations = self.stack(stack);
        let mut sample = Message::default();
        sample.integers(1, locations).integers(2, values.iter().copied());
        labels.iter().for_each(|label| {
            sample.message(3, label);
        });
        self.message.message(field::SAMPLE, &sample);
        self.flush()
    }

    /// Labels: process and thread of the samples.
    fn labels(&mut self, thread: u32) -> Vec<Message> {
        let (process, info) = (self.profile.process_of(thread), &self.profile.threads[thread as usize]);
        let name = if info.name.is_empty() { process.name() } else { info.name.clone() };
        let texts = [("thread", name), ("process", process.name())];
        let numbers = [("tid", info.tid), ("pid", process.info.pid)];
        let mut labels = Vec::new();
        for (key, text) in texts {
            let mut label = Message::default();
            label.integer(1, self.text(key)).integer(2, self.text(&text));
            labels.push(label);
        }
        for (key, number) in numbers {
            let mut label = Message::default();
            label.integer(1, self.text(key)).integer(3, u64::from(number));
            labels.push(label);
        }
        labels
    }

    /// The locations of a stack, leaf first; its mark comes last.
    fn stack(&mut self, stack: u32) -> Vec<u64> {
        let stack = &self.profile.stacks[stack as usize];
        let mut ids: Vec<u64> =
            self.profile.frames(stack).map(|frame| location_id(frame.location as usize)).collect();
        if let Some(mark) = mark(self.profile, stack) {
            let known = self.marks.iter().position(|other| *other == mark);
            let index = known.unwrap_or(self.marks.len());
            if known.is_none() {
                self.marks.push(mark);
            }
            ids.push(location_id(self.profile.locations.len() + index));
        }
        ids
    }

    /// One mapping for each file with samples, and for the first file, which pprof takes as the program.
    fn mappings(&mut self) -> io::Result<()> {
        let mut ends: Vec<Option<u64>> = vec![None; self.profile.binaries.len()];
        if let Some(program) = ends.first_mut() {
            *program = Some(0);
        }
        for location in &self.profile.locations {
            if let Some(binary) = location.binary {
                let end = &mut ends[binary as usize];
                *end = Some(end.unwrap_or(0).max(location.address));
            }
        }
        for (index, binary) in self.profile.binaries.iter().enumerate() {
            let Some(end) = ends[index] else { continue };
            let path = self.text(&binary.path.to_string_lossy());
            let build_id = self.text(&hex(&binary.build_id));
            let lines = matches!(binary.origin, Some(Origin::Dwarf(_)));
            let mut mapping = Message::default();
            mapping
                .integer(1, mapping_id(index as u32))
                .integer(3, end.saturating_add(1).checked_next_multiple_of(PAGE).unwrap_or(u64::MAX))
                .integer(5, path)
                .integer(6, build_id)
                .boolean(7, true)
                .boolean(8, lines)
                .boolean(9, lines)
                .boolean(10, lines);
            self.message.message(field::MAPPING, &mapping);
            self.flush()?;
        }
        Ok(())
    }

    /// All locations, then the marks; each preceded by the functions that are new in it.
    fn locations(&mut self) -> io::Result<()> {
        let profile = self.profile;
        for (number, location) in profile.locations.iter().enumerate() {
            let mut message = Message::default();
            message
                .integer(1, location_id(number))
                .integer(2, location.binary.map_or(0, mapping_id))
                .integer(3, location.address);
            for line in profile.lines_of(number as u32) {
                let key = FunctionKey::InFile(line.function, line.linkage, line.file);
                let file = line.file.map_or("", |file| profile.names.get(file));
                let names = [profile.function_name(line.function), profile.names.get(line.linkage)];
                let function = self.function(key, names, file)?;
                message.message(4, Message::default().integer(1, function).integer(2, u64::from(line.line)));
            }
            self.message.message(field::LOCATION, &message);
            self.flush()?;
        }
        for (index, mark) in std::mem::take(&mut self.marks).iter().enumerate() {
            let function = self.function(FunctionKey::Mark(index as u32), [mark, mark], "")?;
            let mut message = Message::default();
            message
                .integer(1, location_id(profile.locations.len() + index))
                .message(4, Message::default().integer(1, function));
            self.message.message(field::LOCATION, &message);
            self.flush()?;
        }
        Ok(())
    }

    /// The number of a function, which is written if it is new. It has a readable name and a linkage name.
    fn function(&mut self, key: FunctionKey, [name, linkage]: [&str; 2], file: &str) -> io::Result<u64> {
        if let Some(&id) = self.functions.get(&key) {
            return Ok(id);
        }
        let id = self.functions.len() as u64 + 1;
        self.functions.insert(key, id);
        let (name, linkage, file) = (self.text(name), self.text(linkage), self.text(file));
        let mut function = Message::default();
        function.integer(1, id).integer(2, name).integer(3, linkage).integer(4, file);
        self.message.message(field::FUNCTION, &function);
        self.flush()?;
        Ok(id)
    }

    fn strings(&mut self) -> io::Result<()> {
        for text in std::mem::take(&mut self.strings).iter() {
            self.message.text(field::STRING_TABLE, text);
            self.flush()?;
        }
        Ok(())
    }
}

/// Numbers start at 1; 0 means none.
fn location_id(index: usize) -> u64 {
    index as u64 + 1
}

fn mapping_id(binary: u32) -> u64 {
    u64::from(binary) + 1
}

/// One of the values of each sample.
struct Column {
    name: String,
    unit: &'static str,
    /// Its event; `None` if there is only one.
    event: Option<u8>,
    value: Value,
}

/// What a value counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    Weight,
    Samples,
    CpuTime,
    /// The weight times this number of events per unit.
    Events(u64),
}

impl Column {
    fn of(&self, bucket: &Bucket, period_ns: u64) -> u64 {
        let value = match self.value {
            _ if self.event.is_some_and(|event| event != bucket.event) => 0,
            Value::Weight => bucket.weight,
            Value::Samples => bucket.samples,
            Value::CpuTime => bucket.weight.saturating_mul(period_ns),
            Value::Events(events) => bucket.weight.saturating_mul(events),
        };
        value.min(i64::MAX as u64)
    }
}

/// Mean number of bytes between sampled allocations, if allocations were sampled.
fn heap_mean(session: &SessionInfo) -> Option<u64> {
    let pieces = source_list::pieces(&session.source);
    pieces.into_iter().find_map(|piece| heap::mean_of(piece).ok().flatten())
}

/// The values of each sample. Of a single event the first one is the weight.
fn columns(profile: &Profile) -> Vec<Column> {
    let column = |event, measure: &Measure| {
        let (unit, value) = match measure.unit {
            Unit::CpuPeriod(_) => ("nanoseconds", Value::CpuTime),
            Unit::Microsecond => ("microseconds", Value::Weight),
            Unit::Nanosecond => ("nanoseconds", Value::Weight),
            Unit::Byte => ("bytes", Value::Weight),
            Unit::Events(events) => ("count", Value::Events(events)),
            Unit::Sample => ("count", Value::Weight),
        };
        Column { name: measure.name.to_string(), unit, event, value }
    };
    if profile.measures.len() > 1 {
        let measures = profile.measures.iter().enumerate();
        return measures.map(|(event, measure)| column(Some(event as u8), measure)).collect();
    }
    let measure = profile.measure(0);
    let main = column(None, measure);
    let count = |name: &str, value| Column { name: name.into(), unit: "count", event: None, value };
    match measure.unit {
        Unit::CpuPeriod(_) => vec![count("samples", Value::Weight), main],
        Unit::Microsecond => vec![main, count("waits", Value::Samples)],
        Unit::Events(1) | Unit::Byte | Unit::Nanosecond | Unit::Sample => vec![main],
        Unit::Events(_) => vec![count("samples", Value::Weight), main],
    }
}

/// Comments: how it was recorded, what was lost, what is unusual.
fn comments(profile: &Profile) -> Vec<String> {
    let session = &profile.session;
    let mut comments = Vec::new();
    if !session.command.is_empty() {
        comments.push(format!("command: {}", session.command.join(" ")));
    }
    comments.push(format!(
        "selfwind {}, host {}, Linux {}, source {}",
        session.version,
        session.host,
        session.kernel,
        source(session)
    ));
    let stats = &profile.stats;
    let causes = &stats.detail.lost;
    let causes: Vec<String> = causes.iter().map(|(cause, count)| format!("{cause} {count}")).collect();
    let causes = if causes.is_empty() { String::new() } else { format!(" ({})", causes.join(", ")) };
    comments.push(format!("lost samples: {}{causes}; truncated stacks: {}", stats.lost, stats.truncated));
    comments.extend(profile.notes.iter().cloned());
    // pprof prints each on a line of its own.
    comments.iter().map(|comment| comment.replace(char::is_control, " ")).collect()
}
