//! What a perf event adds to a switch of threads on this machine.
//!
//! For each thread that gets or leaves a processor, the kernel starts or cancels the timer of its event. If that timer
//! is the next to expire, the processor's timer is programmed, too, which takes some ten microseconds in some virtual
//! machines and a tenth of one without.

use std::thread;
use std::time::{Duration, Instant};

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

/// Number of attempts, and the time between them: shortly before the tick of the scheduler, no timer is the next to
/// expire.
const ATTEMPTS: usize = 3;
const PAUSE: Duration = Duration::from_micros(300);
/// Measurements of an attempt; half of them may be disturbed.
const ROUNDS: usize = 5;
/// A cost that no attempt shortly before the tick can have.
const PLAUSIBLE: Duration = Duration::from_micros(1);
/// Expiries that are next, and that are not.
const NEAR: Duration = Duration::from_micros(50);
const FAR: Duration = Duration::from_secs(3600);

/// Nanoseconds that the timer of an event with this period adds to a switch, on average; `None` if that cannot be
/// measured. Takes about a millisecond.
pub(crate) fn measure_ns(period: Duration) -> Option<u64> {
    let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC).ok()?;
    let mut cost = attempt(&timer)?;
    for _ in 1..ATTEMPTS {
        if cost >= PLAUSIBLE {
            break;
        }
        thread::sleep(PAUSE);
        cost = cost.max(attempt(&timer)?);
    }
    let tick = nix::time::clock_getres(nix::time::ClockId::CLOCK_MONOTONIC_COARSE).ok()?;
    Some(of_a_switch(cost, period, tick.into()))
}

/// What starting and cancelling a timer that is the next to expire adds: the median.
fn attempt(timer: &TimerFd) -> Option<Duration> {
    let mut costs = [Duration::ZERO; ROUNDS];
    for cost in &mut costs {
        *cost = start_and_cancel(timer, NEAR)?.saturating_sub(start_and_cancel(timer, FAR)?);
    }
    costs.sort_unstable();
    Some(costs[ROUNDS / 2])
}

fn start_and_cancel(timer: &TimerFd, expiry: Duration) -> Option<Duration> {
    let begun = Instant::now();
    timer.set(Expiration::OneShot(TimeSpec::from_duration(expiry)), TimerSetTimeFlags::empty()).ok()?;
    timer.unset().ok()?;
    Some(begun.elapsed())
}

/// The processor's timer is programmed once for each switch, where starting and cancelling do it twice, and only if the
/// event expires before the next tick of the scheduler.
fn of_a_switch(twice: Duration, period: Duration, tick: Duration) -> u64 {
    let (period, tick) = (period.as_secs_f64(), tick.as_secs_f64());
    let next = if period < tick { 1.0 - period / tick / 2.0 } else { tick / period / 2.0 };
    (twice.as_nanos() as f64 / 2.0 * next) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rare_events_are_seldom_the_next_to_expire() {
        let ms = Duration::from_millis;
        let of = |period| of_a_switch(Duration::from_micros(20), period, ms(4));
        assert_eq!([of(ms(1)), of(ms(4)), of(ms(40))], [8_750, 5_000, 500]);
    }

    #[test]
    fn this_machine_has_a_cost() {
        assert!(measure_ns(Duration::from_millis(1)).is_some_and(|ns| ns < 1_000_000));
    }
}
