//! Why a file cannot be imported: the cause, and what to do, in one line.

use std::io;

/// Why there is no profile.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// Reading failed.
    #[error("cannot read it: {0}")]
    Read(io::Error),
    /// The sink failed.
    #[error("cannot write the profile: {0}")]
    Write(io::Error),
    /// The magic is missing.
    #[error("not a perf.data file (it does not begin with PERFILE2)")]
    NotPerf,
    /// The file has the other byte order.
    #[error(
        "recorded on a big-endian machine, which selfwind cannot unwind; `perf script` on that machine reads it"
    )]
    BigEndian,
    /// What `perf record -o -` writes.
    #[error("written to a pipe (`perf record -o -`); `perf inject -i FILE -o perf.data` converts it")]
    Pipe,
    /// The header is truncated or damaged.
    #[error("its header is damaged ({0}); record again")]
    Header(&'static str),
    /// No event was recorded.
    #[error("it describes no event; record again")]
    NoEvents,
    /// The layout of an event's description is unknown.
    #[error("it has an event that selfwind does not support; choose another one with `perf record -e`")]
    UnknownEvent,
    /// There are too many events.
    #[error("it has {0} events, and a profile can have at most 255; choose fewer with `perf record -e`")]
    TooManyEvents(usize),
    /// Records do not say which event they belong to.
    #[error(
        "its records do not say which event they belong to; record the events with the same options, or one at a time"
    )]
    MixedEvents,
    /// The samples contain counter values.
    #[error("its samples contain counter values (`:S` or --sample-read); record again without them")]
    SampleRead,
    /// The samples lack a field that every profile needs.
    #[error("its samples lack {0}; record again without options that leave it out (such as --no-timestamp)")]
    Lacks(&'static str),
    /// `perf record --threads`.
    #[error("its samples are in several files (`perf record --threads`); record again without --threads")]
    Directory,
    /// The stacks were copied on another architecture.
    #[error(
        "its stacks were copied on {0}, which this build of selfwind cannot unwind; import it on such a machine, or record with --call-graph fp"
    )]
    OtherMachine(String),
}
