//! The header and footer of a report: how the profile was made, what is missing, what is unusual.

use selfwind_profile::digits::{counted, grouped};
use selfwind_profile::measure::Measure;
use selfwind_profile::profile::{Process, Profile};

use super::text::Page;
use crate::terminal::columns::wrapped;
use crate::terminal::screen::{Style, fit, printable};

/// How many processes to name in the title if there is no command.
const NAMES_IN_TITLE: usize = 3;

impl Page<'_> {
    pub(super) fn header(&mut self, name: &str, filters: &str) {
        let Profile { stats, totals, .. } = self.profile;
        let title = fit(&printable(&title(self.profile, name)), self.screen.width).into_owned();
        let title = self.screen.paint(Style::Bold, &title).into_owned();
        self.line(&title);
        let mut facts = vec![
            format!("{} samples", grouped(totals.samples)),
            format!("weight {}{}", grouped(totals.weight), meaning_of_weight(self.profile)),
            format!("{:.2} s", stats.detail.duration_ns as f64 / 1e9),
            format!("lost {}", grouped(stats.lost)),
            format!("truncated {:.1}%", totals.truncated as f64 * 100.0 / totals.samples.max(1) as f64),
            counted(stats.threads, "thread", "threads"),
            counted(stats.processes, "process", "processes"),
        ];
        let own = frequency(self.profile);
        let is_as_asked = own == Some(format!("{} Hz", stats.detail.frequency));
        facts.extend(stats.coarse().filter(|_| is_as_asked).or(own));
        self.facts(&facts);
        let others: Vec<String> = self.profile.other_events().map(|other| other.event.clone()).collect();
        if !others.is_empty() {
            let shown = &self.profile.measure(self.profile.main).name;
            let text = format!("showing {shown}; --event shows {}", others.join(", "));
            for line in wrapped(&text, self.screen.width) {
                self.remark(&line);
            }
        }
        for source in stats.detail.settings.get("source").into_iter().flatten() {
            if source.contains("instead of") || source.contains("user mode") {
                self.remark(source);
            }
        }
        if !filters.is_empty() {
            let share = self.whole as f64 * 100.0 / totals.weight.max(1) as f64;
            let text = format!("showing {share:.1}% of it: {filters}");
            self.remark(&text);
        }
    }

    /// Prints facts side by side, on as many lines as needed.
    fn facts(&mut self, facts: &[String]) {
        let mut line = String::new();
        for fact in facts {
            if !line.is_empty() && line.chars().count() + 2 + fact.chars().count() > self.screen.width {
                self.line(&std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push_str("  ");
            }
            line.push_str(fact);
        }
        self.line(&line);
    }

    pub(super) fn footer_lines(&self) -> Vec<String> {
        let totals = &self.profile.totals;
        let mut lines = Vec::new();
        if totals.frame_pointer + totals.guessed > 0 {
            let share = |frames: u64| frames as f64 * 100.0 / totals.frames.max(1) as f64;
            lines.push(format!(
                "frames found by frame pointer: {} ({:.2}%), guessed (marked ?): {} ({:.2}%)",
                grouped(totals.frame_pointer),
                share(totals.frame_pointer),
                grouped(totals.guessed),
                share(totals.guessed),
            ));
        }
        if totals.truncated > 0 {
            lines.push(format!("truncated stacks: {}", truncations(self.profile)));
        }
        if self.profile.stats.lost > 0 {
            let causes = self.profile.stats.detail.lost.iter();
            let causes: Vec<String> = causes.map(|(name, n)| format!("{} {name}", grouped(*n))).collect();
            lines.push(format!("lost samples: {}; `selfwind stats` shows more", causes.join(", ")));
        }
        lines.extend(self.profile.incomplete.clone());
        if !self.profile.stats.detail.complete {
            lines.push("recording was interrupted; data before this point is intact".into());
        }
        lines.extend(self.profile.notes.iter().map(|note| printable(note).into_owned()));
        lines.iter().flat_map(|line| wrapped(&format!("note: {line}"), self.screen.width)).collect()
    }

    pub(super) fn footer(&mut self, lines: &[String]) {
        if !lines.is_empty() {
            self.text.push('\n');
        }
        for line in lines {
            let line = self.screen.paint(Style::Dim, line).into_owned();
            self.line(&line);
        }
    }
}

