//! `selfwind top` in a terminal: its keys, the children it follows, and the state in which it leaves the terminal.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use selfwind_tests::binary::selfwind;
use selfwind_tests::outcome::run;
use selfwind_tests::scratch::Scratch;
use selfwind_tests::target::Target;
use selfwind_tests::terminal::Terminal;

/// A shell that runs `spin` as its child and ends it when it is told to end.
fn spinning(spin: &Path) -> String {
    format!("sh -c 'trap \"kill \\$p; exit\" TERM; {} & p=$!; wait'", spin.display())
}

fn terminal(scratch: &Scratch) -> Terminal {
    terminal_of(scratch, 24)
}

fn terminal_of(scratch: &Scratch, lines: u16) -> Terminal {
    let bin = selfwind().parent().expect("a file lies in a directory").display().to_string();
    let path = format!("{bin}:{}", std::env::var("PATH").unwrap_or_default());
    Terminal::new(scratch.path(), 80, lines, &[("PATH", &path), ("LC_ALL", "C.UTF-8")])
}

/// Asserts that the prompt is back, keys echo, and nothing of the screen is left.
fn assert_clean(terminal: &Terminal) {
    terminal.wait_for("the prompt", |screen| screen.trim_end().ends_with("shell>"));
    terminal.run("stty -a | grep -o ' icanon' && echo clean=yes");
    let screen = terminal.wait_for("sane terminal", |screen| screen.contains("clean=yes\n"));
    assert!(screen.contains("shell> stty -a"), "typed text is echoed:\n{screen}");
    assert!(!screen.contains("FUNCTION"), "the screen of before is back:\n{screen}");
    assert_eq!(terminal.ask("#{alternate_on} #{cursor_flag}"), "0 1", "alternate screen, cursor");
}

#[test]
fn keys_move_search_zoom_and_quit() {
    let scratch = Scratch::new();
    let spin = Target::c("spin").build();
    let terminal = terminal(&scratch);
    terminal.run(&format!("selfwind top -F 499 -- {}", spinning(&spin)));
    // The burning child of the shell is followed.
    let screen = terminal.wait_for("functions", |screen| {
        ["spin_first", "spin_second", "spin_third", "lost 0"].iter().all(|part| screen.contains(part))
    });
    println!("{screen}");
    let lines: Vec<&str> = screen.lines().collect();
    assert_eq!(lines.len(), 24);
    assert!(lines[0].starts_with("selfwind top  ") && lines[0].contains("499 Hz"), "{screen}");
    assert!(lines[1].contains("/s  ") && lines[1].contains("truncated"), "{screen}");

    terminal.press(&["/"]);
    terminal.press(&["s", "e", "c", "o", "n", "d", "Enter"]);
    let status = |name: &str| format!("  {name}  spin");
    terminal.wait_for("a hit", |screen| screen.contains(&status("spin_second")));
    terminal.press(&["Enter"]);
    terminal.wait_for("a zoom", |screen| screen.contains("zoom: spin_second"));
    let zoomed = terminal.wait_for("one function", |screen| !screen.contains("spin_third"));
    assert!(zoomed.contains("  100.0%  spin_second"), "{zoomed}");
    // The search first, then the zoom; two in a row are one to a terminal.
    terminal.wait_for("all of them", |screen| {
        let back = !screen.contains("zoom:") && screen.contains("spin_third");
        if !back {
            terminal.press(&["Escape"]);
            std::thread::sleep(Duration::from_millis(200));
        }
        back
    });

    terminal.press(&["Tab"]);
    let flame = terminal.wait_for("a flame graph", |screen| {
        screen.contains("▏all")
            && ["▏spin_first", "▏spin_second", "▏spin_third"].iter().all(|f| screen.contains(f))
    });
    println!("{flame}");
    terminal.press(&["j", "j"]);
    terminal.wait_for("a selected frame", |screen| screen.contains("self ") && screen.contains("  total "));
    terminal.press(&["z"]);
    terminal.wait_for("frozen", |screen| screen.contains("FROZEN"));
    terminal.press(&["q"]);
    assert_clean(&terminal);
}

/// Three steps of `heap_grows`: 30,000 bytes held by one site, 150,000 by another, 300,000 allocated and freed by a third.
#[test]
fn memory_is_shown_while_it_is_held() {
    let scratch = Scratch::new();
    let grows = Target::c("heap_grows").build();
    let terminal = terminal(&scratch);
    let command = format!("sh -c '(printf aaa; sleep 60) | {}'", grows.display());
    terminal.run(&format!("selfwind top --window 2 -e alloc:all -- {command}"));
    let held = terminal.wait_for("what is held", |screen| {
        let is_freed = !screen.contains("in_passing");
        is_freed && screen.contains("in_growing") && screen.contains(" bytes, inuse_space, now")
    });
    let line = held.lines().nth(2).expect("the line of amounts");
    let bytes: u64 = line.split(' ').next().expect("a number").replace(',', "").parse().expect("a number");
    // The shell and sleep hold a little, too.
    assert!((180_000..300_000).contains(&bytes), "{held}");
    let offset = |site| held.find(site).unwrap_or_else(|| panic!("no {site}:\n{held}"));
    assert!(offset("in_growing") < offset("in_steady"), "{held}");

    // What was allocated two seconds ago is gone from the view, live blocks are not.
    terminal.press(&["e"]);
    terminal.wait_for("allocations", |screen| screen.contains("0 alloc_objects, last 2 s"));
    terminal.press(&["e", "e", "e"]);
    terminal
        .wait_for("what is held", |screen| screen.contains("in_growing") && screen.contains("inuse_space"));
    terminal.press(&["q"]);
    assert_clean(&terminal);
}

