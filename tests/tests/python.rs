//! Python functions among native frames: at the right positions, with the right shares, in all installed versions, and
//! no function appears that was not called.
//!
//! Oracles: a program that prints the shares of its functions, and one whose every stack must be a path of the call
//! graph that it prints.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use selfwind_tests::binary::selfwind;
use selfwind_tests::folded::Folded;
use selfwind_tests::outcome::{Outcome, run};
use selfwind_tests::python_stack::{GAP, MARK, function, functions};
use selfwind_tests::pythons::pythons;
use selfwind_tests::recording::{Recorder, Recording, assert_named_in_every_format, folded, read};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::target::Target;

fn script(name: &str) -> String {
    format!("{}/targets/{name}.py", env!("CARGO_MANIFEST_DIR"))
}

/// An interpreter whose evaluation loop has a name. A build of 3.14 may have a C function per instruction, without symbols.
fn symbolized() -> (u32, PathBuf) {
    pythons().into_iter().rfind(|(minor, _)| *minor < 14).expect("there is one")
}

fn weight_with(folded: &Folded, name: &str) -> u64 {
    let has = |stack: &[String]| functions(stack).contains(&name);
    folded.stacks.iter().filter(|(stack, _)| has(stack)).map(|(_, weight)| weight).sum()
}

/// Weight of the placeholders for unreadable frames.
fn weight_of_gaps(folded: &Folded) -> u64 {
    let has_gap = |stack: &[String]| stack.iter().any(|element| element.starts_with(GAP));
    folded.stacks.iter().filter(|(stack, _)| has_gap(stack)).map(|(_, weight)| weight).sum()
}

fn record_shares(recorder: &Recorder, python: &Path, seconds: &str) -> Recording {
    let library = Target::c("python_callback").shared("python_callback.so").build();
    let arguments = [script("python_shares"), library.display().to_string(), seconds.to_owned()];
    let recording = recorder.record(python, &arguments);
    let Outcome { status, stdout, .. } = &recording.outcome;
    assert!(*status == 0 && stdout.starts_with("{\"recursing\": 10"), "{:?}", recording.outcome);
    recording.assert_adds_up();
    recording
}

#[test]
fn shares_are_those_of_the_program() {
    for (minor, python) in pythons() {
        // The threads' timers tick with the kernel's HZ: a quarter of the samples, often, with twice the spread.
        for (source, points) in [("cpu", 4.0), ("perf", 2.0)] {
            let recording = record_shares(&Recorder::at(997).event(source), &python, "3");
            let folded = recording.folded();
            let what = format!("3.{minor} {source} {}", python.display());
            let shares = [
                ("recursing", 10),
                ("generating", 15),
                ("in_thread", 20),
                ("in_library", 25),
                ("called_back", 30),
            ];
            let sum: u64 = shares.iter().map(|(name, _)| weight_with(&folded, name)).sum();
            assert!(sum > 2000, "{what}: {sum} of {}", folded.total());
            for (name, percent) in shares {
                let share = weight_with(&folded, name) as f64 / sum as f64 * 100.0;
                assert!((share - f64::from(percent)).abs() <= points, "{what}: {name} has {share:.1} %");
            }
            assert!(weight_of_gaps(&folded) <= folded.total() / 500, "{what}: {folded:?}");
            assert_in_place(&what, &folded);
        }
    }
}

