//! Names, lines and inlined functions against binutils' `addr2line`, on binaries built here.

mod programs;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use object::{Object, ObjectSection, ObjectSymbol};
use programs::{Call, addresses, build_id, c_program, directory, function, name, normal, ours, run, split};
use selfwind_profile::symbolize::{Origin, Request, SymbolSources, symbolize};
use selfwind_tests::random::Random;

/// What a program says that is asked for these addresses.
fn answer(mut asked: Child, addresses: &[u64]) -> String {
    let mut stdin = asked.stdin.take().unwrap();
    let questions: String = addresses.iter().map(|address| format!("{address:#x}\n")).collect();
    let writer = std::thread::spawn(move || stdin.write_all(questions.as_bytes()));
    let output = asked.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// `addr2line -a -i -f -C`: an address line, then two lines for each call.
fn theirs(program: &Path, addresses: &[u64]) -> Vec<Vec<Call>> {
    let child = Command::new("addr2line")
        .args(["-a", "-i", "-f", "-C", "-e"])
        .arg(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("addr2line comes with the C compiler");
    let text = answer(child, addresses);
    let mut answers: Vec<Vec<Call>> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("0x") {
            answers.push(Vec::new());
            continue;
        }
        let location = lines.next().unwrap();
        let location = location.split(" (discriminator").next().unwrap();
        let (file, number) = location.rsplit_once(':').unwrap();
        let call = (line.to_owned(), normal(file), number.parse().unwrap_or(0));
        answers.last_mut().unwrap().push(call);
    }
    answers
}

fn compare(program: &Path, addresses: &[u64]) -> Vec<String> {
    let (ours, symbols) = ours(program, addresses, &SymbolSources::none());
    assert_eq!(symbols.origin, Origin::Dwarf(program.to_owned()));
    let theirs = theirs(program, addresses);
    assert_eq!(ours.len(), theirs.len());
    let differences = addresses.iter().zip(ours.iter().zip(&theirs)).filter(|(_, (a, b))| a != b);
    differences.map(|(address, (a, b))| format!("{address:#x}\n  ours   {a:?}\n  theirs {b:?}")).collect()
}

#[test]
fn c_inlining_equals_addr2line() {
    for flags in [&["-g", "-O2", "-gdwarf-5"][..], &["-g", "-O3", "-gdwarf-4", "-gz=zlib"]] {
        let directory = directory(&format!("c{}", flags.len()));
        let program = c_program(&directory, flags);
        let own = ["main", "compare", "checksum", "scramble", "walk", "fill"];
        let addresses = addresses(&program, 1, 100_000, |name| own.iter().any(|own| name.starts_with(own)));
        assert!(addresses.len() > 300, "{}", addresses.len());
        let (calls, _) = ours(&program, &addresses, &SymbolSources::none());
        let deepest = calls.iter().map(Vec::len).max().unwrap();
        assert!(deepest >= 3, "the program has no nested inlining: {deepest}");
        let differences = compare(&program, &addresses);
        assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
    }
}

#[test]
fn compressed_sections_say_the_same() {
    let directory = directory("compressed");
    let program = c_program(&directory, &["-g", "-O2"]);
    let addresses = addresses(&program, 3, 100_000, |name| name == "checksum" || name == "scramble");
    let (expected, _) = ours(&program, &addresses, &SymbolSources::none());
    for compression in ["zlib", "zlib-gnu", "zstd"] {
        let packed = directory.join(compression);
        let output = Command::new("objcopy")
            .arg(format!("--compress-debug-sections={compression}"))
            .args([&program, &packed])
            .output()
            .unwrap();
        if !output.status.success() && compression == "zstd" {
            eprintln!("this objcopy cannot write zstd: {}", String::from_utf8_lossy(&output.stderr));
            continue;
        }
        let (calls, symbols) = ours(&packed, &addresses, &SymbolSources::none());
        assert_eq!(symbols.origin, Origin::Dwarf(packed));
        assert_eq!(calls, expected, "{compression}");
    }
}

#[test]
fn rust_inlining_equals_addr2line() {
    let directory = directory("rust");
    let source = directory.join("words.rs");
    fs::write(&source, include_str!("symbolize/words.rs")).unwrap();
    let program = directory.join("words");
    run(Command::new("rustc").args(["-g", "-O", "-o"]).arg(&program).arg(&source));
    let addresses =
        addresses(&program, 1, 6000, |name| name.starts_with("_ZN5words") || name.contains("5words"));
    assert!(addresses.len() > 1000, "{}", addresses.len());
    let differences = compare(&program, &addresses);
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
}

/// `llvm-symbolizer`: two lines for each call, an empty one behind each address; names are the linker's.
fn llvm(program: &Path, addresses: &[u64]) -> Option<Vec<Vec<Call>>> {
    let mut symbolizer = Command::new("llvm-symbolizer");
    symbolizer.args(["--no-demangle", "--functions=linkage", "--inlines", "-e"]).arg(program);
    let child = symbolizer.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
    let text = answer(child, addresses);
    let call = |pair: &[&str]| {
        let mut location = pair[1].rsplitn(3, ':').skip(1);
        let line = location.next().unwrap().parse().unwrap_or(0);
        (pair[0].to_owned(), normal(location.next().unwrap()), line)
    };
    let answers = text.split("\n\n").filter(|answer| !answer.trim().is_empty());
    Some(
        answers
            .map(|answer| answer.lines().collect::<Vec<_>>().chunks_exact(2).map(call).collect())
            .collect(),
    )
}

/// The linker folds functions with the same code: one address has several names, of which each tool takes another. Here
/// each has the first of them; those that the linker removed altogether differ in their hash at most.
struct Folded(HashMap<String, String>);

impl Folded {
    fn new(file: &object::File<'_>) -> Self {
        let mut names = BTreeMap::<u64, BTreeSet<String>>::new();
        for symbol in file.symbols().filter(|symbol| symbol.kind() == object::SymbolKind::Text) {
            if let Ok(name) = symbol.name() {
                names.entry(symbol.address()).or_default().insert(name.to_owned());
            }
        }
        let several = names.into_values().filter(|names| names.len() > 1);
        let first = |names: BTreeSet<String>| {
            let first = names.first().cloned().unwrap_or_default();
            names.into_iter().map(move |name| (name, first.clone()))
        };
        Self(several.flat_map(first).collect())
    }

    fn name(&self, name: &str) -> String {
        unhashed(self.0.get(name).map_or(name, String::as_str))
    }
}

fn unhashed(name: &str) -> String {
    const HASH: usize = "17h".len() + 16 + "E".len();
    match name.rfind("17h") {
        Some(at) if name.get(at + HASH - 1..at + HASH) == Some("E") => {
            format!("{}{}", &name[..at], &name[at + HASH..])
        }
        _ => name.to_owned(),
    }
}

/// Random addresses of a large program: this one, with all it is made of. The long form has ten thousand.
#[test]
fn random_addresses_of_a_large_program_equal_llvm_symbolizer() {
    let program = &std::env::current_exe().unwrap();
    let count = if std::env::var_os("SELFWIND_LONG").is_some() { 10_000 } else { 300 };
    let bytes = fs::read(program).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let text = file.section_by_name(".text").unwrap();
    let mut random = Random::new(0x2545_f491_4f6c_dd1d);
    let mut addresses = BTreeSet::new();
    while addresses.len() < count {
        addresses.insert(text.address() + random.below(text.size() as usize) as u64);
    }
    let addresses: Vec<u64> = addresses.into_iter().collect();
    let Some(theirs) = llvm(program, &addresses) else {
        selfwind_tests::skip::skip("no llvm-symbolizer (Debian: llvm)");
        return;
    };
    let (_, symbols) = ours(program, &addresses, &SymbolSources::none());
    let folded = Folded::new(&file);
    let mut compared = 0;
    for (address, (range, theirs)) in addresses.iter().zip(symbols.ranges.iter().zip(&theirs)) {
        let lines = &symbols.lines[range.start as usize..range.end as usize];
        let ours: Vec<Call> = lines
            .iter()
            .map(|line| {
                let file = line.file.map_or("??", |file| symbols.names.get(file));
                (symbols.names.get(line.linkage).to_owned(), normal(file), line.line)
            })
            .collect();
        // Without DWARF there are symbols, stubs and padding, which the two name as they like.
        if ours.iter().chain(theirs).all(|(_, file, _)| file == "??") {
            continue;
        }
        compared += 1;
        // No line is no place; the other tool names the compilation unit there.
        let comparable = |calls: &[Call]| -> Vec<Call> {
            let file = |(_, file, line): &Call| if *line == 0 { "??".to_owned() } else { file.clone() };
            calls.iter().map(|call| (folded.name(&call.0), file(call), call.2)).collect()
        };
        assert_eq!(comparable(&ours), comparable(theirs), "{address:#x}");
    }
    // The standard library has line tables, the project's own code has none.
    assert!(compared * 2 > count, "{compared} of {count}");
}

#[test]
fn debug_files_are_found_by_build_id() {
    let directory = directory("build-id");
    let program = c_program(&directory, &["-g", "-O2", "-Wl,--build-id"]);
    let (id, checksum) = (build_id(&program), function(&program, "checksum"));
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let filed = directory.join("debug/.build-id").join(&hex[..2]);
    fs::create_dir_all(&filed).unwrap();
    let debug = filed.join(format!("{}.debug", &hex[2..]));
    split(&program, &debug, false);

    let nowhere = SymbolSources::none();
    let offset = format!("mixer+{checksum:#x}");
    assert_eq!(name(&program, &id, checksum + 9, &nowhere), (offset.clone(), Origin::Stripped));
    let sources = SymbolSources::in_directories(vec![directory.join("debug")]);
    let found = ("checksum".to_owned(), Origin::Dwarf(debug.clone()));
    assert_eq!(name(&program, &id, checksum + 9, &sources), found);

    // The program may be gone: its debug file still has the names.
    fs::remove_file(&program).unwrap();
    assert_eq!(name(&program, &id, checksum + 9, &sources), found);

    // A debug file of another build under this name is not used.
    let other = c_program(&directory, &["-g", "-O1", "-Wl,--build-id"]);
    fs::copy(&other, &debug).unwrap();
    let (name, origin) = name(&program, &id, checksum + 9, &sources);
    assert_eq!(name, format!("mixer+{:#x}", checksum + 9));
    assert_eq!(origin, Origin::Changed(build_id(&other)));
}

#[test]
fn debuglinks_are_followed_and_checked() {
    let directory = directory("debuglink");
    let nowhere = SymbolSources::none();
    let program = c_program(&directory, &["-g", "-O2", "-Wl,--build-id=none"]);
    let checksum = function(&program, "checksum");
    let debug = directory.join("mixer.debug");
    split(&program, &debug, true);
    let expected = |debug: &Path| ("checksum".to_owned(), Origin::Dwarf(debug.to_owned()));
    assert_eq!(name(&program, &[], checksum, &nowhere), expected(&debug));

    let hidden = directory.join(".debug/mixer.debug");
    fs::create_dir(directory.join(".debug")).unwrap();
    fs::rename(&debug, &hidden).unwrap();
    assert_eq!(name(&program, &[], checksum, &nowhere), expected(&hidden));

    let root = directory.join("mirror");
    let inside = directory.canonicalize().unwrap().strip_prefix("/").unwrap().to_owned();
    let mirrored = root.join(inside).join("mixer.debug");
    fs::create_dir_all(mirrored.parent().unwrap()).unwrap();
    fs::rename(&hidden, &mirrored).unwrap();
    assert_eq!(
        name(&program, &[], checksum, &SymbolSources::in_directories(vec![root.clone()])),
        expected(&mirrored)
    );

    // A file with another checksum is not the one.
    let mut bytes = fs::read(&mirrored).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&mirrored, bytes).unwrap();
    let (name, origin) = name(&program, &[], checksum, &SymbolSources::in_directories(vec![root]));
    assert_eq!((name, origin), (format!("mixer+{checksum:#x}"), Origin::Stripped));
}

