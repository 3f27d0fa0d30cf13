//! What a process's pool has to hold, and what it failed to.
//!
//! A pool must hold what its process samples while the recorder does not run. When it fills faster than the recorder is
//! sure to come round it is doubled, as far as the process has mapped it. What is lost all the same is told with the
//! pool that would have kept it.

use std::fmt;
use std::time::{Duration, Instant};

use shm_format::{CountersSnapshot, Loss};

use crate::sampling::buffer::Buffer;
use crate::target::attach::Attached;

/// A pool must not come to its watermark, a quarter, in less than this.
const LEAST: Duration = Duration::from_millis(250);
/// Between two passes over pools whose processes cannot wake us.
const SHORTEST: Duration = Duration::from_millis(2);
/// A recorder that did not look for so long was kept from it.
const AWAY: Duration = Duration::from_millis(600);
/// After a file system without room was met.
const RETRY: Duration = Duration::from_secs(1);
/// Of what is recommended, a part for the next time that is worse.
const MARGIN: f64 = 1.5;

/// What one process wants of its pool.
pub(crate) struct Demand {
    /// Chunks it is to have in any case.
    least: Buffer,
    /// When the present quarter began, and the chunks that were taken of it.
    since: Instant,
    taken: u64,
    looked: Instant,
    /// Between this pass and the one before.
    away: Duration,
    /// How soon to look again.
    turn: Duration,
    refused: Option<Instant>,
    lost: u64,
    recorded: u64,
    /// The first pass takes what there was before.
    begun: bool,
    shortfall: Option<Shortfall>,
}

/// A pool that was too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shortfall {
    /// Samples lost.
    pub(crate) lost: u64,
    /// How long nobody looked.
    pub(super) away: Duration,
    /// What would have been enough.
    pub(crate) buffer: Buffer,
}

impl Shortfall {
    /// The worse of both.
    pub(crate) fn and(self, other: Option<Self>) -> Self {
        let Some(other) = other else { return self };
        Self {
            lost: self.lost + other.lost,
            away: self.away.max(other.away),
            buffer: self.buffer.max(other.buffer),
        }
    }
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let samples = if self.lost == 1 { "sample" } else { "samples" };
        write!(f, "{} {samples} lost: ", self.lost)?;
        match self.away {
            away if away > AWAY => write!(f, "the recorder did not run for {:.1} s", away.as_secs_f64())?,
            _ => write!(f, "they came faster than the recorder could read them")?,
        }
        match self.buffer {
            Buffer::MOST => write!(f, "; --buffer {} is the maximum", self.buffer),
            buffer => write!(f, "; --buffer {buffer} would have kept them"),
        }
    }
}

impl Demand {
    /// Of a process whose pool has this size at least, where that can be had.
    pub(crate) fn new(least: Buffer, counters: &CountersSnapshot) -> Self {
        let now = Instant::now();
        Self {
            least,
            since: now,
            taken: 0,
            looked: now,
            away: Duration::ZERO,
            turn: LEAST,
            refused: None,
            lost: counters.lost(Loss::PoolFull).count,
            recorded: counters.recorded.count,
            begun: false,
            shortfall: None,
        }
    }

    /// How soon the pool should be looked at if nobody rings.
    pub(crate) fn turn(&self) -> Duration {
        self.turn
    }

    /// What was lost so far for want of room.
    pub(super) fn shortfall(&self) -> Option<Shortfall> {
        self.shortfall
    }

    /// A pass begins.
    pub(crate) fn look(&mut self) {
        let now = Instant::now();
        self.away = now - std::mem::replace(&mut self.looked, now);
    }

    /// A pass has taken `claimed` chunks that their writers had left.
    pub(super) fn after_pass(&mut self, attached: &mut Attached, claimed: u64) {
        let (backed, free) = attached.fill();
        let chunk = u64::from(attached.geometry().chunk_size);
        self.note_losses(&attached.counters(), backed as u64 * chunk);
        let first = !std::mem::replace(&mut self.begun, true);
        let mut wanted = (self.least.bytes() / chunk) as usize;
        if !first {
            self.taken += claimed;
            let quarter = (backed as u64 / 4).max(1);
            let is_fast = self.taken >= quarter && self.since.elapsed() < LEAST;
            let is_crowded = free < backed / 2 && attached.mode() == shm_format::Mode::Discard;
            if is_fast || is_crowded {
                wanted = wanted.max(backed * 2);
            }
            if self.taken >= quarter || self.since.elapsed() >= LEAST {
                (self.since, self.taken) = (Instant::now(), 0);
            }
            let eighths = (claimed * 8).div_ceil(backed as u64 + 1).max(1) as u32;
            self.turn =
                (self.away / eighths).clamp(SHORTEST, LEAST).max(if claimed == 0 { LEAST } else { SHORTEST });
        }
        if wanted > backed
            && self.refused.is_none_or(|refused| refused.elapsed() > RETRY)
            && attached.extend_pool(wanted).is_err()
        {
            self.refused = Some(Instant::now());
        }
    }

    /// Its process is gone.
    pub(super) fn after_last_pass(&mut self, attached: &Attached) {
        let pool = attached.fill().0 as u64 * u64::from(attached.geometry().chunk_size);
        self.note_losses(&attached.counters(), pool);
    }

    /// Compares the counters with those of the pass before.
    fn note_losses(&mut self, counters: &CountersSnapshot, pool: u64) {
        let (lost, recorded) = (counters.lost(Loss::PoolFull).count, counters.recorded.count);
        let news = lost.saturating_sub(self.lost);
        let kept = recorded.saturating_sub(self.recorded).max(1);
        (self.lost, self.recorded) = (lost, recorded);
        if news > 0 {
            // What came filled the pool; as much again for each as many that were lost.
            let bytes = pool as f64 * (1.0 + news as f64 / kept as f64) * MARGIN;
            let now = Shortfall { lost: news, away: self.away, buffer: Buffer::at_least(bytes as u64) };
            self.shortfall = Some(now.and(self.shortfall));
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
            away: Duration::from_millis(2100),
            buffer: Buffer::at_least((9 << 20) + 1),
        };
        let text = "20 samples lost: the recorder did not run for 2.1 s; --buffer 16M would have kept them";
        assert_eq!(one.to_string(), text);
        let other = Shortfall { lost: 1, away: Duration::ZERO, buffer: Buffer::at_least(u64::MAX) };
        let text =
            "1 sample lost: they came faster than the recorder could read them; --buffer 1G is the maximum";
        assert_eq!(other.to_string(), text);
        let both = one.and(Some(other));
        assert_eq!((both.lost, both.away, both.buffer), (21, one.away, Buffer::MOST));
    }
}