/// Asserts that each Python function appears where it was called, with native frames between them where there are some.
fn assert_in_place(what: &str, folded: &Folded) {
    let position = |stack: &[String], name: &str| stack.iter().position(|element| element == name);
    let python = |stack: &[String], name: &str| {
        stack.iter().position(|element| function(element).is_some_and(|function| function == name))
    };
    for (stack, _) in &folded.stacks {
        let called = functions(stack);
        if called.contains(&"recursing") && called.contains(&"burn") {
            let depth = called.iter().filter(|function| **function == "recursing").count();
            assert!(depth == 21, "{what}: {depth} deep: {stack:?}");
        }
        if let Some(inner) = python(stack, "called_back") {
            let call = position(stack, "call_back");
            let main = python(stack, "main").expect("it is called by main");
            assert!(call.is_some_and(|call| main < call && call < inner), "{what}: {stack:?}");
        }
        if let Some(inner) = python(stack, "generating") {
            assert!(python(stack, "consuming").is_some_and(|outer| outer < inner), "{what}: {stack:?}");
        }
        if called.contains(&"in_thread") {
            assert!(!called.contains(&"main"), "{what}: another thread's: {stack:?}");
        }
        // Before a call has passed its PLT entry, there is no Python function yet.
        let is_internal =
            |element: &&String| element.starts_with("_PyEval_EvalFrame") && !element.ends_with("@plt");
        let internal = stack.iter().find(is_internal);
        assert!(called.is_empty() || internal.is_none(), "{what}: {stack:?}");
    }
}

/// Every stack is a path of the graph that the program has printed.
fn assert_possible(what: &str, minor: u32, recording: &Recording, folded: &Folded) {
    assert_eq!(recording.outcome.status, 0, "{what}: {:?}", recording.outcome);
    let edges: BTreeSet<(&str, &str)> =
        recording.outcome.stdout.lines().filter_map(|line| edge(minor, line)).collect();
    assert!(edges.len() > 60, "{what}: {edges:?}");
    let mut looked_at = 0;
    for (stack, weight) in &folded.stacks {
        let called = functions(stack);
        // The interpreter's own start and end run other files.
        let is_foreign = |element: &String| element.ends_with(MARK) && !is_of_the_script(element);
        if called.is_empty() || stack.iter().any(is_foreign) {
            continue;
        }
        looked_at += weight;
        let is_root = ["<module>", "in_thread"].contains(&called[0]) || called[0].starts_with(GAP);
        assert!(is_root, "{what}: {stack:?}");
        for pair in called.windows(2).filter(|pair| !pair.iter().any(|name| name.starts_with(GAP))) {
            assert!(edges.contains(&(pair[0], pair[1])), "{what}: {pair:?} in {stack:?}");
        }
    }
    assert!(looked_at * 10 >= folded.total() * 9, "{what}: {looked_at} of {}", folded.total());
}

#[test]
fn no_stack_is_impossible() {
    // Of five interpreters a million samples together.
    let seconds = if std::env::var_os("SELFWIND_LONG").is_some() { "25" } else { "3" };
    for (minor, python) in pythons() {
        // A timer tick stands for 40 periods: of a few hundred samples two or three may have placeholders.
        for (source, gaps) in [("cpu", 100), ("perf", 500)] {
            let what = format!("3.{minor} {source} {}", python.display());
            let recording =
                Recorder::at(9973).event(source).record(&python, &[script("python_graph"), seconds.into()]);
            recording.assert_adds_up();
            let folded = recording.folded();
            assert_possible(&what, minor, &recording, &folded);
            let weight = weight_of_gaps(&folded);
            let samples = recording.stats().number("samples");
            println!("{what}: {samples} samples, weight {} with a gap of {}", weight, folded.total());
            assert!(weight <= folded.total() / gaps, "{what}: gaps are {weight} of {}", folded.total());
        }
    }
}

/// Allocations, most of which are recognised instead of walked, in turn with samples of the same thread.
#[test]
fn no_stack_of_an_allocation_is_impossible() {
    for (minor, python) in pythons() {
        let what = format!("3.{minor} {}", python.display());
        let recorder = Recorder::at(9973).event("cpu,alloc:all").env("SELFWIND_POOL", "128M");
        let recording = recorder.record(&python, &[script("python_graph"), "3".into()]);
        recording.assert_adds_up();
        for event in ["cpu", "alloc_objects"] {
            let what = format!("{what} {event}");
            let flags = ["export", "-f", "folded", "--event", event];
            let mut folded = Folded::parse(&read(&flags, &recording.file));
            // Ticks within the agent count for the next sample.
            folded.stacks.retain(|(stack, _)| !stack.iter().any(|element| element == "[since last sample]"));
            assert_possible(&what, minor, &recording, &folded);
            let gaps = weight_of_gaps(&folded);
            println!("{what}: {gaps} of {} with a gap", folded.total());
            assert!(gaps <= folded.total() / 100, "{what}: gaps are {gaps} of {}", folded.total());
        }
    }
}

