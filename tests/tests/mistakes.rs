//! Common mistakes and the messages for them: the table of docs/troubleshooting.md, row by row.
//!
//! Each command of the table runs in a directory where it is the mistake of its row. The output must contain the row's
//! message, so that page and program cannot diverge.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::geteuid;
use selfwind_tests::attacher::Guest;
use selfwind_tests::binary::{selfwind, workspace};
use selfwind_tests::outcome::run;
use selfwind_tests::skip::skip;
use selfwind_tests::target::Target;

/// Who makes a mistake if the test is root's: it takes a user who may not do everything.
const NOBODY: u32 = 65534;
/// The process id that the page shows.
const SHOWN_PID: &str = "4711";

struct Mistake {
    what: String,
    command: String,
    message: String,
}

/// Text between backticks of a table cell.
fn code(cell: &str) -> &str {
    cell.trim().trim_matches('`').trim()
}

/// The rows of the page's table.
fn mistakes() -> Vec<Mistake> {
    let page = fs::read_to_string(workspace().join("docs/troubleshooting.md")).expect("the page is there");
    let section = page.split("\n## ").find(|text| text.starts_with("Common mistakes")).expect("the section");
    let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        let [what, command, message] = cells[..] else { panic!("three cells: {row}") };
        Mistake { what: what.trim().into(), command: code(command).into(), message: code(message).into() }
    })
    .collect()
}

/// Text with single blanks and every number the same: only words are compared.
fn normal(text: &str) -> String {
    let mut normal = String::new();
    for word in text.split_whitespace() {
        normal.push(' ');
        let mut after_digit = false;
        for c in word.chars() {
            match c.is_ascii_digit() {
                true if after_digit => {}
                true => normal.push('0'),
                false => normal.push(c),
            }
            after_digit = c.is_ascii_digit();
        }
    }
    normal
}