#[test]
fn a_changed_file_gives_no_names() {
    let directory = directory("changed");
    let nowhere = SymbolSources::none();
    let program = c_program(&directory, &["-g", "-O2", "-Wl,--build-id"]);
    let (id, checksum) = (build_id(&program), function(&program, "checksum"));
    assert_eq!(name(&program, &id, checksum, &nowhere).0, "checksum");
    let program = c_program(&directory, &["-g", "-O1", "-Wl,--build-id"]);
    let changed = (format!("mixer+{checksum:#x}"), Origin::Changed(build_id(&program)));
    assert_eq!(name(&program, &id, checksum, &nowhere), changed);
    fs::write(&program, "#!/bin/sh\n").unwrap();
    assert_eq!(name(&program, &id, checksum, &nowhere).1, Origin::Changed(Vec::new()));
    fs::remove_file(&program).unwrap();
    assert!(matches!(name(&program, &id, checksum, &nowhere).1, Origin::Unreadable(_)));
}

#[test]
fn stubs_have_the_names_of_what_they_call() {
    let directory = directory("plt");
    let nowhere = SymbolSources::none();
    for flags in
        [&["-O2", "-fcf-protection=none", "-Wl,-z,lazy"][..], &["-O2", "-fcf-protection", "-Wl,-z,now"]]
    {
        let program = c_program(&directory, flags);
        let output =
            Command::new("objdump").args(["-d", "--no-show-raw-insn"]).arg(&program).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let mut stubs = 0;
        for line in text.lines().filter(|line| line.ends_with("@plt>:")) {
            let (address, stub) = line.split_once(' ').unwrap();
            let address = u64::from_str_radix(address, 16).unwrap();
            let ours = name(&program, &build_id(&program), address + 4, &nowhere).0;
            assert_eq!(format!("<{ours}>:"), stub);
            stubs += 1;
        }
        assert!(stubs >= 4, "{stubs} stubs with {flags:?}:\n{text}");
    }
}

