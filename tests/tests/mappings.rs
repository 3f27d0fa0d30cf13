//! Mappings (`-e mmap`) of a program that counts its own, and of programs that must not notice.

use std::path::Path;
use std::process::Command;

use selfwind_tests::binary::selfwind;
use selfwind_tests::outcome::run;
use selfwind_tests::recording::{Recorder, Recording, read, record_unharmed, stats};
use selfwind_tests::scratch::Scratch;
use selfwind_tests::sites::{ALLOCATED, MAPPED, assert_exact, counted, folded, killed_after};
use selfwind_tests::target::Target;

/// Number of sites that `map_sites` reports before its child.
const SITES: usize = 11;

/// A recorder that loses nothing while it is preempted.
fn recorder(source: &str) -> Recorder {
    Recorder::at(99).event(source).env("SELFWIND_POOL", "128M")
}

fn map_sites(source: &str, rounds: &str) -> Recording {
    let recording = recorder(source).record(&Target::c("map_sites").build(), &[rounds]);
    assert_eq!(recording.outcome.status, 0, "{}", recording.outcome.stderr);
    assert_all_there(&recording.file);
    recording
}

fn assert_all_there(file: &Path) {
    let stats = stats(file);
    stats.assert_adds_up();
    assert_eq!(stats.number("lost"), 0, "lost samples");
    assert!(stats.0["detail"]["settings"].get("live mappings").is_none(), "{:#}", stats.0);
}

#[test]
fn every_site_has_its_mappings_and_their_live_parts() {
    for rounds in ["1", "100"] {
        let recording = map_sites("mmap", rounds);
        assert_eq!(counted(&recording.outcome.stdout).len(), SITES + 1);
        assert_exact(&recording.file, &recording.outcome.stdout, MAPPED);
    }
}

/// Many more parts than live mappings, and threads that unmap mappings of other threads.
#[test]
fn many_rounds_balance() {
    let recording = map_sites("mmap", "600");
    assert_exact(&recording.file, &recording.outcome.stdout, MAPPED);
}

#[test]
fn a_killed_program_leaves_its_live_mappings() {
    let scratch = Scratch::new();
    let file = scratch.join("selfwind.data");
    let program = Target::c("map_sites").build();
    let said = killed_after(recorder("mmap").command(&file, &program, &["50", "wait"]), SITES + 1);
    assert_all_there(&file);
    assert_exact(&file, &said, MAPPED);
}

/// The kind of mapping is the leaf of its stack.
#[test]
fn kinds_of_mappings_are_distinguished() {
    let recording = map_sites("mmap", "10");
    let bytes = folded(&recording.file, "mmap_space");
    let told = |site: &str, kind: &str| bytes.nested(site, kind);
    for (site, kind) in [
        ("site_passing", "[anonymous]"),
        ("site_kept", "[shared]"),
        ("site_file", "[file]"),
        ("site_reserved", "[reserved]"),
        ("site_fixed", "[anonymous]"),
        // As the mapping that was moved.
        ("site_grown", "[anonymous]"),
    ] {
        assert_eq!(told(site, kind), bytes.inclusive(site), "{site}");
        assert!(told(site, kind) > 0, "{site}");
    }
}

/// Mappings are separate from allocations, although glibc maps the large ones itself.
#[test]
fn allocations_are_not_counted_as_mappings() {
    let recording = recorder("alloc:all,mmap").record(&Target::c("heap_sites").build(), &["20", "hold"]);
    assert_eq!(recording.outcome.status, 0, "{}", recording.outcome.stderr);
    assert_exact(&recording.file, &recording.outcome.stdout, ALLOCATED);
    assert_eq!(folded(&recording.file, "mmap_objects").total(), 0);
    let both = map_sites("cpu,alloc:all,mmap", "10");
    assert_exact(&both.file, &both.outcome.stdout, MAPPED);
    assert!(folded(&both.file, "alloc_space").total() > 0);
    // Mappings are not recorded without the source.
    let without = map_sites("alloc:all", "10");
    let outcome = run(Command::new(selfwind()).args(["report", "--event", "mmap_space"]).arg(&without.file));
    assert_eq!(outcome.status, 1);
    assert!(outcome.stderr.contains("no event mmap_space"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("`record -e mmap`"), "{}", outcome.stderr);
}

/// The event has its name in every view.
#[test]
fn views_show_mappings() {
    let recording = map_sites("cpu,mmap", "10");
    let file = &recording.file;
    let report = read(&["report", "--event", "mmap"], file);
    assert!(report.contains("bytes, mmap_space") && report.contains("site_threads"), "{report}");
    let leaks = read(&["report", "--leaks"], file);
    assert!(leaks.contains("bytes, mmap_inuse_space") && !leaks.contains("site_passing"), "{leaks}");
    let diff = read(&["diff", "--event", "mmap_inuse_space", &file.display().to_string()], file);
    assert!(diff.contains("GROWTH"), "{diff}");
    let scratch = Scratch::new();
    let out = scratch.join("p.pb");
    let outcome = run(Command::new(selfwind()).args(["export", "-f", "pprof", "-o"]).args([&out, file]));
    assert_eq!(outcome.status, 0, "{}", outcome.stderr);
    let unzipped =
        Command::new("gzip").arg("-dc").stdin(std::fs::File::open(&out).expect("it was written")).output();
    let text = unzipped.expect("gzip runs").stdout;
    for word in MAPPED.into_iter().chain(["cpu", "[anonymous]"]) {
        assert!(text.windows(word.len()).any(|part| part == word.as_bytes()), "no {word} in the profile");
    }
    for format in ["firefox", "speedscope", "flamegraph", "jsonl"] {
        let all = read(&["export", "-f", format, "--event", "mmap_space"], file);
        assert!(all.contains("site_kept"), "{format}");
    }
}

#[test]
fn hazards_are_unharmed() {
    for name in [
        "fork",
        "exec",
        "vfork",
        "posix_spawn",
        "dlopen_churn",
        "thread_churn",
        "malloc_storm",
        "siglongjmp",
        "raw_clone",
    ] {
        record_unharmed(&Recorder::at(99).event("mmap"), &Target::c(name).build(), &[] as &[&str]);
    }
    for mode in ["kill", "errno", "tsync"] {
        let program = Target::c("seccomp").build();
        record_unharmed(&Recorder::at(99).event("mmap,alloc:all"), &program, &[mode]);
    }
}