/// Threads that wait for their turn, anywhere in their code; read from outside.
#[test]
fn no_stack_of_a_blocked_thread_is_impossible() {
    let seconds = if std::env::var_os("SELFWIND_LONG").is_some() { "60" } else { "3" };
    for (minor, python) in pythons().into_iter().filter(|(minor, _)| *minor >= 10) {
        let what = format!("3.{minor} {}", python.display());
        let arguments = [script("python_graph"), seconds.into(), "4".into()];
        let recording = Recorder::at(9973).event("wall").record(&python, &arguments);
        recording.assert_adds_up();
        let mut folded = recording.folded();
        folded.stacks.retain(|(stack, _)| stack.last().is_some_and(|leaf| leaf.starts_with("[blocked")));
        assert_possible(&what, minor, &recording, &folded);
        let (gaps, samples) = (weight_of_gaps(&folded), recording.stats().detail(&["sources", "wall"]));
        println!("{what}: {samples} waits, {gaps} us of {} with a gap", folded.total());
        assert!(gaps <= folded.total() / 500, "{what}: gaps are {gaps} of {}", folded.total());
    }
}

/// Stacks of blocked threads, which the recorder reads from outside. In 3.9 a thread's Python frames cannot be found so.
#[test]
fn waits_have_their_functions() {
    let mut have_all = false;
    for (minor, python) in pythons() {
        let what = format!("3.{minor} {}", python.display());
        let recording = Recorder::at(499).event("wall").record(&python, &[script("python_waits")]);
        assert_eq!(recording.outcome.status, 0, "{what}: {:?}", recording.outcome);
        let mut blocked = recording.folded();
        blocked.stacks.retain(|(stack, _)| stack.last().is_some_and(|leaf| leaf.starts_with("[blocked")));
        assert_eq!(weight_of_gaps(&blocked), 0, "{what}: {blocked:#?}");
        let is_truncated = |stack: &[String]| stack.iter().any(|element| element.starts_with("[truncated"));
        assert!(!blocked.stacks.iter().any(|(stack, _)| is_truncated(stack)), "{what}: {blocked:#?}");
        let thread = match minor {
            ..11 => "_bootstrap _bootstrap_inner run locked",
            _ => "Thread._bootstrap Thread._bootstrap_inner Thread.run locked",
        };
        let said = |name: &str| -> u64 {
            let mut lines = recording.outcome.stdout.lines().filter_map(|line| line.split_once(' '));
            let (_, time) = lines.find(|(other, _)| *other == name).expect("all are printed");
            time.parse().expect("a number")
        };
        for (name, chain) in [
            ("recursing", "<module> main recursing recursing recursing recursing sleep"),
            ("generating", "<module> main consuming generating sleep"),
            ("called_back", "<module> main sorting called_back sleep"),
            ("locked", thread),
            ("in_child", "<module> main forking in_child sleep"),
        ] {
            let is_it = |(stack, _): &&(Vec<String>, u64)| functions(stack).join(" ") == chain;
            let found: u64 = blocked.stacks.iter().filter(is_it).map(|(_, weight)| weight).sum();
            let expected = if minor < 10 { 0 } else { said(name) };
            // When the recorder gets no processor for a while, it cannot divide that time between one wait and the next.
            let range = expected * 17 / 20..=expected * 23 / 20;
            assert!(range.contains(&found), "{what}: {name}: {found} us of {expected}: {blocked:#?}");
        }
        // Each is where it belongs among the native frames.
        let mut sorted = blocked.stacks.iter().map(|(stack, _)| stack);
        let place = |stack: &[String], name: &str| stack.iter().position(|element| element.starts_with(name));
        let Some(stack) = sorted.find(|stack| functions(stack).contains(&"called_back")) else { continue };
        let places = ["sorting (", "builtin_sorted", "called_back (", "sleep (", "time_sleep"];
        let places = places.map(|name| place(stack, name));
        // A stripped build has no names of native functions.
        let known: Vec<_> = places.into_iter().flatten().collect();
        assert!(known.is_sorted() && known.len() >= 3, "{what}: {stack:?}");
        have_all |= known.len() == 5;
    }
    assert!(have_all, "no interpreter with symbols");
}