#[test]
fn glibc_functions_have_their_public_names() {
    let directory = directory("alias");
    let source = directory.join("alias.c");
    // As glibc does it: the definition has a hidden name, the public one is an alias.
    let text = "__attribute__((noinline)) int __GI___libc_thing(int a) { return a * 3; }\n\
        extern int __libc_thing(int) __attribute__((alias(\"__GI___libc_thing\")));\n\
        extern int thing(int) __attribute__((alias(\"__GI___libc_thing\")));\n\
        int main(int argc, char **argv) { (void)argv; return thing(argc); }\n";
    fs::write(&source, text).unwrap();
    let program = directory.join("alias");
    run(Command::new("cc").args(["-g", "-O1", "-o"]).arg(&program).arg(&source));
    let address = function(&program, "__GI___libc_thing");
    let (name, origin) = name(&program, &build_id(&program), address, &SymbolSources::none());
    assert_eq!((name.as_str(), origin), ("thing", Origin::Dwarf(program)));
}

#[test]
fn mini_debug_info_is_read() {
    let directory = directory("mini");
    let program = c_program(&directory, &["-O2", "-Wl,--build-id"]);
    let (id, checksum) = (build_id(&program), function(&program, "checksum"));
    let mini = directory.join("mini");
    run(Command::new("objcopy").args(["--only-keep-debug", "--strip-debug"]).args([&program, &mini]));
    let mut packed = Vec::new();
    lzma_rs::xz_compress(&mut &*fs::read(&mini).unwrap(), &mut packed).unwrap();
    fs::write(directory.join("mini.xz"), packed).unwrap();
    run(Command::new("strip").arg("--strip-all").arg(&program));
    let section = format!(".gnu_debugdata={}", directory.join("mini.xz").display());
    run(Command::new("objcopy").args(["--add-section", &section]).arg(&program));
    let found = name(&program, &id, checksum + 3, &SymbolSources::none());
    assert_eq!(found, ("checksum".to_owned(), Origin::Symbols));
}

