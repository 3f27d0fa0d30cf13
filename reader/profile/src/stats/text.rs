//! The statistics of a profile as text.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::summary::{ProcessStats, Stats};
use crate::digits::counted;
use crate::measure::Weighed;
use crate::profile_file::Tail;

impl Stats {
    /// Share of incomplete stacks, in percent.
    pub(crate) fn truncated_percent(&self) -> f64 {
        if self.samples == 0 { 0.0 } else { self.truncated as f64 / self.samples as f64 * 100.0 }
    }

    /// `1 234 samples, 0 lost, 0.1 % truncated, 3 threads, 1 process`.
    pub fn summary(&self) -> String {
        format!(
            "{}, {} lost, {:.1}% truncated, {}, {}",
            counted(self.samples, "sample", "samples"),
            self.lost,
            self.truncated_percent(),
            counted(self.threads, "thread", "threads"),
            counted(self.processes, "process", "processes"),
        )
    }

    /// A note if the rate was lowered.
    pub fn lowered(&self) -> Option<String> {
        let rate = &self.detail.rate;
        (rate.left_out > 0).then(|| {
            format!(
                "{} of {} samples a second, to stay below --max-overhead ({} skipped; the handler takes {} us, the slowest percent {} us and more, waits for a CPU included)",
                rate.delivered,
                rate.asked,
                counted(rate.left_out, "tick", "ticks"),
                self.detail.handler_ns.p50.div_ceil(1000),
                self.detail.handler_ns.p99.div_ceil(1000),
            )
        })
    }

    /// A note if timers did not reach the rate.
    pub fn coarse(&self) -> Option<String> {
        /// Timers of every kernel tick at least this often.
        const SLOWEST_HZ: f64 = 100.0;
        let (rate, sources) = (&self.detail.rate, &self.detail.sources);
        let of = |clocks: &[&str]| clocks.iter().filter_map(|clock| sources.get(*clock)).sum::<u64>();
        let (of_timers, of_kernel) = (of(&["cpu", "itimer"]), of(&["perf"]));
        let is_coarse = rate.left_out == 0
            && of_timers > of_kernel
            && rate.delivered < 0.9 * rate.asked
            && rate.asked > SLOWEST_HZ;
        is_coarse
            .then(|| format!("{} of {} Hz (timers tick with the kernel's HZ)", rate.delivered, rate.asked))
    }

    /// A note if the samples represent only a part of `used_ns` of CPU time. Call it only if some samples stand for CPU time.
    pub fn uncovered(&self, used_ns: u64) -> Option<String> {
        /// Every recording lacks this much: start and end of the first program.
        const USUAL_NS: u64 = 20_000_000;
        let (covered_ns, images) = (self.detail.cpu_ns, self.detail.images);
        let lost = self.detail.lost_weight.values().sum::<u64>();
        let missing_ns = used_ns.saturating_sub(covered_ns);
        if lost > 0 || missing_ns < USUAL_NS || missing_ns < used_ns / 10 {
            return None;
        }
        let seconds = |ns: u64| ns as f64 / 1e9;
        Some(format!(
            "the samples cover {:.2} of {:.2} s of CPU time; the rest was used by programs while they start and exit ({} seen), by threads after their last sample ({} seen), or by programs without the agent (32-bit or setuid ones; static ones and sandboxes for their first moments)",
            seconds(covered_ns),
            seconds(used_ns),
            counted(images, "program", "programs"),
            counted(self.threads, "thread", "threads"),
        ))
    }

    /// A note about processes that were still running at the end of the recording, if there are any.
    pub fn outlived(&self) -> Option<String> {
        const NAMED: usize = 3;
        let running = || self.detail.by_process.iter().filter(|process| process.fate == "running");
        let first = running().next()?;
        let name = |process: &ProcessStats| {
            let name = process.exe.file_name().unwrap_or_default().to_string_lossy();
            format!("{name} ({})", process.pid)
        };
        let mut names: Vec<String> = running().take(NAMED).map(name).collect();
        let count = running().count();
        if count > NAMED {
            names.push(format!("{} more", count - NAMED));
        }
        let (are, them) = if count == 1 { ("is", "it") } else { ("are", "them") };
        Some(format!(
            "{} {are} still running, and sampling has stopped with the command: {}; to record {them} to the end, keep the command in the foreground, or run selfwind record -p {}",
            counted(count as u64, "process", "processes"),
            names.join(", "),
            first.pid
        ))
    }

