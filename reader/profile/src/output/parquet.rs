//! Apache Parquet, for databases and fleets: one row per function of a stack.
//!
//! Rows of one `stack` belong together; `depth` 0 is the leaf, and every stack has that row, so
//! `sum(weight) where depth = 0` is the weight of the profile. Host, command and start are columns, so that
//! files of many machines can be read as one table; equal values take almost no space.

mod column;

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use parquet::basic::Compression;
use parquet::data_type::ByteArray;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use self::column::Column;
use super::description::{Description, Writer};
use super::grouping::Grouping;
use crate::file_name::base_name;
use crate::names::NameId;
use crate::profile::{Bucket, Profile, found_by_name};
use crate::profile_file::end_name;
use crate::symbolize::hex;
use crate::tracepoint::FieldObject;

/// The format.
pub(super) const DESCRIPTION: Description =
    Description { is_binary: true, ..Description::text("parquet", &["parquet"], Writer::Detailed(write)) };

/// Number of rows per write.
const GROUP: usize = 1 << 17;
/// The one function of a stack without frames.
const NO_FRAMES: &str = "[no frames]";

/// The columns, in the order of [`Rows::columns`].
const SCHEMA: &str = "message selfwind {
    required binary host (STRING);
    required binary command (STRING);
    required int64 started (TIMESTAMP(NANOS, true));
    required binary process (STRING);
    required int64 pid;
    required binary thread (STRING);
    required int64 tid;
    required binary event (STRING);
    required binary unit (STRING);
    required int64 period_ns;
    required int64 stack;
    required int64 samples;
    required int64 weight;
    required binary end (STRING);
    required int64 depth;
    required binary function (STRING);
    required binary linkage_name (STRING);
    optional binary file (STRING);
    optional int64 line;
    required boolean inlined;
    optional binary module (STRING);
    optional binary build_id (STRING);
    optional int64 address;
    required binary found_by (STRING);
    optional binary fields (STRING);
}";

/// Writes a profile as Parquet.
fn write(profile: &Profile, _: Grouping, out: &mut dyn Write) -> io::Result<()> {
    let file = Handed::default();
    let schema = Arc::new(parse_message_type(SCHEMA).map_err(io::Error::other)?);
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let mut writer = SerializedFileWriter::new(file.clone(), schema, Arc::new(properties))?;
    let mut rows = Rows::new(profile);
    let mut buckets = profile.buckets.iter().enumerate().peekable();
    while buckets.peek().is_some() {
        while let Some((number, bucket)) = buckets.next_if(|_| rows.count < GROUP) {
            rows.stack(number, bucket);
        }
        let mut group = writer.next_row_group()?;
        for column in rows.columns() {
            let mut writer = group.next_column()?.ok_or_else(|| io::Error::other("a column is missing"))?;
            column.write(writer.untyped())?;
            writer.close()?;
        }
        group.close()?;
        rows.clear();
        file.hand_over(out)?;
    }
    writer.close()?;
    file.hand_over(out)
}

/// A buffer for the library's output, as the library needs a writer that is `Send`.
#[derive(Clone, Default)]
struct Handed(Arc<Mutex<Vec<u8>>>);

impl Handed {
    fn hand_over(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        out.write_all(&bytes)?;
        bytes.clear();
        Ok(())
    }
}

impl Write for Handed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Thread, event and stack, which all rows of the stack repeat.
struct Head {
    process: ByteArray,
    pid: i64,
    thread: ByteArray,
    tid: i64,
    event: ByteArray,
    unit: ByteArray,
    period_ns: i64,
    stack: i64,
    samples: i64,
    weight: i64,
    end: ByteArray,
    /// The fields of the events, as a JSON object.
    fields: Option<ByteArray>,
}

/// Rows not yet written.
struct Rows<'a> {
    profile: &'a Profile,
    host: ByteArray,
    command: ByteArray,
    started: i64,
    /// Texts by number, so that each is formatted once.
    texts: Vec<Option<ByteArray>>,
    /// By index of the binary: its short name, and its build-id if it has one.
    binaries: Vec<(ByteArray, Option<ByteArray>)>,
    count: usize,
    columns: [Column; 25],
}

impl<'a> Rows<'a> {
    fn new(profile: &'a Profile) -> Self {
        use Column as C;
        let session = &profile.session;
        let binaries = profile.binaries.iter().map(|binary| {
            let id = (!binary.build_id.is_empty()).then(|| text(&hex(&binary.build_id)));
            (text(&base_name(&binary.path)), id)
        });
        Rows {
            profile,
            host: text(&session.host),
            command: text(&session.command.join(" ")),
            started: session.started_realtime_ns as i64,
            texts: vec![None; profile.names.len()],
            binaries: binaries.collect(),
            count: 0,
            columns: [
                C::text(),
                C::text(),
                C::number(),
                C::text(),
                C::number(),
                C::text(),
                C::number(),
                C::text(),
                C::text(),
                C::number(),
                C::number(),
                C::number(),
                C::number(),
                C::text(),
                C::number(),
                C::text(),
                C::text(),
                C::text(),
                C::number(),
                C::flag(),
                C::text(),
                C::text(),
                C::number(),
                C::text(),
                C::text(),
            ],
        }
    }