/// Files that anybody may have written: whatever they hold, every address gets a name and nothing panics.
#[test]
fn damaged_files_do_no_harm() {
    let directory = directory("damaged");
    let program = c_program(&directory, &["-g", "-O2", "-Wl,--build-id=none"]);
    let mini = directory.join("mini");
    run(Command::new("objcopy").args(["--only-keep-debug", "--strip-debug"]).args([&program, &mini]));
    let mut packed = Vec::new();
    lzma_rs::xz_compress(&mut &*fs::read(&mini).unwrap(), &mut packed).unwrap();
    fs::write(directory.join("mini.xz"), packed).unwrap();
    let section = format!(".gnu_debugdata={}", directory.join("mini.xz").display());
    let stripped = directory.join("stripped");
    run(Command::new("strip").args(["--strip-all", "-o"]).args([&stripped, &program]));
    run(Command::new("objcopy").args(["--add-section", &section]).arg(&stripped));
    let addresses = addresses(&program, 16, 200, |_| true);
    let damaged = directory.join("damaged");
    let mut random = Random::new(0x2545_f491_4f6c_dd1d);
    let mut next = move |below| random.below(below);
    for source in [&program, &stripped] {
        let intact = fs::read(source).unwrap();
        // The ends of the file hold its headers and tables: hit more often than chance would.
        for round in 0..300 {
            let mut bytes = intact.clone();
            for _ in 0..1 + round % 20 {
                let offset = match round % 3 {
                    0 => next(bytes.len()),
                    1 => next(4096.min(bytes.len())),
                    _ => bytes.len() - 1 - next(8192.min(bytes.len())),
                };
                bytes[offset] = next(256) as u8;
            }
            bytes.truncate(if round % 5 == 0 { next(bytes.len()) + 1 } else { bytes.len() });
            fs::write(&damaged, &bytes).unwrap();
            let request = Request {
                path: damaged.clone(),
                build_id: Vec::new(),
                file: None,
                addresses: addresses.clone(),
            };
            let symbols = symbolize(&[request], &SymbolSources::none()).pop().unwrap();
            assert_eq!(symbols.ranges.len(), addresses.len());
            assert!(symbols.ranges.iter().all(|range| !range.is_empty()));
        }
    }
}
