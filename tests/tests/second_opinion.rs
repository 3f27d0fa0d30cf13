//! Walks stacks of real programs, stopped at arbitrary points, with this unwinder and with framehop, which shares no
//! code with it.
//!
//! Memory and registers are read from outside, so both unwinders get the same input; the C library's symbols, debug
//! information and frame pointers play no part.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, Module, Unwinder};
use nix::sys::signal::{Signal, kill};
use object::{Object, ObjectSection};
use selfwind_tests::single_step::image::Images;
use selfwind_tests::single_step::tracee::{Event, Registers, Tracee};
use selfwind_tests::single_step::walker::{Rules, Walker};
use selfwind_tests::skip::skip;
use selfwind_tests::target::is_installed;
use unwind::End;

/// More frames than any of the programs has.
const MOST: usize = 1024;
const STOPS: usize = 60;

/// framehop with the modules of a stopped program, by their files.
fn framehop_for(images: &Images) -> UnwinderX86_64<Vec<u8>> {
    let mut unwinder = UnwinderX86_64::new();
    for image in images.all.iter().filter(|image| image.path.starts_with('/')) {
        let bytes = std::fs::read(&image.path).expect("it is mapped");
        let file = object::File::parse(&*bytes).expect("it was loaded");
        let section = |name: &str| file.section_by_name(name);
        let range = |name: &str| section(name).map(|found| found.address()..found.address() + found.size());
        let data = |name: &str| section(name).and_then(|found| found.data().ok()).map(<[u8]>::to_vec);
        let sections = ExplicitModuleSectionInfo {
            base_svma: image.start.wrapping_sub(image.bias),
            text_svma: range(".text"),
            text: data(".text"),
            eh_frame_svma: range(".eh_frame"),
            eh_frame: data(".eh_frame"),
            eh_frame_hdr_svma: range(".eh_frame_hdr"),
            eh_frame_hdr: data(".eh_frame_hdr"),
            got_svma: range(".got"),
            ..Default::default()
        };
        unwinder.add_module(Module::new(image.path.clone(), image.start..image.end, image.start, sections));
    }
    unwinder
}

/// The frames that framehop finds, and whether it says that there are no more.
fn by_framehop(
    unwinder: &UnwinderX86_64<Vec<u8>>,
    tracee: &Tracee,
    registers: &Registers,
) -> (Vec<u64>, bool) {
    let mut cache = CacheX86_64::new();
    let start = UnwindRegsX86_64::new(registers.rip, registers.rsp, registers.rbp);
    let mut read = |address: u64| tracee.word(address).ok_or(());
    let mut frames = unwinder.iter_frames(registers.rip, start, &mut cache, &mut read);
    let mut found = Vec::new();
    while found.len() < MOST {
        match frames.next() {
            Ok(Some(frame)) => found.push(frame.address()),
            Ok(None) => return (found, true),
            Err(_) => break,
        }
    }
    (found, false)
}

/// Comparison results of one program.
#[derive(Debug, Default)]
struct Tally {
    same: usize,
    /// framehop gave up early; up to there both agree.
    further: usize,
    differ: Vec<String>,
}

