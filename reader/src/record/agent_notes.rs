//! What agents say about their processes, for the user: each once, however many processes say it.
//!
//! A command has the terminal to itself while it runs. What must never happen here: a message in the middle of a line that
//! the command writes.

use std::collections::HashSet;

use rustix::io::Errno;
use selfwind_profile::profile_file::{ProcessInfo, Setting};
use shm_format::injection::Call;

use crate::drain::namespaces::PID_HERE;
use crate::target::thread_search::NOT_SAMPLED;
use crate::terminal::notices::Notices;

/// Maximum number of distinct notes to show.
const LIMIT: usize = 20;
/// The source of a process for which nothing is missing.
const NOTHING_MISSING: &str = "perf: kernel and user stacks";

/// A note, and what other processes have said the same in.
struct Note {
    text: String,
    others: HashSet<String>,
}

impl Note {
    /// Whether `text` says the same of some process.
    fn says(&self, text: &str) -> bool {
        without_process(&self.text).eq(without_process(text))
    }

    fn shown(&self) -> String {
        match self.others.len() {
            0 => self.text.clone(),
            1 => format!("{} (the same for 1 other process)", self.text),
            others => format!("{} (the same for {others} other processes)", self.text),
        }
    }
}

/// The words of a note but for a process's number and program: `process 17 (/bin/true):`.
fn without_process(text: &str) -> impl Iterator<Item = &str> {
    let mut words = text.split(' ').peekable();
    std::iter::from_fn(move || {
        let word = words.next()?;
        if word == "process" && words.next_if(|next| next.bytes().all(|byte| byte.is_ascii_digit())).is_some()
        {
            let mut program = words.next_if(|next| next.starts_with('('));
            while program.is_some_and(|part| !part.ends_with("):")) {
                program = words.next();
            }
        }
        Some(word)
    })
}

/// The notes of all processes of a recording.
pub(super) struct AgentNotes {
    /// Distinct ones, in the order they came.
    notes: Vec<Note>,
    /// Where an agent says that a process will not load it, the agent is injected.
    injects: bool,
    /// The notes are shown at the end, since the recorded program may write to the same terminal.
    at_end: bool,
    notices: Notices,
}

impl AgentNotes {
    /// Shows notes at once, or at the end if a command is recorded. `injects`: the agent is injected into processes that do not load
    /// it.
    pub(super) fn new(notices: Notices, of_command: bool, injects: bool) -> Self {
        Self { notes: Vec::new(), injects, at_end: of_command, notices }
    }

    /// The note that came with a process.
    pub(super) fn process(&mut self, info: &ProcessInfo) {
        if !info.note.is_empty() {
            self.add(format!("process {} ({}): {}", info.pid, info.exe.display(), info.note));
        }
    }

    /// A setting, if it is news to the user.
    pub(super) fn setting(&mut self, setting: &Setting) {
        let Setting { key, value, .. } = setting;
        let is_expected = match key.as_str() {
            // It repeats the user's option.
            "unwind" => true,
            // For the recorder.
            PID_HERE => true,
            // A version that is supported.
            "python" => value.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'),
            // Another program, which will not load the agent.
            "children are not recorded" => self.injects,
            key if key.starts_with("a program is not recorded") => self.injects,
            // From one recorder to another.
            _ => [Call::SETTING, Call::RECORDER].contains(&key.as_bytes()) || value == NOTHING_MISSING,
        };
        let note = match value.strip_prefix("errno ").and_then(|number| number.parse().ok()) {
            Some(number) => format!("{key}: {}", explain(key, number)),
            None => format!("{key}: {value}"),
        };
        if is_expected {
            self.notices.detail(note);
        } else {
            self.add(note);
        }
    }

    fn add(&mut self, text: String) {
        if let Some(known) = self.notes.iter_mut().find(|known| known.says(&text)) {
            if known.text != text {
                known.others.insert(text);
            }
        } else if self.notes.len() < LIMIT {
            if !self.at_end {
                self.notices.say(&text);
            }
            self.notes.push(Note { text, others: HashSet::new() });
        }
    }

    /// Shows what has waited for the end.
    pub(super) fn end(&mut self) {
        if std::mem::take(&mut self.at_end) {
            self.notes.iter().for_each(|note| self.notices.say(note.shown()));
        }
    }

    /// Whether one of them says that threads are not sampled.
    pub(super) fn explain_missing_samples(&self) -> bool {
        self.notes.iter().any(|note| note.text.starts_with(NOT_SAMPLED))
    }
}

/// The kernel's error, and the limit that it usually comes from.
fn explain(key: &str, number: i32) -> String {
    let error = std::io::Error::from_raw_os_error(number);
    let limit = match Errno::from_raw_os_error(number) {
        Errno::PERM if key.contains("events") => "locked memory (ulimit -l, kernel.perf_event_mlock_kb)",
        Errno::MFILE => "open files (ulimit -n)",
        Errno::AGAIN => "timers (ulimit -i)",
        _ => return error.to_string(),
    };
    format!("{error}: the limit on {limit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_say_the_same_are_counted() {
        let note = |text: &str| Note { text: text.into(), others: HashSet::new() };
        let of_one = note("process 12 (/opt/my program): no perf events");
        assert!(of_one.says("process 7 (/bin/true): no perf events"));
        assert!(!of_one.says("process 7 (/bin/true): no timers"));
        assert!(note("since process 5 became user 33").says("since process 6 became user 33"));
        assert!(!note("since process 5 became user 33").says("since process 6 became user 34"));
        assert!(!note("12 threads").says("13 threads"));

        let mut notes = AgentNotes::new(Notices::Quiet, true, true);
        for pid in [5, 6, 6, 7] {
            notes.add(format!("since process {pid} became user 33"));
        }
        let shown: Vec<String> = notes.notes.iter().map(Note::shown).collect();
        assert_eq!(shown, ["since process 5 became user 33 (the same for 2 other processes)"]);
    }
}
