//! Sizes the pool of a process, and reports when it was too small.
//!
//! A pool must hold what its process samples until the recorder runs again. When it fills faster than that, its size is
//! doubled, up to what the process has mapped. Samples that are lost all the same are reported together with the size that
//! would have been enough.

use std::fmt;
use std::time::{Duration, Instant};

use shm_format::{CountersSnapshot, Loss, Mode};

use crate::sampling::buffer::Buffer;
use crate::target::attach::Attached;

/// A pool that fills by a quarter (its watermark) in less than this is too small. Also the longest time between two passes.
const POLL_MAX: Duration = Duration::from_millis(250);
/// Shortest time between two passes over pools whose processes cannot ring the doorbell.
const POLL_MIN: Duration = Duration::from_millis(2);
/// A longer time between two passes means that the recorder did not get to run.
const STALLED: Duration = Duration::from_millis(600);
/// When to try again after a pool could not be extended.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Smallest size in bytes, unless another is set, of the pool of a process that lives long enough to be seen. Processes begin
/// with less, because most are short.
const USUAL: u64 = 256 << 10;
/// Safety factor of the recommended pool size.
const MARGIN: f64 = 1.5;

/// Decides on the pool size and the poll interval of one process.
pub(crate) struct PoolSizer {
    /// Minimum size of the pool.
    minimum: Buffer,
    /// When the current quarter of the pool began to fill, and how many chunks of it have been drained.
    since: Instant,
    taken: u64,
    last_pass: Instant,
    /// Time between this pass and the one before.
    interval: Duration,
    /// How soon to drain the pool again.
    poll_interval: Duration,
    failed: Option<Instant>,
    lost: u64,
    recorded: u64,
    /// The first pass, which drains what was recorded earlier, is over.
    drained_once: bool,
    shortfall: Option<Shortfall>,
}

/// A pool that was too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shortfall {
    /// Samples lost.
    pub(crate) lost: u64,
    /// How long the pool was not drained.
    pub(super) interval: Duration,
    /// The pool size that would have been enough.
    pub(crate) buffer: Buffer,
}

impl Shortfall {
    /// Combines both: all losses, and the larger of each other value.
    pub(crate) fn combine(self, other: Option<Self>) -> Self {
        let Some(other) = other else { return self };
        Self {
            lost: self.lost + other.lost,
            interval: self.interval.max(other.interval),
            buffer: self.buffer.max(other.buffer),
        }
    }
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let samples = if self.lost == 1 { "sample" } else { "samples" };
        write!(f, "{} {samples} lost: ", self.lost)?;
        match self.interval {
            interval if interval > STALLED => {
                write!(f, "the recorder did not run for {:.1} s", interval.as_secs_f64())?
            }
            _ => write!(f, "they came faster than the recorder could read them")?,
        }
        match self.buffer {
            Buffer::MAX => write!(f, "; --buffer {} is the maximum", self.buffer),
            buffer => write!(f, "; --buffer {buffer} would have kept them"),
        }
    }
}

impl PoolSizer {
    /// For a process whose pool should have at least the size `minimum`.
    pub(crate) fn new(minimum: Buffer, counters: &CountersSnapshot) -> Self {
        let now = Instant::now();
        Self {
            minimum,
            since: now,
            taken: 0,
            last_pass: now,
            interval: Duration::ZERO,
            poll_interval: POLL_MAX,
            failed: None,
            lost: counters.lost(Loss::PoolFull).count,
            recorded: counters.recorded.count,
            drained_once: false,
            shortfall: None,
        }
    }

    /// How soon to drain the pool if the doorbell does not ring.
    pub(crate) fn poll_interval(&self) -> Duration {
        self.poll_interval
    }

    /// Samples lost so far because the pool was full.
    pub(super) fn shortfall(&self) -> Option<Shortfall> {
        self.shortfall
    }

    /// A pass begins.
    pub(crate) fn begin_pass(&mut self) {
        let now = Instant::now();
        self.interval = now - std::mem::replace(&mut self.last_pass, now);
    }

    /// Adapts the size after a pass that drained `claimed` complete chunks.
    pub(super) fn after_pass(&mut self, attached: &mut Attached, claimed: u64) {
        let (backed, free) = attached.fill();
        let chunk = u64::from(attached.geometry().chunk_size);
        self.note_losses(&attached.counters(), backed as u64 * chunk);
        let first = !std::mem::replace(&mut self.drained_once, true);
        let minimum = match self.minimum.bytes() {
            0 if attached.mode() == Mode::Discard => USUAL,
            bytes => bytes,
        };
        let mut wanted = (minimum / chunk) as usize;
        if !first {
            self.taken += claimed;
            let quarter = (backed as u64 / 4).max(1);
            let is_fast = self.taken >= quarter && self.since.elapsed() < POLL_MAX;
            let is_crowded = free < backed / 2 && attached.mode() == Mode::Discard;
            if is_fast || is_crowded {
                wanted = wanted.max(backed * 2);
            }
            if self.taken >= quarter || self.since.elapsed() >= POLL_MAX {
                (self.since, self.taken) = (Instant::now(), 0);
            }
            let eighths = (claimed * 8).div_ceil(backed as u64 + 1).max(1) as u32;
            self.poll_interval = (self.interval / eighths).clamp(POLL_MIN, POLL_MAX).max(if claimed == 0 {
                POLL_MAX
            } else {
                POLL_MIN
            });
        }
        if wanted > backed
            && self.failed.is_none_or(|failed| failed.elapsed() > RETRY_AFTER)
            && attached.extend_pool(wanted).is_err()
        {
            self.failed = Some(Instant::now());
        }
    }

    /// Counts losses one last time, after the process has ended.
    pub(super) fn after_last_pass(&mut self, attached: &Attached) {
        let pool = attached.fill().0 as u64 * u64::from(attached.geometry().chunk_size);
        self.note_losses(&attached.counters(), pool);
    }

    /// Compares the counters with those of the previous pass.
    fn note_losses(&mut self, counters: &CountersSnapshot, pool: u64) {
        let (lost, recorded) = (counters.lost(Loss::PoolFull).count, counters.recorded.count);
        let newly_lost = lost.saturating_sub(self.lost);
        let kept = recorded.saturating_sub(self.recorded).max(1);
        (self.lost, self.recorded) = (lost, recorded);
        if newly_lost > 0 {
            // What was kept filled the pool; scale that by what was lost.
            let bytes = pool as f64 * (1.0 + newly_lost as f64 / kept as f64) * MARGIN;
            let now = Shortfall {
                lost: newly_lost,
                interval: self.interval,
                buffer: Buffer::at_least(bytes as u64),
            };
            self.shortfall = Some(now.combine(self.shortfall));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortfall_names_what_would_have_been_enough() {
        let one = Shortfall {
            lost: 20,
            interval: Duration::from_millis(2100),
            buffer: Buffer::at_least((9 << 20) + 1),
        };
        let text = "20 samples lost: the recorder did not run for 2.1 s; --buffer 16M would have kept them";
        assert_eq!(one.to_string(), text);
        let other = Shortfall { lost: 1, interval: Duration::ZERO, buffer: Buffer::at_least(u64::MAX) };
        let text =
            "1 sample lost: they came faster than the recorder could read them; --buffer 1G is the maximum";
        assert_eq!(other.to_string(), text);
        let both = one.combine(Some(other));
        assert_eq!((both.lost, both.interval, both.buffer), (21, one.interval, Buffer::MAX));
    }
}
