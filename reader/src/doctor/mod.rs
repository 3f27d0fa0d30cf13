//! `doctor`: what this machine permits, and how to fix problems.
//!
//! Settings are read or tried out; nothing is changed. A finding is one value with its consequence for recording.

mod finding;
mod kernel;
mod limits;
mod place;
mod process;
mod symbols;
mod value;

use std::io::Write;
use std::process::ExitCode;

use serde::Serialize;

use crate::flags::process_id::process_id;
use finding::{Finding, Grade};

/// What to examine.
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Examine this process too: its agent, limits and restrictions
    #[arg(short, long, value_name = "PID", value_parser = process_id)]
    pid: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
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
}