    /// The text of `stats`, with the `limit` processes that have the most samples.
    pub fn text(&self, tail: Option<Tail>, limit: usize) -> String {
        let detail = &self.detail;
        let causes = |causes: &BTreeMap<String, u64>| {
            let list: Vec<String> = causes.iter().map(|(name, count)| format!("{name} {count}")).collect();
            if list.is_empty() { String::new() } else { format!("  ({})", list.join(", ")) }
        };
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            let _ = writeln!(text, "{name:<12} {value}");
        };
        line("samples", format!("{}  (weight {}{})", self.samples, self.weight, self.weight_in_words()));
        if detail.weights.len() > 1 {
            for Weighed { event, samples, words, .. } in &detail.weights {
                line("event", format!("{event}: {}, {words}", counted(*samples, "sample", "samples")));
            }
        }
        line("lost", format!("{}{}", self.lost, causes(&detail.lost)));
        line("skipped", format!("{}{}", detail.accounting.skipped, causes(&detail.skipped)));
        line("truncated", format!("{}  ({:.1}%)", self.truncated, self.truncated_percent()));
        line("ends", causes(&detail.ends).trim().trim_matches(|c| c == '(' || c == ')').to_owned());
        line("fired", format!("{}  ({})", detail.accounting.fired, self.accounting_text()));
        if detail.rate.asked > 0.0 {
            let why = match detail.rate.left_out {
                0 if self.coarse().is_some() => "  (timers tick with the kernel's HZ)",
                0 => "",
                _ => "  (--max-overhead)",
            };
            let lost = self.lost.saturating_mul(100).checked_div(self.lost + self.samples).unwrap_or(0);
            let lost = if lost > 0 { format!(", of which {lost}% were lost") } else { String::new() };
            line("rate", format!("{} of {} Hz{why}{lost}", detail.rate.delivered, detail.rate.asked));
        }
        let handler = &detail.handler_ns;
        line("handler", format!("p50 {} ns, p99 {} ns, max {} ns", handler.p50, handler.p99, handler.max));
        line(
            "stacks",
            format!(
                "{:.1} frames and {:.1} bytes in the buffer each",
                detail.frames_per_sample, detail.ring_bytes_per_sample
            ),
        );
        if !detail.kernel.is_empty() {
            line(
                "kernel",
                format!("{:.1} samples per unwind{}", detail.samples_per_unwind, causes(&detail.kernel)),
            );
        }
        for (topic, texts) in &detail.settings {
            texts.iter().for_each(|text| line(topic, text.clone()));
        }
        if let Some(copy) = &detail.copy {
            line("copy", copy.to_string());
        }
        line("sources", causes(&detail.sources).trim().trim_matches(|c| c == '(' || c == ')').to_owned());
        line("threads", format!("{}  ({} sampled)", self.threads, detail.threads_sampled));
        line("processes", format!("{}  (images {})", self.processes, detail.images));
        let mut processes: Vec<&ProcessStats> = detail.by_process.iter().collect();
        processes.sort_by_key(|process| std::cmp::Reverse(process.samples));
        for process in processes.iter().take(limit) {
            line(
                "",
                format!(
                    "{:>7}  {:>8} samples  {:<9} {}",
                    process.pid,
                    process.samples,
                    process.fate,
                    process.exe.to_string_lossy().replace('\n', " ")
                ),
            );
        }
        if processes.len() > limit {
            let more = processes.len() - limit;
            line("", format!("… {}; --limit 0 shows all", counted(more as u64, "more image", "more images")));
        }
        line("duration", format!("{:.2} s", detail.duration_ns as f64 / 1e9));
        line("bytes", self.bytes.to_string());
        if detail.gaps + detail.torn + detail.violations + detail.undecodable > 0 {
            let (gaps, torn, undecodable) = (detail.gaps, detail.torn, detail.undecodable);
            let violations = detail.violations;
            line(
                "ring",
                format!("{gaps} gaps, {torn} torn, {undecodable} undecodable, {violations} violations"),
            );
        }
        if !detail.complete {
            line("note", "recording was interrupted; data before this point is intact".into());
        }
        if let Some(remark) = tail.and_then(|tail| tail.remark(self.bytes)) {
            line("note", remark);
        }
        text
    }

    /// What the weight is, unless it is CPU time.
    fn weight_in_words(&self) -> String {
        let mut weights = self.detail.weights.iter();
        let main = weights.find(|weighed| weighed.event == self.detail.event && !weighed.is_cpu_time());
        main.map(|weighed| format!(": {}", weighed.words)).unwrap_or_default()
    }

    /// True if everything that fired is accounted for. A stack may belong to several samples, or to none.
    fn accounting_text(&self) -> String {
        let accounting = &self.detail.accounting;
        let answers = if self.detail.unwinds == self.samples { "samples" } else { "unwinds" };
        let mut text = match accounting.adds_up {
            Some(true) => format!("= {answers} + lost + skipped"),
            Some(false) => format!("does NOT equal {answers} + lost + skipped"),
            None => "not known: the last counters are older than the last samples".to_owned(),
        };
        for (count, what) in [
            (accounting.earlier, "before this recording"),
            (accounting.cut_short, "cut short by the end of their process"),
        ] {
            if count > 0 {
                let _ = write!(text, " + {count} {what}");
            }
        }
        text
    }
}