fn compare(program: &Path, arguments: &[&str]) -> Tally {
    let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
    let tracee = Tracee::start(program, &arguments, &[("PATH", "/usr/bin:/bin")]).expect("it is installed");
    let pid = tracee.pid();
    let (mut images, mut walker, mut frames) = (Images::default(), Walker::new(Rules::Tables), Vec::new());
    let (mut tally, mut signal) = (Tally::default(), None);
    for stop in 0..STOPS {
        tracee.resume(pid, signal).expect("it is stopped");
        sleep(Duration::from_micros(2_000 + 7_919 * (stop as u64 % 7)));
        kill(pid, Signal::SIGSTOP).expect("it is ours");
        loop {
            match tracee.wait().expect("it is ours") {
                Event::Signal(_, Signal::SIGSTOP) => break,
                Event::Signal(thread, other) => tracee.resume(thread, Some(other)).expect("it is stopped"),
                Event::Exited(status) => {
                    assert_eq!(status, 0, "{}", program.display());
                    return tally;
                }
                event => panic!("{}: {event:?}", program.display()),
            }
        }
        signal = None;
        images.refresh(&tracee).expect("it lives");
        walker.remap(&tracee, &images).expect("it lives");
        let registers = tracee.registers(pid).expect("it is stopped");
        let end = walker.walk(&tracee, &registers, &mut frames);
        let ours: Vec<u64> = frames.iter().map(|frame| frame.address()).collect();
        let (mut theirs, complete) = by_framehop(&framehop_for(&images), &tracee, &registers);
        // At the program's first instruction `argc` is where a return address would be.
        if end == End::Root && theirs.len() == ours.len() + 1 {
            theirs.pop_if(|last| *last < 4096);
        }
        if ours == theirs && end == End::Root {
            tally.same += 1;
        } else if !complete && ours.starts_with(&theirs) && end == End::Root {
            tally.further += 1;
        } else {
            let first = ours.iter().zip(&theirs).take_while(|(a, b)| a == b).count();
            let at = |frames: &[u64]| frames.get(first).map_or("nothing".into(), |pc| images.describe(*pc));
            let before = images.describe(ours[first - 1]);
            let (ours, theirs) = (at(&ours), at(&theirs));
            tally
                .differ
                .push(format!("behind {before}: ours {ours} ({end:?}), framehop {theirs} ({complete})"));
        }
    }
    tally
}

/// Path of the compiler proper, which the driver starts.
fn cc1() -> Option<String> {
    let output = Command::new("gcc").arg("-print-prog-name=cc1").output().ok()?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

#[test]
fn framehop_finds_the_same_stacks() {
    let compiler = cc1().expect("the tests' own programs are compiled");
    let busy = "int f(int); int g(int x) { switch (x) { CASES } return 0; }".replace(
        "CASES",
        &(0..12000).map(|n| format!("case {}: return f({n}) + f(x * {n});", 3 * n)).collect::<String>(),
    );
    let scratch = selfwind_tests::scratch::Scratch::new();
    let source = scratch.join("busy.c");
    std::fs::write(&source, busy).expect("ours");
    let source = source.to_str().expect("UTF-8");
    let python = "import json, re\nfor i in range(3000):\n d = json.loads(json.dumps({str(k): [k] * 30 for k in range(300)}))\n \
                  re.findall('[a-z]+([0-9]+)', 'abc123 def456 ' * 300)\n sorted(d, key=lambda k: d[k][0] * -1)";
    let sql = "with recursive n(x) as (select 1 union all select x + 1 from n where x < 12000000) \
               select count(*), sum(x * 3 % 7) from n where x like '%7%';";
    let perl = "for (1..1200) { my %h = map { $_ => \"x$_\" } 1..3000; my @s = sort { $h{$a} cmp $h{$b} } keys %h; \
                $s[0] =~ s/(\\d)/<$1>/g }";
    let programs: [(&str, &[&str]); 5] = [
        ("/usr/bin/python3", &["-c", python]),
        ("/usr/bin/sqlite3", &[":memory:", sql]),
        ("/usr/bin/perl", &["-e", perl]),
        (
            "/usr/bin/ruby",
            &["-e", "1200.times { (1..9000).map { |i| i.to_s }.sort_by { |s| s.reverse }.join.scan(/1./) }"],
        ),
        (&compiler, &["-quiet", "-O2", source, "-o", "/dev/null"]),
    ];
    for (program, arguments) in programs {
        if !is_installed(program) {
            skip(format!("{program} is not installed"));
            continue;
        }
        let tally = compare(Path::new(program), arguments);
        let compared = tally.same + tally.further + tally.differ.len();
        println!(
            "{program}: {} same, {} where framehop gives up, {:#?}",
            tally.same, tally.further, tally.differ
        );
        assert!(compared >= STOPS / 2, "{program} ended after {compared} stops");
        assert!(tally.differ.is_empty(), "{program}: {:#?}", tally.differ);
        assert!(tally.same * 10 >= compared * 9, "{program}: {} of {compared} the same", tally.same);
    }
}
