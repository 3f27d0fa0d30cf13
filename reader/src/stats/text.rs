//! The numbers of a profile as text.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{ProcessStats, Stats};
use crate::columns::counted;
use crate::profile_file::Tail;

impl Stats {
    /// Share of incomplete stacks, in percent.
    pub fn truncated_percent(&self) -> f64 {
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

    /// What is to be said of a rate that was lowered, if it was.
    pub fn lowered(&self) -> Option<String> {
        let rate = &self.detail.rate;
        (rate.left_out > 0).then(|| {
            format!(
                "{} of {} samples a second, to stay below --max-overhead ({} left out; a handler takes {} us)",
                rate.delivered,
                rate.asked,
                counted(rate.left_out, "tick", "ticks"),
                self.detail.handler_ns.p50.div_ceil(1000),
            )
        })
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
        line("lost", format!("{}{}", self.lost, causes(&detail.lost)));
        line("skipped", format!("{}{}", detail.accounting.skipped, causes(&detail.skipped)));
        line("truncated", format!("{}  ({:.1}%)", self.truncated, self.truncated_percent()));
        line("ends", causes(&detail.ends).trim().trim_matches(|c| c == '(' || c == ')').to_owned());
        line("fired", format!("{}  ({})", detail.accounting.fired, self.accounting_text()));
        if detail.rate.asked > 0.0 {
            let why = if detail.rate.left_out > 0 { "  (--max-overhead)" } else { "" };
            line("rate", format!("{} of {} Hz{why}", detail.rate.delivered, detail.rate.asked));
        }
        let handler = &detail.handler_ns;
        line("handler", format!("p50 {} ns, p99 {} ns, max {} ns", handler.p50, handler.p99, handler.max));
        line(
            "stacks",
            format!(
                "{:.1} frames and {:.1} bytes of ring each",
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
                    process.exe.display()
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
            line("note", "the recording was cut short: its recorder did not end in order".into());
        }
        if let Some(Tail::Truncated { offset }) = tail {
            line("note", format!("the file ends inside a block; everything before byte {offset} was read"));
        }
        text
    }

    /// What the weight is, unless it is CPU time.
    fn weight_in_words(&self) -> String {
        let weights = &self.detail.weights;
        if weights.iter().all(|weighed| weighed.is_cpu_time()) {
            return String::new();
        }
        let texts: Vec<String> = weights.iter().map(|weighed| weighed.words.clone()).collect();
        format!(": {}", texts.join(", "))
    }

    /// Whether everything that fired is accounted for. A stack may answer for several samples, or for none.
    fn accounting_text(&self) -> String {
        let accounting = &self.detail.accounting;
        let answers = if self.detail.unwinds == self.samples { "samples" } else { "unwinds" };
        let mut text = match accounting.adds_up {
            Some(true) => format!("= {answers} + lost + skipped"),
            Some(false) => format!("does NOT equal {answers} + lost + skipped"),
            None => "the last counters are older than the last samples".to_owned(),
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