/// The handler reads certain memory without a probe. This program unmaps such memory at once.
#[test]
fn what_is_freed_at_once_is_not_read() {
    for (minor, python) in pythons() {
        // Of the memory, compiling the text takes most.
        for (source, part) in [("cpu", 2), ("perf", 2), ("alloc:all", 10)] {
            let what = format!("3.{minor} {source} {}", python.display());
            // Without pools, objects are allocated by malloc one by one, and freed.
            let recorder = Recorder::at(9973).event(source).env("PYTHONMALLOC", "malloc");
            let recording = recorder.record(&python, &[script("python_mortal"), "2".into()]);
            assert_eq!(recording.outcome.status, 0, "{what}: {:?}", recording.outcome);
            recording.assert_adds_up();
            let printed = &recording.outcome.stdout;
            let edges: BTreeSet<(&str, &str)> =
                printed.lines().filter_map(|line| line.split_once(' ')).collect();
            // The interpreter's start runs texts, too.
            let is_own = |element: &&String| {
                element.contains(" (python_mortal.py:") || element.starts_with("mortal (<string>:")
            };
            let folded = recording.folded();
            let mut looked_at = 0;
            for (stack, weight) in &folded.stacks {
                let called: Vec<&str> =
                    stack.iter().filter(is_own).filter_map(|element| function(element)).collect();
                let has_gap = stack.iter().any(|element| element.starts_with(GAP));
                if !has_gap && called.len() > 1 {
                    looked_at += weight;
                    let is_edge = |pair: &[&str]| edges.contains(&(pair[0], pair[1]));
                    assert!(called.windows(2).all(is_edge), "{what}: {stack:?}");
                }
            }
            println!("{what}: {looked_at} of {}", folded.total());
            assert!(looked_at * part > folded.total(), "{what}: {looked_at} of {}", folded.total());
        }
    }
}

/// The first interpreter is entered by the same thread again, after samples of it.
#[test]
fn sub_interpreters_have_their_functions() {
    for (minor, python) in pythons() {
        let recording = Recorder::at(997).record(&python, &[script("python_sub_interpreter")]);
        assert_eq!(recording.outcome.status, 0, "3.{minor}: {:?}", recording.outcome);
        let folded = recording.folded();
        let path = ["<module>", "main", "<module>", "sub_main", "sub_leaf"];
        let is_right = |stack: &[String]| functions(stack) == path;
        let right: u64 =
            folded.stacks.iter().filter(|(stack, _)| is_right(stack)).map(|(_, weight)| weight).sum();
        // In 3.9 nothing on the native stack tells whose call is whose: a mark, no wrong frame.
        let is_marked = |stack: &[String]| functions(stack).iter().all(|name| name.starts_with(GAP));
        let marked: u64 =
            folded.stacks.iter().filter(|(stack, _)| is_marked(stack)).map(|(_, weight)| weight).sum();
        let expected = if minor == 9 { marked } else { right };
        assert!(expected * 10 >= folded.total() * 6, "3.{minor}: {expected}: {folded:?}");
        let outside = weight_with(&folded, "after");
        assert!(outside * 10 >= folded.total(), "3.{minor}: {outside}: {folded:?}");
    }
}

/// greenlet changes links between frames, so that a chain may end anywhere.
#[test]
fn a_chain_that_ends_early_is_not_followed() {
    for (minor, python) in pythons().into_iter().filter(|(minor, _)| matches!(minor, 12 | 13)) {
        for source in ["perf", "alloc:all"] {
            let recorder = Recorder::at(9973).event(source);
            let recording = recorder.record(&python, &[script("python_unlinked"), "1".into()]);
            let Outcome { status, stdout, .. } = &recording.outcome;
            assert!(*status == 0 && stdout == "done\n", "3.{minor} {source}: {:?}", recording.outcome);
            recording.assert_adds_up();
        }
    }
}

