//! A bar for what takes long: on stderr, only on a terminal, only after a moment, gone when it is done.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use selfwind_profile::symbolize::Progress;

/// Nothing is shown of what is done by then.
const MOMENT: Duration = Duration::from_millis(700);
const TICK: Duration = Duration::from_millis(120);

/// A task that may take long. Dropping it takes the bar away.
pub(crate) struct Bar {
    bar: ProgressBar,
    done: Option<Sender<()>>,
    shower: Option<JoinHandle<()>>,
}

impl Bar {
    /// Begins a task; `what` says what is done, as in `naming functions`.
    pub(crate) fn start(what: &'static str) -> Box<dyn Progress> {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        let style = ProgressStyle::with_template("selfwind: {msg} {wide_bar} {pos}/{len} {elapsed}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
        bar.set_message(what);
        let (done, wait) = channel();
        let shown = bar.clone();
        let show = move || {
            if wait.recv_timeout(MOMENT) == Err(RecvTimeoutError::Timeout) {
                // Hidden by itself where stderr is no terminal.
                shown.set_draw_target(ProgressDrawTarget::stderr());
                shown.enable_steady_tick(TICK);
                let _ = wait.recv();
            }
        };
        // Without a thread there is no bar, and nothing else is missing.
        let shower = std::thread::Builder::new().name("selfwind-bar".into()).spawn(show).ok();
        Box::new(Self { bar, done: Some(done), shower })
    }
}

impl Progress for Bar {
    fn at(&self, done: usize, of: usize) {
        self.bar.set_length(of as u64);
        self.bar.set_position(done as u64);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        drop(self.done.take());
        if let Some(shower) = self.shower.take() {
            let _ = shower.join();
        }
        self.bar.finish_and_clear();
    }
}
