//! `selfwind stats --json`, and the sums that must hold.

use serde_json::Value;

/// The JSON document.
#[derive(Clone, Debug)]
pub struct Stats(pub Value);

impl Stats {
    /// Parses the output of `selfwind stats --json`.
    pub fn parse(text: &str) -> Self {
        Self(serde_json::from_str(text).unwrap_or_else(|e| panic!("stats is not JSON: {e}: {text}")))
    }

    /// One of the promised numbers at the top level.
    pub fn number(&self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or_else(|| panic!("stats has no number {name}: {}", self.0))
    }

    /// A number under `detail`, by its path.
    pub fn detail(&self, path: &[&str]) -> u64 {
        let found = path.iter().fold(&self.0["detail"], |value, name| &value[*name]);
        found.as_u64().unwrap_or_else(|| panic!("stats has no number detail.{}: {}", path.join("."), self.0))
    }

    /// What the agent says of its source.
    pub fn source(&self) -> String {
        self.0["detail"]["settings"]["source"].to_string()
    }

    /// A counter of the kernel's events by result; absent ones are 0.
    pub fn kernel(&self, name: &str) -> u64 {
        self.0["detail"]["kernel"][name].as_u64().unwrap_or(0)
    }

    /// The sum of the causes under `detail.NAME`.
    pub fn causes(&self, name: &str) -> u64 {
        let causes =
            self.0["detail"][name].as_object().unwrap_or_else(|| panic!("no detail.{name}: {}", self.0));
        causes.values().map(|count| count.as_u64().expect("a count")).sum()
    }

    /// The samples whose stack is whole.
    pub fn rooted(&self) -> u64 {
        self.0["detail"]["ends"]["root"].as_u64().unwrap_or(0)
    }

    /// The share of the samples whose stack is whole.
    pub fn complete(&self) -> f64 {
        let samples = self.number("samples");
        if samples == 0 { 0.0 } else { self.rooted() as f64 / samples as f64 }
    }

    /// The executables of the process images, in the order of the profile, with their samples.
    pub fn executables(&self) -> Vec<(String, u64)> {
        let images = self.0["detail"]["by_process"].as_array().expect("detail.by_process");
        let name = |path: &Value| path.as_str().unwrap_or("").rsplit('/').next().unwrap_or("").to_string();
        images.iter().map(|i| (name(&i["exe"]), i["samples"].as_u64().unwrap_or(0))).collect()
    }

    /// Asserts that everything that fired is accounted for: recorded, lost or skipped with a cause, found already
    /// recorded, or cut short by the end of its process. The sums are computed here, from their parts.
    pub fn assert_adds_up(&self) {
        let (samples, lost) = (self.number("samples"), self.number("lost"));
        let part = |name| self.detail(&["accounting", name]);
        // Several perf events before one walk are as many samples with one stack.
        let unwinds = self.detail(&["unwinds"]);
        let accounted = unwinds + lost + part("skipped") + part("earlier") + part("cut_short");
        assert_eq!(part("fired"), accounted, "fired = unwinds + lost + skipped + ...: {:#}", self.0);
        assert_eq!(lost, self.causes("lost"), "lost by cause: {:#}", self.0);
        assert_eq!(part("skipped"), self.causes("skipped"), "skipped by cause: {:#}", self.0);
        assert_eq!(samples, self.causes("ends"), "every stack has one end: {:#}", self.0);
        assert_eq!(samples, self.causes("sources"), "every sample has one source: {:#}", self.0);
        let images = self.executables().iter().map(|(_, samples)| samples).sum::<u64>();
        assert_eq!(samples, images, "samples by process image: {:#}", self.0);
        for event in self.0["detail"]["weights"].as_array().expect("detail.weights") {
            let number = |name: &str| event[name].as_u64().expect("a number");
            let is_counted = event["unit"] == "periods" || event["unit"] == "count";
            assert!(
                !is_counted || number("weight") >= number("samples"),
                "a sample stands for one at least: {event}"
            );
        }
    }
}