/// A thread that has no state of its own runs with that of the main thread, which computes meanwhile.
#[test]
fn a_state_that_another_thread_runs_does_no_harm() {
    let library = Target::c("python_handed").shared("python_handed.so").build();
    // Later versions compare the stack pointer with the bounds of the state's own thread.
    for (minor, python) in pythons().into_iter().filter(|(minor, _)| *minor < 14) {
        let arguments = [script("python_handed"), "2".into(), library.display().to_string()];
        let recording = Recorder::at(9973).event("perf").record(&python, &arguments);
        assert_eq!(recording.outcome.status, 0, "3.{minor}: {:?}", recording.outcome);
        let folded = recording.folded();
        let hands = |stack: &[String]| stack.iter().any(|element| element == "hand");
        let mut weights = [0, 0];
        for (stack, weight) in folded.stacks.iter().filter(|(stack, _)| hands(stack)) {
            let is_wrong = functions(stack).iter().any(|name| matches!(*name, "work" | "deep" | "mortal"));
            weights[usize::from(is_wrong)] += weight;
        }
        let [right, wrong] = weights;
        assert!(right * 4 > folded.total(), "3.{minor}: {right} of {}", folded.total());
        // It may be read while the other thread changes it.
        assert!(wrong == 0, "3.{minor}: {wrong} of {right}");
    }
}

/// An edge of the call graph. Before 3.11 a code object does not know its class.
fn edge<'l>(minor: u32, line: &'l str) -> Option<(&'l str, &'l str)> {
    let (caller, callee) = line.split_once(' ')?;
    let known = |name: &'l str| name.rsplit_once('.').filter(|_| minor < 11).map_or(name, |(_, name)| name);
    Some((known(caller), known(callee)))
}

/// Whether it is a function of the graph: in its file, or compiled from a string.
fn is_of_the_script(element: &str) -> bool {
    element.contains(" (python_graph.py:") || element.contains(" (<string>:")
}

#[test]
fn views_show_lines_and_the_interpreter_if_asked() {
    let (_, python) = symbolized();
    let recording = record_shares(&Recorder::at(997), &python, "1");
    let export = |flags: &[&str]| {
        Folded::parse(&read(&[&["export", "-f", "folded"], flags].concat(), &recording.file))
    };
    let lines = |folded: &Folded| {
        let burning = folded.stacks.iter().flat_map(|(stack, _)| stack).filter(|e| e.starts_with("burn ("));
        burning.cloned().collect::<BTreeSet<_>>()
    };
    let by_function = export(&[]);
    assert_eq!(lines(&by_function), BTreeSet::from(["burn (python_shares.py:16)_[py]".into()]));
    let by_line = export(&["--python-line"]);
    let expected = ["19", "20"].map(|line| format!("burn (python_shares.py:{line})_[py]"));
    assert!(expected.iter().all(|line| lines(&by_line).contains(line)), "{:?}", lines(&by_line));
    let is_loop = |folded: &Folded| {
        folded.stacks.iter().flat_map(|(stack, _)| stack).any(|e| e == "_PyEval_EvalFrameDefault")
    };
    assert!(!is_loop(&by_function) && is_loop(&export(&["--python-internals"])));
    assert_eq!(by_function.total(), by_line.total());
    assert_named_in_every_format(&recording.file, "called_back");
    let report = run(Command::new(selfwind()).arg("report").arg(&recording.file)).stdout;
    assert!(report.contains("burn (python_shares.py:16)"), "{report}");
}

#[test]
fn allocations_and_waits_have_their_functions() {
    for (minor, python) in pythons() {
        let recorder = Recorder::at(99).event("alloc:all,lock").env("SELFWIND_POOL", "128M");
        let recording = recorder.record(&python, &[script("python_allocates")]);
        assert_eq!(recording.outcome.status, 0, "3.{minor}: {:?}", recording.outcome);
        let of = |event: &str| {
            Folded::parse(&read(&["export", "-f", "folded", "--event", event], &recording.file))
        };
        let bytes: u64 = recording.outcome.stdout.trim().parse().expect("a number");
        let allocated = of("alloc_space");
        for name in ["allocating", "keeping"] {
            let found = weight_with(&allocated, name);
            assert!(found >= bytes && found < bytes + bytes / 50, "3.{minor}: {name} {found} of {bytes}");
        }
        // 0.3 s, in nanoseconds.
        let waited = weight_with(&of("delay"), "waiting");
        assert!((250_000_000..400_000_000).contains(&waited), "3.{minor}: {waited} ns: {:?}", of("delay"));
    }
}

