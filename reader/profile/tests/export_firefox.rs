//! The Firefox Profiler export, read back as the viewer reads it: every column has its length, every
//! reference its target, every caller comes before the called.

mod export;

use export::{FIRST_SAMPLE, Folded, element, make, make_empty};
use selfwind_profile::output::{Format, export};
use serde_json::Value;

/// A table of a document: columns of equal length.
struct Table<'a>(&'a Value);

impl<'a> Table<'a> {
    /// Checks that the table has these columns and no others.
    fn new(table: &'a Value, columns: &[&str]) -> Self {
        let object = table.as_object().unwrap();
        for (name, column) in object.iter().filter(|(_, column)| column.is_array()) {
            assert_eq!(column.as_array().unwrap().len() as u64, table["length"].as_u64().unwrap(), "{name}");
        }
        let mut found: Vec<_> =
            object.iter().filter(|(_, c)| c.is_array()).map(|(name, _)| &**name).collect();
        let mut columns = columns.to_vec();
        found.sort_unstable();
        columns.sort_unstable();
        assert_eq!(found, columns);
        Table(table)
    }

    fn len(&self) -> usize {
        self.0["length"].as_u64().unwrap() as usize
    }

    fn get(&self, column: &str, row: usize) -> &'a Value {
        &self.0[column].as_array().unwrap()[row]
    }

    /// A reference to a row of a table of this length; null and -1 are none.
    fn reference(&self, column: &str, row: usize, len: usize) -> Option<usize> {
        let value = self.get(column, row);
        if value.is_null() || *value == -1 {
            return None;
        }
        let target = value.as_u64().unwrap() as usize;
        assert!(target < len, "{column}[{row}] = {target} of {len}");
        Some(target)
    }
}

/// The shared tables of a document, checked.
struct Shared<'a> {
    stacks: Table<'a>,
    frames: Table<'a>,
    funcs: Table<'a>,
    symbols: Table<'a>,
    sources: Table<'a>,
    strings: &'a [Value],
}

impl<'a> Shared<'a> {
    fn new(document: &'a Value) -> Self {
        let shared = &document["shared"];
        let libs = document["libs"].as_array().unwrap().len();
        let tables = Shared {
            stacks: Table::new(&shared["stackTable"], &["frame", "prefix"]),
            frames: Table::new(
                &shared["frameTable"],
                &[
                    "address",
                    "inlineDepth",
                    "category",
                    "subcategory",
                    "func",
                    "nativeSymbol",
                    "innerWindowID",
                    "line",
                    "column",
                ],
            ),
            funcs: Table::new(
                &shared["funcTable"],
                &["name", "isJS", "relevantForJS", "resource", "source", "lineNumber", "columnNumber"],
            ),
            symbols: Table::new(&shared["nativeSymbols"], &["libIndex", "address", "name", "functionSize"]),
            sources: Table::new(&shared["sources"], &["id", "filename"]),
            strings: shared["stringArray"].as_array().unwrap(),
        };
        let resources = Table::new(&shared["resourceTable"], &["lib", "name", "host", "type"]);
        let strings = tables.strings.len();
        let every = |table: &Table, column: &str, len| {
            for row in 0..table.len() {
                table.reference(column, row, len);
            }
        };
        every(&tables.stacks, "frame", tables.frames.len());
        every(&tables.frames, "func", tables.funcs.len());
        every(&tables.frames, "nativeSymbol", tables.symbols.len());
        every(&tables.frames, "category", document["meta"]["categories"].as_array().unwrap().len());
        every(&tables.funcs, "name", strings);
        every(&tables.funcs, "resource", resources.len());
        every(&tables.funcs, "source", tables.sources.len());
        every(&tables.symbols, "libIndex", libs);
        every(&tables.symbols, "name", strings);
        every(&tables.sources, "filename", strings);
        every(&resources, "lib", libs);
        every(&resources, "name", strings);
        tables
    }

    fn text(&self, index: usize) -> &'a str {
        self.strings[index].as_str().unwrap()
    }

    fn func(&self, frame: usize) -> usize {
        self.frames.reference("func", frame, self.funcs.len()).unwrap()
    }

    fn function_name(&self, func: usize) -> &'a str {
        self.text(self.funcs.reference("name", func, self.strings.len()).unwrap())
    }

    /// The frames of a stack, leaf first.
    fn stack(&self, stack: usize) -> Vec<usize> {
        let mut frames = Vec::new();
        let mut row = Some(stack);
        while let Some(stack) = row {
            frames.push(self.stacks.reference("frame", stack, self.frames.len()).unwrap());
            row = self.stacks.reference("prefix", stack, stack); // a caller comes before the called
        }
        frames
    }
}

/// The stacks of all threads. Times must go up.
fn fold(document: &Value, shared: &Shared<'_>) -> Folded {
    let mut folded = Folded::new();
    for thread in document["threads"].as_array().unwrap() {
        let samples = Table::new(&thread["samples"], &["stack", "time", "weight", "threadCPUDelta"]);
        assert_eq!(thread["samples"]["weightType"], "samples");
        let pid = thread["pid"].as_str().unwrap().split('.').next().unwrap();
        let name = element(thread["name"].as_str().unwrap());
        let mut last = -1.0;
        for row in 0..samples.len() {
            let mut stack = format!("{name}-{pid}/{}", thread["tid"]);
            let leaf = samples.reference("stack", row, shared.stacks.len()).unwrap();
            for &frame in shared.stack(leaf).iter().rev() {
                stack = stack + ";" + &element(shared.function_name(shared.func(frame)));
            }
            *folded.entry(stack).or_default() += samples.get("weight", row).as_u64().unwrap();
            let time = samples.get("time", row).as_f64().unwrap();
            assert!(time >= last, "{time} after {last}");
            last = time;
        }
    }
    folded
}

