//! Recording a program with `selfwind record` and reading the profile back.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::binary::selfwind;
use crate::folded::Folded;
use crate::outcome::{Outcome, run};
use crate::scratch::Scratch;
use crate::stats::Stats;

/// How to record.
#[derive(Clone, Debug)]
pub struct Recorder {
    options: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::at(499)
    }
}

/// A finished recording.
#[derive(Debug)]
pub struct Recording {
    /// How the recorder ended, which is how the program ended.
    pub outcome: Outcome,
    /// The profile.
    pub file: PathBuf,
    _scratch: Scratch,
}

impl Recorder {
    /// At this frequency, Hz.
    pub fn at(frequency: u32) -> Self {
        // Quiet: what then appears on standard error is the program's.
        Self {
            options: vec!["-q".into(), "-F".into(), frequency.to_string().into()],
            environment: Vec::new(),
        }
    }

    /// From this source of events.
    pub fn event(mut self, source: &str) -> Self {
        self.options.extend(["-e".into(), source.into()]);
        self
    }

    /// With a plug-in beside the agent.
    pub fn plugin(mut self, file: &Path) -> Self {
        self.options.extend(["--plugin".into(), file.into()]);
        self
    }

    /// With this variable in the program's environment.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.as_ref().into(), value.as_ref().into()));
        self
    }

    /// The command that records `program` into `file`.
    pub fn command<S: AsRef<OsStr>>(&self, file: &Path, program: &Path, arguments: &[S]) -> Command {
        let mut command = Command::new(selfwind());
        command.arg("record").args(&self.options).arg("-o").arg(file).arg("--").arg(program).args(arguments);
        command.envs(self.environment.iter().map(|(k, v)| (k, v)));
        command
    }

    /// Records `program` to its end.
    pub fn record<S: AsRef<OsStr>>(&self, program: &Path, arguments: &[S]) -> Recording {
        let scratch = Scratch::new();
        let file = scratch.join("selfwind.data");
        let outcome = run(&mut self.command(&file, program, arguments));
        Recording { outcome, file, _scratch: scratch }
    }
}

/// Records `program` and asserts that it behaves as it does alone (exit status, standard output, standard error), that
/// the accounting adds up, and that the folded output has the weight of the profile.
pub fn record_unharmed<S: AsRef<OsStr>>(recorder: &Recorder, program: &Path, arguments: &[S]) -> Recording {
    let mut alone = Command::new(program);
    let alone = run(alone.args(arguments).envs(recorder.environment.iter().map(|(k, v)| (k, v))));
    let recording = recorder.record(program, arguments);
    let shown: Vec<_> = arguments.iter().map(AsRef::as_ref).collect();
    assert_eq!(recording.outcome, alone, "left: recorded, right: alone: {} {shown:?}", program.display());
    recording.assert_adds_up();
    recording
}

impl Recording {
    /// Asserts that nothing is unaccounted for, and that the folded output has the weight of the profile.
    pub fn assert_adds_up(&self) {
        let stats = self.stats();
        stats.assert_adds_up();
        assert_eq!(self.folded().total(), stats.number("weight"), "total of the folded output");
    }

    /// `selfwind stats --json`.
    pub fn stats(&self) -> Stats {
        stats(&self.file)
    }

    /// `selfwind export -f folded`.
    pub fn folded(&self) -> Folded {
        folded(&self.file)
    }
}

/// `selfwind stats --json FILE`.
pub fn stats(file: &Path) -> Stats {
    Stats::parse(&read(&["stats", "--json"], file))
}

/// `selfwind export -f folded FILE`.
pub fn folded(file: &Path) -> Folded {
    Folded::parse(&read(&["export", "-f", "folded"], file))
}

/// Exports a profile in every format; the formats that contain names as text must contain `name`.
pub fn assert_named_in_every_format(file: &Path, name: &str) {
    for format in ["pprof", "speedscope", "firefox", "jsonl", "flamegraph", "perf", "parquet"] {
        let out = file.with_extension(format);
        let outcome = run(Command::new(selfwind()).args(["export", "-f", format, "-o"]).arg(&out).arg(file));
        assert_eq!(outcome.status, 0, "{format}: {outcome:?}");
        let text = std::fs::read(&out).expect("it was written");
        let has_name = text.windows(name.len()).any(|part| part == name.as_bytes());
        // pprof is compressed, parquet may be; perf has no names at all.
        assert!(has_name || matches!(format, "pprof" | "perf" | "parquet"), "{format}");
    }
}

/// `selfwind ARGUMENTS FILE`, which must succeed; its standard output.
pub fn read(arguments: &[&str], file: &Path) -> String {
    let outcome = run(Command::new(selfwind()).args(arguments).arg(file));
    assert_eq!(outcome.status, 0, "selfwind {arguments:?} {}: {}", file.display(), outcome.stderr);
    outcome.stdout
}
