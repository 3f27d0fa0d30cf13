//! `doctor`: what this machine permits, and how to fix problems.
//!
//! Settings are read or tried out; nothing is changed. A finding is one value with its consequence for recording.

mod kernel;
mod limits;
mod place;
mod process;
mod symbols;

use std::io::Write;
use std::process::ExitCode;

use serde::Serialize;

use crate::proc::Status;

/// What to examine.
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Examine this process too: its agent, limits and restrictions
    #[arg(short, long, value_name = "PID")]
    pid: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Grade {
    /// As it should be.
    Good,
    /// Something is missing or slower; recording works.
    Limited,
    /// Nothing can be recorded.
    Blocked,
}

/// One fact and its consequence.
#[derive(Debug, Serialize)]
struct Finding {
    /// A stable name.
    name: &'static str,
    /// The value found.
    value: String,
    grade: Grade,
    /// What it means for recording.
    consequence: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Finding {
    fn good(name: &'static str, value: impl Into<String>, consequence: impl Into<String>) -> Self {
        Self { name, value: value.into(), grade: Grade::Good, consequence: consequence.into(), remedy: None }
    }

    fn limited(
        name: &'static str,
        value: impl Into<String>,
        consequence: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { grade: Grade::Limited, remedy: Some(remedy.into()), ..Self::good(name, value, consequence) }
    }

    fn blocked(
        name: &'static str,
        value: impl Into<String>,
        consequence: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { grade: Grade::Blocked, ..Self::limited(name, value, consequence, remedy) }
    }
}

#[derive(Serialize)]
struct Examination {
    /// The worst of all.
    grade: Grade,
    machine: Vec<Finding>,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<Vec<Finding>>,
}

fn examine() -> Vec<Finding> {
    let topics = [place::examine(), limits::examine(), kernel::examine(), symbols::examine()];
    topics.into_iter().flatten().collect()
}

/// Examines and prints. Fails only if nothing can be recorded.
///
/// # Errors
/// If the output cannot be written, or there is no such process.
pub(crate) fn run(args: &DoctorArgs, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let machine = examine();
    let process = args.pid.map(process::examine).transpose()?;
    let grade = machine.iter().map(|finding| finding.grade).max().unwrap_or(Grade::Good);
    let examination = Examination { grade, machine, process };
    if args.json {
        serde_json::to_writer(&mut *out, &examination)?;
        writeln!(out)?;
    } else {
        print(&examination.machine, out)?;
        if let (Some(findings), Some(pid)) = (&examination.process, args.pid) {
            writeln!(out, "\nprocess {pid}")?;
            print(findings, out)?;
        }
    }
    out.flush()?;
    Ok(if grade == Grade::Blocked { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print(findings: &[Finding], out: &mut dyn Write) -> std::io::Result<()> {
    let width = findings.iter().map(|finding| finding.name.len()).max().unwrap_or(0);
    for finding in findings {
        let Finding { name, value, grade, consequence, remedy } = finding;
        let mark = match grade {
            Grade::Good => "  ",
            Grade::Limited => "! ",
            Grade::Blocked => "X ",
        };
        writeln!(out, "{mark}{name:<width$}  {value}: {consequence}")?;
        if let Some(remedy) = remedy {
            writeln!(out, "  {:width$}  -> {remedy}", "")?;
        }
    }
    Ok(())
}

/// The value of `key` in /proc/PID/status.
fn status(pid: &str, key: &str) -> Option<String> {
    Status::of_process(pid).ok()?.field(key).map(str::to_owned)
}

/// A size in human-readable units.
fn bytes(bytes: u64) -> String {
    match bytes {
        0..0x10_0000 => format!("{} KiB", bytes >> 10),
        0x10_0000..0x4000_0000 => format!("{} MiB", bytes >> 20),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

/// A resource limit as text.
fn limit_text(limit: u64) -> String {
    if limit == nix::libc::RLIM_INFINITY { "unlimited".into() } else { limit.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_limited_has_a_remedy() {
        let findings = examine();
        let mut names: Vec<_> = findings.iter().map(|finding| finding.name).collect();
        for finding in &findings {
            assert_eq!(finding.remedy.is_some(), finding.grade != Grade::Good, "{finding:?}");
            assert!(!finding.value.is_empty() && !finding.consequence.is_empty(), "{finding:?}");
        }
        names.sort_unstable();
        let before = names.len();
        names.dedup();
        assert_eq!(before, names.len(), "each name once");
    }

    #[test]
    fn values_are_read_for_people() {
        assert_eq!(bytes(65_536), "64 KiB");
        assert_eq!(bytes(64 << 20), "64 MiB");
        assert_eq!(bytes(3 << 29), "1.5 GiB");
        assert_eq!(limit_text(u64::MAX), "unlimited");
    }
}