#[test]
fn nothing_is_lost() {
    let made = make("firefox");
    let document: Value = serde_json::from_slice(&made.export(Format::Firefox)).unwrap();
    let shared = Shared::new(&document);
    let folded = fold(&document, &shared);
    assert_eq!(folded.values().sum::<u64>(), made.weight);
    assert_eq!(folded, made.folded);
    check_inlines(&shared);
    let lib = &document["libs"][0];
    assert_eq!((&lib["name"], &lib["debugName"]), (&"mixer".into(), &"mixer".into()));
    assert_eq!((lib["breakpadId"].as_str().unwrap().len(), lib["codeId"].as_str().unwrap().len()), (33, 40));
    let meta = &document["meta"];
    assert_eq!((&meta["preprocessedProfileVersion"], &meta["interval"]), (&60.into(), &10.0.into()));
    assert_eq!((&meta["symbolicated"], &meta["categories"][0]["color"]), (&true.into(), &"grey".into()));
    let threads = document["threads"].as_array().unwrap();
    let mut pids: Vec<_> = threads.iter().map(|thread| thread["pid"].as_str().unwrap()).collect();
    pids.dedup();
    assert_eq!(pids, ["100", "100.1", "102"], "a process after exec is another");
    check_lost(&document, &shared);
    check_times(&document);
}

/// Frames of one address: depths from 0 on, one symbol, that of the outermost function.
fn check_inlines(shared: &Shared<'_>) {
    let frames = &shared.frames;
    let mut deepest = 0;
    for row in 0..frames.len() {
        let depth = frames.get("inlineDepth", row).as_u64().unwrap();
        deepest = deepest.max(depth);
        if depth > 0 {
            assert_eq!(frames.get("inlineDepth", row - 1), depth - 1);
            for column in ["address", "nativeSymbol"] {
                assert_eq!(frames.get(column, row), frames.get(column, row - 1));
            }
        } else if let Some(symbol) = frames.reference("nativeSymbol", row, shared.symbols.len()) {
            let name = shared.symbols.reference("name", symbol, shared.strings.len()).unwrap();
            assert_eq!(shared.text(name), shared.function_name(shared.func(row)));
            assert!(frames.get("address", row).as_u64() >= shared.symbols.get("address", symbol).as_u64());
        } else {
            assert_eq!(*frames.get("address", row), -1);
        }
        if ["stir", "twice", "mix"].contains(&shared.function_name(shared.func(row))) {
            assert!(frames.get("line", row).as_u64().unwrap() > 0);
            let source = shared.funcs.reference("source", shared.func(row), shared.sources.len()).unwrap();
            let file = shared.sources.reference("filename", source, shared.strings.len()).unwrap();
            assert!(shared.text(file).ends_with("mixer.c"));
        }
    }
    assert!(deepest >= 3, "{deepest}");
}

/// Every sample at its own time, with the CPU time that it stands for.
fn check_times(document: &Value) {
    let mut times = Vec::new();
    for thread in document["threads"].as_array().unwrap() {
        let samples = &thread["samples"];
        let column = |name: &str| samples[name].as_array().unwrap().iter();
        times.extend(column("time").map(|time| (time.as_f64().unwrap() * 1e6).round() as u64));
        let period = if thread["pid"] == "102" { 5_000_000 } else { 10_000_000 };
        for (cpu, weight) in column("threadCPUDelta").zip(column("weight")) {
            assert_eq!(cpu.as_u64().unwrap(), weight.as_u64().unwrap() * period);
        }
        assert_eq!(thread["registerTime"], samples["time"][0]);
    }
    times.sort_unstable();
    let expected: Vec<u64> = (0..times.len() as u64).map(|step| FIRST_SAMPLE + (step ^ 1)).collect();
    assert!(times.iter().all(|time| expected.contains(time)), "{times:?}");
    times.dedup();
    assert_eq!(times.len(), expected.len());
}

/// Losses are marked on their process, over the span in which they were counted.
fn check_lost(document: &Value, shared: &Shared<'_>) {
    let threads = document["threads"].as_array().unwrap();
    let selected = document["meta"]["initialSelectedThreads"][0].as_u64().unwrap() as usize;
    let weight = |thread: &Value| -> u64 {
        thread["samples"]["weight"].as_array().unwrap().iter().map(|weight| weight.as_u64().unwrap()).sum()
    };
    assert_eq!(weight(&threads[selected]), threads.iter().map(weight).max().unwrap());
    for thread in threads {
        let markers =
            Table::new(&thread["markers"], &["data", "name", "startTime", "endTime", "phase", "category"]);
        assert_eq!(markers.len(), usize::from(thread["pid"] == "102"));
        if markers.len() > 0 {
            let data = markers.get("data", 0);
            assert_eq!(
                (&data["cause"], &data["samples"], &data["weight"]),
                (&"pool_full".into(), &6.into(), &11.into())
            );
            assert_eq!(data["type"], document["meta"]["markerSchema"][0]["name"]);
            let name = markers.reference("name", 0, shared.strings.len()).unwrap();
            assert_eq!(shared.text(name), "Lost samples");
            assert_eq!(markers.get("startTime", 0).as_f64(), Some(0.0));
            assert_eq!(markers.get("endTime", 0).as_f64(), Some(90.0 / 1e6));
        }
    }
}

#[test]
fn a_profile_without_samples_can_be_opened() {
    let mut out = Vec::new();
    export(Format::Firefox, &make_empty("firefox"), &mut out).unwrap();
    let document: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(document["threads"].as_array().unwrap().len(), 1);
    assert_eq!(fold(&document, &Shared::new(&document)), Folded::new());
}
