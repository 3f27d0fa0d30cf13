//! The agent finds the same modules as findshlibs: every module, its address and its build-id.

use std::collections::BTreeMap;
use std::path::Path;

use selfwind_profile::profile_file::{Event, ModuleInfo, ProfileReader};
use selfwind_tests::recording::{Recorder, record_unharmed};
use selfwind_tests::target::Target;

/// What identifies a module in memory: its bias and build-id.
type Key = (u64, String);

/// First address, end and path of each module that findshlibs reports.
fn told(output: &str) -> BTreeMap<Key, (u64, u64, String)> {
    let hexadecimal = |text: &str| u64::from_str_radix(text, 16).expect("an address");
    output
        .lines()
        .map(|line| {
            let words: Vec<&str> = line.splitn(5, ' ').collect();
            let [bias, id, start, end, path] = words[..] else { panic!("{line:?}") };
            ((hexadecimal(bias), id.to_owned()), (hexadecimal(start), hexadecimal(end), path.to_owned()))
        })
        .collect()
}

/// The modules that a profile says were mapped.
fn recorded(file: &Path) -> Vec<ModuleInfo> {
    let events = ProfileReader::open(file).expect("a profile").map(|event| event.expect("a whole profile"));
    let modules =
        events.filter_map(|event| if let Event::Module(module) = event { Some(module) } else { None });
    modules.collect()
}

fn key(module: &ModuleInfo) -> Key {
    let id: String = module.build_id.iter().map(|byte| format!("{byte:02x}")).collect();
    (module.bias, if id.is_empty() { "-".into() } else { id })
}

#[test]
fn every_module_is_where_findshlibs_finds_it() {
    let program = Path::new(env!("CARGO_BIN_EXE_own_modules"));
    let libraries = ["libz.so.1", "libm.so.6", "libpthread.so.0", "libstdc++.so.6", "libssl.so.3"];
    let recording = Recorder::at(997).record(program, &libraries);
    assert_eq!(recording.outcome.status, 0, "{:?}", recording.outcome);
    let (told, recorded) = (told(&recording.outcome.stdout), recorded(&recording.file));
    assert!(told.len() > libraries.len(), "{told:#?}");
    for (key, (start, end, path)) in &told {
        let found = recorded.iter().find(|module| self::key(module) == *key);
        let Some(module) = found else {
            // The agent does not report itself.
            assert!(path.contains("selfwind"), "{path} at {start:x} is not in {recorded:#x?}");
            continue;
        };
        let pages = |address: u64| address & !0xfff;
        assert_eq!(pages(module.start), pages(*start), "{path}");
        assert_eq!(pages(module.end - 1), pages(end - 1), "{path}");
        // The loader calls it by another name.
        let same_name = Path::new(path).file_name() == module.path.file_name();
        assert!(same_name || module.path == Path::new("[vdso]"), "{path} {module:?}");
    }
    for module in &recorded {
        assert!(told.contains_key(&key(module)), "findshlibs does not know {module:#x?}");
    }
}

/// Its code runs before `dlopen` returns.
#[test]
fn a_library_has_names_while_it_is_loaded() {
    let library = Target::c("initialised_library").shared("libinitialised.so").build();
    let program = Target::c("loads_initialised").build();
    let directory = library.parent().expect("it is in one").as_os_str();
    for path in [library.as_os_str(), library.file_name().expect("it has one")] {
        let recorder = Recorder::at(997).env("LD_LIBRARY_PATH", directory);
        let recording = record_unharmed(&recorder, &program, &[path]);
        let folded = recording.folded();
        for function in ["in_resolver", "in_constructor"] {
            assert!(folded.inclusive(function) > 20, "{path:?}: {folded:?}");
        }
        assert_eq!(folded.inclusive("[unknown]"), 0, "{path:?}: {folded:?}");
    }
}