/// A computing thread and waiting ones, whose stacks have what they wait for as the leaf.
#[test]
fn waiting_threads_are_shown_with_what_they_wait_for() {
    let scratch = Scratch::new();
    let shares = Target::c("wall_shares").build();
    let terminal = terminal_of(&scratch, 60);
    terminal.run(&format!("selfwind top -e wall -- {} 60", shares.display()));
    terminal.wait_for("states", |screen| {
        ["[blocked: futex]", "[blocked: read]", "compute"].iter().all(|word| screen.contains(word))
    });
    terminal.press(&["s"]);
    terminal.wait_for("who waits", |screen| {
        screen.contains("wait_for_the_end") && screen.contains("read_to_the_end")
    });
    terminal.press(&["q"]);
    assert_clean(&terminal);
}

#[test]
fn signals_leave_the_terminal_clean() {
    let scratch = Scratch::new();
    let spin = Target::c("spin").build();
    let terminal = terminal(&scratch);
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
        terminal.run(&format!("selfwind top -- {}", spinning(&spin)));
        terminal.wait_for("the screen", |screen| screen.contains("FUNCTION"));
        let top = terminal.foreground().expect("top runs");
        kill(Pid::from_raw(top), signal).expect("it is ours");
        assert_clean(&terminal);
        terminal.run("clear");
    }
}

#[test]
fn the_end_of_the_program_is_shown_and_its_status_kept() {
    let scratch = Scratch::new();
    let spin = Target::c("spin").build();
    let terminal = terminal(&scratch);
    terminal.run(&format!("selfwind top --log out.txt -- {} 50; echo status=$?", spin.display()));
    terminal.wait_for("the end", |screen| screen.contains("ENDED, status 39"));
    terminal.press(&["q"]);
    terminal.wait_for("its status", |screen| screen.contains("status=39\n"));
    assert_clean(&terminal);
    assert_eq!(std::fs::read_to_string(scratch.join("out.txt")).expect("--log"), "ready\nspun\n");
}

#[test]
fn the_last_screen_stays_after_the_end() {
    let scratch = Scratch::new();
    let spin = Target::c("spin").build();
    let terminal = terminal(&scratch);
    terminal.run(&format!("selfwind top --window 2 -F 499 -- {} 300", spin.display()));
    terminal.wait_for("the end", |screen| screen.contains("ENDED"));
    // Longer than the window.
    std::thread::sleep(Duration::from_secs(4));
    let screen = terminal.screen();
    assert!(screen.contains("ENDED") && screen.contains("spin_second"), "the picture is gone:\n{screen}");
    terminal.press(&["q"]);
    assert_clean(&terminal);
}

#[test]
fn a_running_process_is_watched_and_left_alone() {
    let scratch = Scratch::new();
    let mut spin =
        Command::new(Target::c("spin").build()).stdout(Stdio::null()).spawn().expect("it was built");
    let terminal = terminal(&scratch);
    terminal.run(&format!("selfwind top -F 499 -p {}", spin.id()));
    let screen = terminal.wait_for("its functions", |screen| {
        ["spin_first", "spin_second", "spin_third"].iter().all(|name| screen.contains(name))
    });
    assert!(screen.contains("499 Hz") && screen.contains(&format!("process {}", spin.id())), "{screen}");
    terminal.press(&["q"]);
    assert_clean(&terminal);
    assert!(spin.try_wait().expect("our child").is_none(), "it runs on");
    spin.kill().expect("our child");
    spin.wait().expect("our child");
}

#[test]
fn without_a_terminal_it_says_what_to_do() {
    let outcome = run(Command::new(selfwind()).args(["top", "--", "true"]));
    assert_eq!((outcome.status, outcome.stdout.as_str()), (1, ""));
    assert!(
        outcome.stderr.contains("terminal") && outcome.stderr.contains("selfwind tail"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn waits_for_locks_are_shown_by_who_ended_them() {
    let scratch = Scratch::new();
    let sites = Target::c("lock_sites").build();
    // All functions fit: which of them wait longest differs.
    let terminal = terminal_of(&scratch, 60);
    terminal.run(&format!("selfwind top -e lock:all -- {} 20", sites.display()));
    terminal
        .wait_for("who waits", |screen| screen.contains("ns, delay") && screen.contains("wait_semaphore"));
    terminal.press(&["e"]);
    terminal.wait_for("who ended it", |screen| {
        screen.contains("ns, held_delay") && screen.contains("hold_semaphore")
    });
    terminal.press(&["q"]);
    assert_clean(&terminal);
}