/// The title: the command, or the names of the running processes that were recorded.
fn title(profile: &Profile, name: &str) -> String {
    let command = profile.session.command.join(" ");
    if !command.is_empty() {
        return format!("{name}: {command}");
    }
    let describe = |process: &Process| format!("{} (pid {})", process.name(), process.info.pid);
    let mut names: Vec<String> = profile.processes.iter().take(NAMES_IN_TITLE).map(describe).collect();
    names.dedup();
    if profile.processes.len() > NAMES_IN_TITLE {
        names.push("…".into());
    }
    if names.is_empty() { name.to_owned() } else { format!("{name}: {}", names.join(", ")) }
}

/// True if weights are CPU time, in units of the period that this process reported.
fn is_cpu_time(profile: &Profile, process: &Process) -> bool {
    profile.measures.iter().all(Measure::is_cpu_time) && process.info.period_ns > 0
}

/// The meaning of the weight in words: CPU time, or events.
fn meaning_of_weight(profile: &Profile) -> String {
    if let Some(words) = profile.weight_in_words() {
        return format!(" ({words})");
    }
    let mut ns = 0u128;
    for bucket in &profile.buckets {
        let process = profile.process_of(bucket.thread);
        if !is_cpu_time(profile, process) {
            return String::new();
        }
        ns += u128::from(bucket.weight) * u128::from(process.info.period_ns);
    }
    if ns == 0 { String::new() } else { format!(" ({:.2} s CPU)", ns as f64 / 1e9) }
}

/// The sampling rate of the processes, which for running processes is not the recorder's choice.
fn frequency(profile: &Profile) -> Option<String> {
    let hertz = |process: &Process| {
        is_cpu_time(profile, process).then(|| (1e9 / process.info.period_ns as f64).round() as u64)
    };
    let rates = profile.processes.iter().filter_map(hertz);
    let (least, most) = rates.fold((u64::MAX, 0), |(least, most), rate| (least.min(rate), most.max(rate)));
    match (least, most) {
        (u64::MAX, _) if profile.session.frequency == 0 => None,
        (u64::MAX, _) => Some(format!("{} Hz", profile.session.frequency)),
        _ if least == most => Some(format!("{most} Hz")),
        _ => Some(format!("{least} to {most} Hz")),
    }
}

/// The numbers of truncated stacks by reason.
fn truncations(profile: &Profile) -> String {
    let ends = profile.stats.detail.ends.iter().filter(|(name, _)| *name != unwind::End::Root.name());
    let mut ends: Vec<(&String, &u64)> = ends.collect();
    ends.sort_by_key(|&(_, &count)| std::cmp::Reverse(count));
    let describe = |(name, &count): (&String, &u64)| match meaning(name) {
        "" => format!("{} {name}", grouped(count)),
        meaning => format!("{} {name} ({meaning})", grouped(count)),
    };
    ends.into_iter().map(describe).collect::<Vec<_>>().join(", ")
}

/// The meaning of a truncation reason.
fn meaning(end: &str) -> &'static str {
    match end {
        "depth-limit" => "deeper than --max-stack",
        "no-module" => "an address outside all known modules",
        "no-cfi" => "code without call frame information",
        "bad-cfi" => "damaged call frame information",
        "unreadable" => "stack memory that could not be read",
        "no-code" => "a return address that leads to no code",
        "no-answer" => "an event of the kernel that the thread did not answer with its stack",
        "bad-unwinder" => "a registered unwinder returned an impossible caller",
        "no-progress" => "a stack that loops",
        "lost-register" => "a register whose value is unknown",
        _ => "",
    }
}