/// Whether `printed` holds the pieces of `message` around `…`, in order.
fn says(printed: &str, message: &str) -> bool {
    let printed = normal(printed);
    let mut rest = printed.as_str();
    message.split('…').all(|piece| match rest.split_once(normal(piece).trim()) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}

/// A directory in which the commands are mistakes, outside the checkout, whose parents other users may not enter.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let scratch = Self(std::env::temp_dir().join(format!("selfwind-mistakes-{}", std::process::id())));
        let _ = fs::remove_dir_all(&scratch.0);
        for (name, mode) in [("", 0o777), ("bin", 0o755), ("home", 0o777), ("closed", 0o555), ("full", 0o777)]
        {
            fs::create_dir(scratch.at(name)).expect("temporary files may be made");
            scratch.permit(name, mode);
        }
        scratch.copy(selfwind(), "bin/selfwind");
        scratch.copy(&Target::c("job").build(), "job");
        scratch.copy(&Target::c("static_image").fixed().build(), "fixed");
        scratch.copy(&Target::c("job").with("stripped", &["-s"]).build(), "stripped");
        scratch.copy(&Target::c("job").build(), "setuid");
        fs::write(scratch.at("notes.txt"), "just text\n").expect("ours");
        scratch
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn copy(&self, file: &Path, name: &str) {
        fs::copy(file, self.at(name)).expect("temporary files may be made");
        self.permit(name, 0o755);
    }

    fn permit(&self, name: &str, mode: u32) {
        fs::set_permissions(self.at(name), Permissions::from_mode(mode)).expect("ours");
    }

    /// `line` of a shell, as `user` or as this one.
    fn command(&self, line: &str, user: Option<u32>) -> Command {
        let mut command = match user {
            Some(user) => {
                let mut command = Command::new("setpriv");
                command.args([format!("--reuid={user}"), format!("--regid={user}")]);
                command.args(["--clear-groups", "bash", "-c", line]);
                command
            }
            None => {
                let mut command = Command::new("bash");
                command.args(["-c", line]);
                command
            }
        };
        let run = self.at(if user.is_some() { "run-other" } else { "run" });
        if !run.exists() {
            fs::create_dir(&run).expect("ours");
            fs::set_permissions(&run, Permissions::from_mode(0o700)).expect("ours");
            chown(&run, user, user).expect("root may, others change nothing");
        }
        let path = format!("{}:{}", self.at("bin").display(), std::env::var("PATH").unwrap_or_default());
        command.current_dir(&self.0).env("PATH", path).env("LC_ALL", "C.UTF-8").env("HOME", self.at("home"));
        command.env("XDG_RUNTIME_DIR", run).env_remove("XDG_CACHE_HOME").env_remove("COLUMNS");
        command
    }

    /// A profile without its last bytes.
    fn cut_profile(&self) {
        run(&mut self.command("selfwind record -q --no-names -F 999 -o cut.data -- ./job", None));
        let whole = fs::read(self.at("cut.data")).expect("recorded");
        fs::write(self.at("cut.data"), &whole[..whole.len() - 10]).expect("ours");
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

/// Makes one mistake and returns the output; `None` if it cannot be made here, which is then reported.
fn make(mistake: &Mistake, scratch: &Scratch) -> Option<String> {
    let is_root = geteuid().is_root();
    let mut user = None;
    let mut guest = None;
    let mut line = mistake.command.clone();
    match mistake.what.as_str() {
        "kernel event without permission" => {
            let level = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
            if level.trim().parse::<i32>().is_ok_and(|level| level < 2) {
                skip("kernel.perf_event_paranoid below 2 permits kernel events");
                return None;
            }
            user = is_root.then_some(NOBODY);
        }
        "setuid program" => {
            if !is_root {
                skip("a setuid program of another user takes root");
                return None;
            }
            chown(scratch.at("setuid"), Some(NOBODY), Some(NOBODY)).expect("root");
            scratch.permit("setuid", 0o4755);
        }
        "output in a directory without write permission" => user = is_root.then_some(NOBODY),
        "output on a full disk" => {
            if !is_root {
                skip("a full file system takes root");
                return None;
            }
            let full = "mount -t tmpfs -o size=4k tmpfs full && head -c 4096 /dev/zero > full/fill";
            line = format!("exec unshare -m bash -c '{full} && {line}'");
        }
        "process of another user" => {
            if !is_root {
                skip("a process of another user takes root");
                return None;
            }
            user = Some(NOBODY);
            guest = Some(Guest::start(&Target::c("spin").build(), &[]));
        }
        "process whose seccomp filter is in the way" => {
            if !is_root {
                skip("reading a filter takes root");
                return None;
            }
            let program = Target::c("filtered").with("threads", &["-pthread"]).build();
            guest = Some(Guest::start(&program, &["60", &libc::SYS_timer_create.to_string()]));
        }
        "LD_PRELOAD missing or cleared" => guest = Some(Guest::start(&Target::c("spin").build(), &[])),
        "process that another selfwind records" => {
            guest = Some(Guest::start(&Target::c("spin").build(), &[]));
            line = format!(
                "selfwind record -q -o first.data -p {SHOWN_PID} & sleep 2; {line}; kill $!; wait $!"
            );
        }
        "file of perf as a profile" => {
            run(&mut scratch.command("selfwind record -q -F 999 -o perf.data -- ./job", None));
        }
        "truncated profile" => scratch.cut_profile(),
        _ => {}
    }
    let pid = guest.as_ref().map(Guest::pid);
    if let Some(pid) = &pid {
        line = line.replace(SHOWN_PID, pid);
    }
    let outcome = run(&mut scratch.command(&line, user));
    if let Some(mut guest) = guest {
        guest.child.kill().expect("our child");
        guest.child.wait().expect("our child");
    }
    Some(format!("{}{}", outcome.stdout, outcome.stderr))
}

#[test]
fn the_page_has_the_real_messages() {
    let mistakes = mistakes();
    assert!(mistakes.len() >= 15, "{} rows", mistakes.len());
    let scratch = Scratch::new();
    let mut wrong = Vec::new();
    for mistake in &mistakes {
        let Some(printed) = make(mistake, &scratch) else { continue };
        if !says(&printed, &mistake.message) {
            let Mistake { what, command, message } = mistake;
            wrong.push(format!("{what}: {command}\nthe page says: {message}\nprinted: {printed}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn wrong_messages_are_noticed() {
    assert!(says("selfwind: process 12\n  is gone", "selfwind: process 4711 is gone"));
    assert!(says("a 1 b, c\nd", "a 2 … c d"));
    assert!(!says("selfwind: process 12 is here", "process 4711 is gone"));
    assert!(!says("c a", "a … c"));
}
