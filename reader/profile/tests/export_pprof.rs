//! The pprof export, decoded by protoc with the fields of the public schema.

mod export;

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use export::{Folded, Made, PERIOD, STARTED, element, make, make_empty};
use selfwind_profile::output::{Format, export};
use selfwind_tests::skip::skip;

/// A message as protoc prints it: fields by name, in order.
#[derive(Debug, Default)]
struct Message(Vec<(String, Value)>);

#[derive(Debug)]
enum Value {
    Scalar(String),
    Message(Message),
}

impl Message {
    /// Parses lines up to the closing brace.
    fn parse<'a>(lines: &mut impl Iterator<Item = &'a str>) -> Self {
        let mut fields = Vec::new();
        while let Some(line) = lines.next().map(str::trim).filter(|&line| line != "}") {
            if let Some(name) = line.strip_suffix(" {") {
                fields.push((name.to_owned(), Value::Message(Message::parse(lines))));
            } else {
                let (name, value) = line.split_once(": ").unwrap();
                fields.push((name.to_owned(), Value::Scalar(value.to_owned())));
            }
        }
        Message(fields)
    }

    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Value> {
        self.0.iter().filter(move |(field, _)| field == name).map(|(_, value)| value)
    }

    fn messages<'a>(&'a self, name: &'a str) -> Vec<&'a Message> {
        let message = |value: &'a Value| match value {
            Value::Message(message) => message,
            Value::Scalar(text) => panic!("{name}: {text}"),
        };
        self.all(name).map(message).collect()
    }

    fn scalars<'a>(&'a self, name: &'a str) -> Vec<&'a str> {
        let scalar = |value: &'a Value| match value {
            Value::Scalar(text) => text.as_str(),
            Value::Message(message) => panic!("{name}: {message:?}"),
        };
        self.all(name).map(scalar).collect()
    }

    /// 0 if it is not there.
    fn number(&self, name: &str) -> usize {
        self.scalars(name).first().map_or(0, |text| text.parse().unwrap())
    }

    fn numbers(&self, name: &str) -> Vec<u64> {
        self.scalars(name).iter().map(|text| text.parse().unwrap()).collect()
    }

    fn flag(&self, name: &str) -> bool {
        self.scalars(name) == ["true"]
    }
}

/// A decoded profile.
struct Decoded {
    profile: Message,
    strings: Vec<String>,
}

impl Decoded {
    fn new(gzipped: &[u8]) -> Option<Self> {
        let text = protoc(&unpack(gzipped))?;
        let profile = Message::parse(&mut text.lines());
        assert!(profile.0.iter().all(|(name, _)| name.parse::<u32>().is_err()), "a field without a name");
        let strings = profile.scalars("string_table").into_iter().map(unquote).collect();
        Some(Decoded { profile, strings })
    }

    /// The text that a field refers to.
    fn text(&self, message: &Message, field: &str) -> &str {
        &self.strings[message.number(field)]
    }

    /// The entry of a list with this number, which are given from 1 on.
    fn find<'a>(list: &[&'a Message], id: u64) -> &'a Message {
        list.iter().find(|entry| entry.number("id") as u64 == id).unwrap_or_else(|| panic!("no {id}"))
    }

    fn label(&self, sample: &Message, key: &str) -> String {
        let labels = sample.messages("label");
        let label = labels.iter().find(|label| self.text(label, "key") == key).unwrap();
        match label.number("str") {
            0 => label.number("num").to_string(),
            index => self.strings[index].clone(),
        }
    }

    fn fold(&self) -> Folded {
        let (locations, functions) = (self.profile.messages("location"), self.profile.messages("function"));
        let mut folded = Folded::new();
        for sample in self.profile.messages("sample") {
            let thread = element(&self.label(sample, "thread"));
            let mut stack = format!("{thread}-{}/{}", self.label(sample, "pid"), self.label(sample, "tid"));
            for &id in sample.numbers("location_id").iter().rev() {
                for line in Self::find(&locations, id).messages("line").iter().rev() {
                    let function = Self::find(&functions, line.number("function_id") as u64);
                    stack = stack + ";" + &element(self.text(function, "name"));
                }
            }
            *folded.entry(stack).or_default() += sample.numbers("value")[0];
        }
        folded
    }
}

