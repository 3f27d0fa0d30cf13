//! A progress bar for long tasks: on stderr, only on a terminal, shown after a moment, erased at the end.

use std::io::{IsTerminal, Write, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use selfwind_profile::symbolize::Progress;

use crate::terminal::screen::size_of;

/// Tasks shorter than this show no bar.
const MOMENT: Duration = Duration::from_millis(700);
const TICK: Duration = Duration::from_millis(120);
/// Moves to the start of the line and erases it.
const ERASE: &str = "\r\x1b[2K";

/// The progress bar of a task. Dropping it erases the bar.
pub(crate) struct Bar {
    task: Arc<Task>,
    done: Option<Sender<()>>,
    shower: Option<JoinHandle<()>>,
}

/// A task and its progress.
struct Task {
    what: &'static str,
    began: Instant,
    done: AtomicUsize,
    of: AtomicUsize,
}

impl Bar {
    /// Starts the bar; `what` describes the task, as in `naming functions`.
    pub(crate) fn start(what: &'static str) -> Box<dyn Progress> {
        let task = Task { what, began: Instant::now(), done: AtomicUsize::new(0), of: AtomicUsize::new(0) };
        let task = Arc::new(task);
        let (done, wait) = channel();
        let shown = task.clone();
        // If the thread cannot be started, only the bar is missing.
        let show = move || shown.show(&wait);
        let shower = std::thread::Builder::new().name("selfwind-bar".into()).spawn(show).ok();
        Box::new(Self { task, done: Some(done), shower })
    }
}

impl Progress for Bar {
    fn at(&self, done: usize, of: usize) {
        self.task.of.store(of, Ordering::Relaxed);
        self.task.done.store(done, Ordering::Relaxed);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        drop(self.done.take());
        if let Some(shower) = self.shower.take() {
            let _ = shower.join();
        }
    }
}

impl Task {
    /// Draws the bar until the task is done.
    fn show(&self, over: &Receiver<()>) {
        if over.recv_timeout(MOMENT) != Err(RecvTimeoutError::Timeout) || !stderr().is_terminal() {
            return;
        }
        loop {
            let width = size_of(stderr()).map_or(80, |(width, _)| width);
            let _ = write!(stderr(), "{ERASE}{}", self.line(width.saturating_sub(1)));
            if over.recv_timeout(TICK) != Err(RecvTimeoutError::Timeout) {
                let _ = write!(stderr(), "{ERASE}");
                return;
            }
        }
    }

    /// `selfwind: naming functions ====>      3/10 2s`, `width` columns wide.
    fn line(&self, width: usize) -> String {
        let (done, of) = (self.done.load(Ordering::Relaxed), self.of.load(Ordering::Relaxed));
        let before = format!("selfwind: {} ", self.what);
        let after = format!(" {done}/{of} {}s", self.began.elapsed().as_secs());
        let room = width.saturating_sub(before.len() + after.len());
        let full = (room * done).checked_div(of).unwrap_or(0).min(room);
        let head = usize::from(full < room);
        format!("{before}{}{}{}{after}", "=".repeat(full), ">".repeat(head), " ".repeat(room - full - head))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_grows_and_the_line_does_not() {
        let line = |done, of, width| {
            let (done, of) = (AtomicUsize::new(done), AtomicUsize::new(of));
            Task { what: "naming", began: Instant::now(), done, of }.line(width)
        };
        assert_eq!(line(0, 0, 34), "selfwind: naming >          0/0 0s");
        assert_eq!(line(1, 2, 34), "selfwind: naming =====>     1/2 0s");
        assert_eq!(line(2, 2, 34), "selfwind: naming ========== 2/2 0s");
        assert_eq!(line(2, 2, 10), "selfwind: naming  2/2 0s");
    }
}
