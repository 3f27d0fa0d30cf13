//! What the fuzzer of perf's files feeds: the importer, and a profile made of what it gives.

use std::io::{self, Cursor};

use offline::Search;
use selfwind_import::{Import, Sink, Summary};
use selfwind_profile::profile_file::{Event, ProfileWriter};
use selfwind_profile::stats::Tally;

/// Takes what a profile takes, and adds up.
struct Profile {
    writer: ProfileWriter<io::Sink>,
    tally: Tally,
    samples: u64,
    weight: u64,
}

impl Sink for Profile {
    fn event(&mut self, event: Event) -> io::Result<()> {
        if let Event::Sample(sample) = &event {
            self.samples += 1;
            self.weight += sample.parts().map(|part| u64::from(part.weight)).sum::<u64>();
        }
        self.tally.add(&event);
        self.writer.push(&event)
    }
}

/// Takes `bytes` for a file of perf record. What was imported, if it is one.
///
/// # Panics
/// When a promise is broken.
pub(crate) fn import(bytes: &[u8]) -> Option<Summary> {
    let writer = ProfileWriter::new(io::sink()).expect("it takes everything");
    let mut profile = Profile { writer, tally: Tally::default(), samples: 0, weight: 0 };
    let import = Import::open(Cursor::new(bytes)).ok()?;
    let summary = import.run(Search::default(), &mut profile).expect("every event fits a profile");
    let stats = profile.tally.finish(0);
    assert_eq!(summary.samples, profile.samples);
    assert_eq!(stats.weight, profile.weight);
    assert!(summary.truncated <= summary.samples);
    Some(summary)
}