/// Stacks that are the same but for one line, and functions that differ from earlier ones in nothing but the text of their names.
#[test]
fn functions_in_reused_memory_have_their_own_names() {
    for (minor, python) in pythons() {
        let recorder = Recorder::at(99).event("alloc:all").env("SELFWIND_POOL", "128M");
        let recording = recorder.record(&python, &[script("python_reborn"), "100".into()]);
        assert_eq!(recording.outcome.status, 0, "3.{minor}: {:?}", recording.outcome);
        let flags = ["export", "-f", "folded", "--event", "alloc_space", "--python-line"];
        let folded = Folded::parse(&read(&flags, &recording.file));
        let printed = recording.outcome.stdout.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let mut addresses = Vec::new();
        for line in printed {
            let [generation, bytes, address] = line[..] else { panic!("3.{minor}: {line:?}") };
            addresses.push(address.to_owned());
            let bytes: u64 = bytes.parse().expect("a number");
            let inner = |line| format!("inner_{generation} (python_reborn.py:{line})_[py]");
            let outer = format!("outer_{generation} (python_reborn.py:18)_[py]");
            let moved = format!("moved (moved_{generation}:22)_[py]");
            for (element, caller, times) in [
                (inner(13), outer.as_str(), 2),
                (inner(14), outer.as_str(), 1),
                (moved, "generation (python_reborn.py:35)_[py]", 1),
            ] {
                let is_of =
                    |stack: &[String]| stack.contains(&element) && stack.iter().any(|other| other == caller);
                let stacks = folded.stacks.iter().filter(|(stack, _)| is_of(stack));
                let found: u64 = stacks.map(|(_, weight)| weight).sum();
                // The objects themselves are small.
                let expected = bytes * times..bytes * times + bytes / 50;
                assert!(expected.contains(&found), "3.{minor}: {element}: {found} of {expected:?}");
            }
        }
        let count = addresses.len();
        addresses.sort_unstable();
        addresses.dedup();
        assert!(
            count == 100 && addresses.len() <= 50,
            "3.{minor}: memory is not taken again: {}",
            addresses.len()
        );
    }
}

/// Counts of allocations below native frames that are the same, by the functions above, which an interpreter runs.
#[test]
fn allocations_that_recur_are_counted_for_their_functions() {
    for (minor, python) in pythons() {
        for event in ["alloc:all", "cpu,alloc:all"] {
            let what = format!("3.{minor} {event}");
            let recorder = Recorder::at(997).event(event).env("SELFWIND_POOL", "128M");
            let recording = recorder.record(&python, &[script("python_recurs")]);
            assert_eq!(recording.outcome.status, 0, "{what}: {:?}", recording.outcome);
            let flags = ["export", "-f", "folded", "--event", "alloc_objects"];
            let folded = Folded::parse(&read(&flags, &recording.file));
            for line in recording.outcome.stdout.lines() {
                let (path, count) = line.rsplit_once(' ').expect("a number");
                let count: u64 = count.parse().expect("a number");
                let has_path = |stack: &[String]| {
                    // A thread's main function is called by the interpreter's own library.
                    functions(stack).join(" ").ends_with(path)
                };
                let of_path = folded.stacks.iter().filter(|(stack, _)| has_path(stack));
                let found: u64 = of_path.map(|(_, weight)| weight).sum();
                // The interpreter allocates, too, for frames and small objects.
                assert!((count..count + 20).contains(&found), "{what}: {path}: {found} of {count}");
            }
            let stats = recording.stats();
            let (bytes, samples) = (stats.number("bytes"), stats.number("samples"));
            println!("{what}: {bytes} bytes for {samples} samples");
            // A stack of its own takes 20 or more. In 3.9 each is written.
            assert!(minor < 10 || bytes < 12 * samples, "{what}: {bytes} bytes for {samples} samples");
        }
    }
}

