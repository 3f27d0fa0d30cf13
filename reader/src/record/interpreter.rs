//! Advice for interpreters that could name their program's functions but were not told to.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use selfwind_profile::file_name::base_name;
use selfwind_profile::profile_file::{Event, ProcessInfo, Sample};

/// With fewer samples than this, no advice is given.
const ENOUGH: u64 = 10;
/// The minor versions of Python 3 whose frames the agent reads. Later ones can name their functions themselves.
const READ_PYTHON: RangeInclusive<u32> = 9..=14;

/// The advice for the processes of a recording.
#[derive(Debug, Default)]
pub(crate) struct Interpreters {
    /// Advice and number of samples by process image.
    unnamed: BTreeMap<u32, (&'static str, u64)>,
    advice: Option<&'static str>,
}

impl Interpreters {
    /// Handles an event other than a sample.
    pub(crate) fn observe(&mut self, event: &Event) {
        match event {
            Event::Process(info) => {
                self.unnamed.extend(advice(info).map(|advice| (info.id, (advice, 0))));
            }
            Event::Generated(code) => drop(self.unnamed.remove(&code.process)),
            Event::Function(function) => drop(self.unnamed.remove(&function.process)),
            Event::ProcessEnd(end) => {
                let enough = self.unnamed.remove(&end.process).filter(|&(_, samples)| samples >= ENOUGH);
                self.advice = self.advice.or(enough.map(|(advice, _)| advice));
            }
            _ => {}
        }
    }

    /// Counts a sample.
    pub(super) fn sample(&mut self, sample: &Sample) {
        if let Some((_, samples)) = self.unnamed.get_mut(&sample.process) {
            *samples += 1;
        }
    }

    /// How to get names, if any are missing.
    pub(crate) fn advice(&self) -> Option<&'static str> {
        let living =
            || self.unnamed.values().find(|(_, samples)| *samples >= ENOUGH).map(|&(advice, _)| advice);
        self.advice.or_else(living)
    }
}

fn advice(info: &ProcessInfo) -> Option<&'static str> {
    let name = base_name(&info.exe);
    let has = |flag: &str| info.argv.iter().any(|argument| argument.contains(flag));
    if let Some(version) = name.strip_prefix("python3.") {
        let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
        let asked =
            info.argv.windows(2).any(|pair| pair[0] == "-X" && pair[1].starts_with("perf")) || has("-Xperf");
        return match digits.parse::<u32>() {
            Ok(minor) if READ_PYTHON.contains(&minor) => None,
            Ok(minor) if minor < *READ_PYTHON.start() => Some(
                "this version of Python is not supported (3.9 to 3.14 are): only the interpreter's own functions are shown",
            ),
            Ok(_) if !asked => Some(
                "this version of Python is not supported (3.9 to 3.14 are); `python -X perf` (or PYTHONPERFSUPPORT=1) names its functions",
            ),
            _ => None,
        };
    }
    match &*name {
        "node" if !has("--perf-") => {
            Some("JavaScript functions have no names; `node --perf-basic-prof` names them")
        }
        "java" if !has("-XX:+DumpPerfMapAtExit") => Some(
            "Java methods have no names, and callers of compiled ones are guessed; `java -XX:+PreserveFramePointer -XX:+UnlockDiagnosticVMOptions -XX:+DumpPerfMapAtExit` (Java 17) records both",
        ),
        "java" if !has("-XX:+PreserveFramePointer") => Some(
            "callers of compiled Java methods are guessed; `java -XX:+PreserveFramePointer` records them",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use selfwind_profile::profile_file::GeneratedCode;

    fn told(exe: &str, argv: &[&str], named: bool) -> Option<&'static str> {
        let mut interpreters = Interpreters::default();
        let argv = argv.iter().map(|&argument| argument.into()).collect();
        let info = ProcessInfo { id: 3, exe: exe.into(), argv, ..ProcessInfo::default() };
        interpreters.observe(&Event::Process(info));
        for _ in 0..ENOUGH {
            interpreters.sample(&Sample { process: 3, ..Sample::default() });
        }
        if named {
            let code = GeneratedCode { process: 3, ..GeneratedCode::default() };
            interpreters.observe(&Event::Generated(code));
        }
        interpreters.advice()
    }

    #[test]
    fn advice_goes_to_those_who_can_follow_it() {
        assert!(told("/usr/bin/python3.15", &["python3", "x.py"], false).unwrap().contains("-X perf`"));
        assert!(told("/usr/bin/python3.8", &["python3"], false).unwrap().contains("3.9 to 3.14"));
        assert_eq!(told("/usr/bin/python3.11", &["python3"], false), None, "the agent names its functions");
        assert!(told("/usr/bin/node", &["node", "x.js"], false).unwrap().contains("--perf-basic-prof"));
        assert_eq!(told("/usr/bin/python3.15", &["python3", "-X", "perf", "x.py"], false), None);
        assert_eq!(told("/usr/bin/python3.15", &["python3"], true), None, "it was asked in its environment");
        assert_eq!(told("/usr/bin/node", &["node", "--perf-prof"], false), None);
        let names = ["java", "-XX:+UnlockDiagnosticVMOptions", "-XX:+DumpPerfMapAtExit"];
        assert!(told("/usr/lib/jvm/bin/java", &names[..1], false).unwrap().contains("DumpPerfMapAtExit"));
        assert!(told("/usr/lib/jvm/bin/java", &names, false).unwrap().starts_with("callers of"));
        assert_eq!(
            told("/usr/lib/jvm/bin/java", &[&names[..], &["-XX:+PreserveFramePointer"]].concat(), false),
            None
        );
        assert_eq!(told("/usr/bin/make", &["make"], false), None);
    }
}