/// A quoted text of protoc.
fn unquote(text: &str) -> String {
    let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap();
    text.replace("\\n", "\n").replace("\\\"", "\"")
}

fn unpack(gzipped: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(gzipped).read_to_end(&mut bytes).unwrap();
    bytes
}

/// What protoc makes of an encoded profile; none if there is no protoc.
fn protoc(bytes: &[u8]) -> Option<String> {
    let mut protoc = Command::new("protoc");
    protoc
        .args([
            "--decode=Profile",
            "-I",
            concat!(env!("CARGO_MANIFEST_DIR"), "/tests/export"),
            "profile.proto",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = match protoc.spawn() {
        Ok(child) => child,
        Err(error) => {
            skip(format_args!("cannot run protoc (Debian: protobuf-compiler): {error}"));
            return None;
        }
    };
    let mut stdin = child.stdin.take().unwrap();
    let bytes = bytes.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(&bytes));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success(), "protoc cannot decode the profile");
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn nothing_is_lost() {
    let made = make("pprof");
    let Some(decoded) = Decoded::new(&made.export(Format::Pprof)) else { return };
    let folded = decoded.fold();
    assert_eq!(folded.values().sum::<u64>(), made.weight);
    assert_eq!(folded, made.folded);
    check_head(&decoded);
    check_mapping(&decoded, &made);
}

fn check_head(decoded: &Decoded) {
    let profile = &decoded.profile;
    let types: Vec<_> = profile
        .messages("sample_type")
        .iter()
        .map(|value| (decoded.text(value, "type"), decoded.text(value, "unit")))
        .collect();
    assert_eq!(types, [("samples", "count"), ("cpu", "nanoseconds")]);
    assert_eq!(decoded.text(profile.messages("period_type")[0], "type"), "cpu");
    assert_eq!(decoded.text(profile, "default_sample_type"), "cpu");
    assert_eq!((profile.number("period") as u64, profile.number("time_nanos") as u64), (PERIOD, STARTED));
    assert_eq!(profile.number("duration_nanos"), 99);
    let comments: Vec<_> =
        profile.numbers("comment").iter().map(|&c| &*decoded.strings[c as usize]).collect();
    assert_eq!(comments[0], "command: mixer a \"b\" ");
    assert!(comments.iter().any(|comment| comment.contains("lost samples: 6 (pool_full 6)")), "{comments:?}");
    for sample in profile.messages("sample") {
        // The child did not say its period: 200 samples per second were asked for.
        let period = if decoded.label(sample, "pid") == "102" { 5_000_000 } else { PERIOD };
        let values = sample.numbers("value");
        assert_eq!(values[1], values[0] * period);
    }
}

fn check_mapping(decoded: &Decoded, made: &Made) {
    let mappings = decoded.profile.messages("mapping");
    let [mapping] = mappings[..] else { panic!("one file: {mappings:?}") };
    let program = made.path.with_file_name("mixer");
    assert_eq!(decoded.text(mapping, "filename"), program.to_str().unwrap());
    let bytes = std::fs::read(&program).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let id = object::Object::build_id(&file).unwrap().unwrap();
    let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(decoded.text(mapping, "build_id"), id);
    assert!(
        ["has_functions", "has_filenames", "has_line_numbers", "has_inline_frames"]
            .iter()
            .all(|f| mapping.flag(f))
    );
    let functions = decoded.profile.messages("function");
    let mut inlined = 0;
    for location in decoded.profile.messages("location") {
        let lines = location.messages("line");
        inlined += lines.len() - 1;
        if location.number("mapping_id") == 0 {
            continue;
        }
        assert!(location.number("address") < mapping.number("memory_limit"));
        for line in lines {
            let function = Decoded::find(&functions, line.number("function_id") as u64);
            let file = decoded.text(function, "filename");
            // Code that the compiler made up is on line 0.
            assert!(file.ends_with("mixer.c") || file.is_empty() || file.contains("/usr/"), "{file}");
        }
    }
    assert!(inlined > 20, "{inlined}");
}

#[test]
fn a_profile_without_samples_is_one_too() {
    let mut out = Vec::new();
    export(Format::Pprof, &make_empty("pprof"), &mut out).unwrap();
    let Some(decoded) = Decoded::new(&out) else { return };
    assert_eq!((decoded.fold(), decoded.profile.messages("sample_type").len()), (Folded::new(), 2));
}