/// Each of a large program's functions has its name.
#[test]
fn many_functions_have_their_names() {
    for (minor, python) in pythons() {
        let recorder = Recorder::at(99).event("alloc:16").env("SELFWIND_POOL", "128M");
        let recording = recorder.record(&python, &[script("python_many_functions")]);
        assert_eq!(recording.outcome.status, 0, "3.{minor}: {:?}", recording.outcome);
        let flags = ["export", "-f", "folded", "--event", "alloc_objects"];
        let folded = Folded::parse(&read(&flags, &recording.file));
        let named: BTreeSet<&str> = folded.stacks.iter().flat_map(|(stack, _)| functions(stack)).collect();
        let unnamed = (0..20_000).filter(|number| !named.contains(format!("function_{number}").as_str()));
        assert_eq!(unnamed.count(), 0, "3.{minor}");
    }
}

/// Reading the interpreter's memory probes it by a system call that may block signals; here no handler return restores
/// the mask.
#[test]
fn allocations_and_waits_leave_the_signal_mask_alone() {
    for (minor, python) in pythons() {
        for event in ["alloc:all,lock:all", "cpu,alloc:4K,lock:all"] {
            let recording = Recorder::at(499).event(event).record(&python, &[script("python_mask")]);
            assert_eq!(recording.outcome.stdout, "[[], []]\n", "3.{minor}, {event}: {:?}", recording.outcome);
        }
    }
}

/// Memory for the names of functions is made when handlers need it.
#[test]
fn children_take_memory_only_for_the_names_they_have() {
    for (minor, python) in pythons() {
        // The kernel's timers tick rarely on a busy machine; where there are events, they are used.
        let recording = Recorder::at(997).record(&python, &[script("python_child")]);
        let Outcome { status, stdout, .. } = &recording.outcome;
        let bytes: u64 = stdout.trim().parse().expect("a number");
        assert!(*status == 0 && (1..512 << 10).contains(&bytes), "3.{minor}: {bytes}");
        let folded = recording.folded();
        let gaps = weight_of_gaps(&folded);
        let found = (0..400).filter(|n| weight_with(&folded, &format!("one_of_many_functions_{n}")) > 0);
        let found = found.count();
        assert!(found > 200 && gaps * 100 <= folded.total(), "3.{minor}: {found}, {gaps}: {folded:#?}");
    }
}

#[test]
fn native_only_leaves_python_out() {
    let (_, python) = symbolized();
    let recording = record_shares(&Recorder::at(997).env("SELFWIND_NATIVE_ONLY", "1"), &python, "0.5");
    let folded = recording.folded();
    assert!(folded.stacks.iter().all(|(stack, _)| functions(stack).is_empty()), "{folded:?}");
    assert!(folded.inclusive("_PyEval_EvalFrameDefault") > 0, "{folded:?}");
}

#[test]
fn running_interpreters_are_attached_to() {
    /// By then the program is at work.
    const STARTED: Duration = Duration::from_millis(700);
    for (minor, python) in pythons() {
        let scratch = Scratch::new();
        let file = scratch.join("attached.data");
        let mut command = Command::new(&python);
        let command = command.args([script("python_graph"), "4".into()]).stdout(Stdio::null());
        let mut child = command.spawn().expect("it runs");
        std::thread::sleep(STARTED);
        let mut recorder = Command::new(selfwind());
        recorder.args(["record", "-q", "-F", "997", "-p", &child.id().to_string(), "-o"]).arg(&file);
        let outcome = run(recorder.env("XDG_RUNTIME_DIR", scratch.path()));
        assert_eq!(outcome.status, 0, "3.{minor}: {outcome:?}");
        assert!(child.wait().expect("our child").success());
        let folded = folded(&file);
        let main = weight_with(&folded, "main");
        assert!(main * 10 >= folded.total() * 8, "3.{minor}: {main} of {}: {folded:?}", folded.total());
    }
}