    fn columns(&self) -> &[Column] {
        &self.columns
    }

    fn clear(&mut self) {
        self.count = 0;
        self.columns.iter_mut().for_each(Column::clear);
    }

    fn name(&mut self, id: NameId) -> ByteArray {
        let names = &self.profile.names;
        self.texts[id.0 as usize].get_or_insert_with(|| text(names.get(id))).clone()
    }

    fn stack(&mut self, number: usize, bucket: &Bucket) {
        let profile = self.profile;
        let stack = &profile.stacks[bucket.stack as usize];
        let (process, thread) = (profile.process_of(bucket.thread), &profile.threads[bucket.thread as usize]);
        let measure = profile.measure(bucket.event);
        let carried = profile.tracepoints.carried(bucket.fields);
        let head = Head {
            process: text(&process.name()),
            pid: process.info.pid.into(),
            thread: text(&thread.name),
            tid: thread.tid.into(),
            event: text(carried.map_or(&measure.name, |carried| &carried.event)),
            unit: text(measure.unit_name()),
            period_ns: profile.period_ns(bucket.thread, bucket.event) as i64,
            stack: number as i64,
            samples: bucket.samples as i64,
            weight: bucket.weight as i64,
            end: text(end_name(stack.end)),
            fields: carried
                .and_then(|carried| serde_json::to_string(&FieldObject::of(&carried.fields)?).ok())
                .map(|json| text(&json)),
        };
        let mut depth = 0;
        for frame in profile.frames(stack) {
            let location = &profile.locations[frame.location as usize];
            let (module, build_id) =
                match location.binary.map(|binary| self.binaries[binary as usize].clone()) {
                    Some((module, build_id)) => (Some(module), build_id),
                    None => (None, None),
                };
            for source in profile.lines_of(frame.location) {
                let name = self.name(profile.functions[source.function.0 as usize].name);
                let linkage = self.name(source.linkage);
                let file = source.file.map(|file| self.name(file));
                let line = (source.line != 0).then_some(i64::from(source.line));
                self.head(&head, depth);
                let [
                    ..,
                    function,
                    linkage_name,
                    in_file,
                    in_line,
                    inlined,
                    in_module,
                    id,
                    address,
                    found_by,
                    _,
                ] = &mut self.columns;
                function.put_text(Some(name));
                linkage_name.put_text(Some(linkage));
                in_file.put_text(file);
                in_line.put(line);
                inlined.put_flag(source.inlined);
                in_module.put_text(module.clone());
                id.put_text(build_id.clone());
                address.put(Some(location.address as i64));
                found_by.put_text(Some(text(found_by_name(frame.found_by))));
                depth += 1;
            }
        }
        if depth == 0 {
            self.empty(&head);
        }
    }

    /// The row of a stack without frames.
    fn empty(&mut self, head: &Head) {
        self.head(head, 0);
        let [.., function, linkage, file, line, inlined, module, id, address, found_by, _] =
            &mut self.columns;
        function.put_text(Some(text(NO_FRAMES)));
        linkage.put_text(Some(text(NO_FRAMES)));
        [file, module, id].into_iter().for_each(|column| column.put_text(None));
        [line, address].into_iter().for_each(|column| column.put(None));
        inlined.put_flag(false);
        found_by.put_text(Some(text("")));
    }

    fn head(&mut self, head: &Head, depth: i64) {
        self.count += 1;
        let [
            host,
            command,
            started,
            process,
            pid,
            thread,
            tid,
            event,
            unit,
            period,
            stack,
            samples,
            weight,
            end,
            at,
            ..,
            fields,
        ] = &mut self.columns;
        for (column, value) in [
            (host, &self.host),
            (command, &self.command),
            (process, &head.process),
            (thread, &head.thread),
            (event, &head.event),
            (unit, &head.unit),
            (end, &head.end),
        ] {
            column.put_text(Some(value.clone()));
        }
        fields.put_text(head.fields.clone());
        for (column, value) in [
            (started, self.started),
            (pid, head.pid),
            (tid, head.tid),
            (period, head.period_ns),
            (stack, head.stack),
            (samples, head.samples),
            (weight, head.weight),
            (at, depth),
        ] {
            column.put(Some(value));
        }
    }
}

fn text(text: &str) -> ByteArray {
    ByteArray::from(text.as_bytes().to_vec())
}
