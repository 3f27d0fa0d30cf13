//! The wall clock (`-e wall`): where threads are while they wait, without a signal to any of them.
//!
//! A thread of the recorder looks at all threads of the recorded processes, so many times a second. What the kernel counts
//! for each (`schedstat`: time on a processor, time ready for one, times it got one) says whether it has run since the look
//! before. One that has not still has that stack. One that has, and is blocked now, tells where it is in
//! `/proc/PID/task/TID/syscall`; its stack is read through `/proc/PID/mem` and walked here. Nothing of that wakes it.
//!
//! Time is the kernel's own account: at a look at a blocked thread, what has passed since the last such look is divided into
//! running, ready and blocked, to the nanosecond. Which stack was blocked is what looks find. Running threads are sampled by
//! the clock of the recording, inside of them.

mod blocked;
mod call;
mod frame_pointer;
mod looker;
mod memory;
mod running;
mod schedstat;
mod stack;
mod switches;
mod thread;

use std::io;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use selfwind_profile::profile_file::Event;

use looker::Looker;
use running::Running;

/// What a looker is told.
enum Told {
    /// Something of a process.
    Event(Box<Event>),
    /// No more looks.
    End,
}

/// Looks at the threads of recorded processes, in a thread of its own.
pub(crate) struct Wall {
    told: Sender<Told>,
    found: Receiver<Event>,
    looker: Option<JoinHandle<()>>,
    running: Running,
}

impl Wall {
    /// Begins, with so many looks a second.
    ///
    /// # Errors
    /// When there can be no thread for it.
    pub(crate) fn start(frequency: u32) -> io::Result<Self> {
        let (told, hears) = channel();
        let (finds, found) = channel();
        let run = move || Looker::run(frequency, &hears, &finds);
        let looker = std::thread::Builder::new().name("selfwind-wall".into()).spawn(run)?;
        Ok(Self { told, found, looker: Some(looker), running: Running::default() })
    }

    /// Takes in what is recorded: processes, modules, threads; and adds to samples of its own the stacks of threads that
    /// were running and have been put aside.
    pub(crate) fn observe(&mut self, event: &mut Event) {
        self.running.observe(event);
        let is_wanted = matches!(
            event,
            Event::Process(_)
                | Event::Module(_)
                | Event::ModuleGone(_)
                | Event::Thread(_)
                | Event::ProcessEnd(_)
        );
        if is_wanted {
            // Nobody is there any more after a panic, which ends the recording of waits alone.
            let _ = self.told.send(Told::Event(Box::new(event.clone())));
        }
    }

    /// What was found since the last time.
    pub(crate) fn take(&self) -> impl Iterator<Item = Event> + '_ {
        self.found.try_iter()
    }

    /// Ends the looks. All that was found.
    pub(crate) fn finish(&mut self) -> Vec<Event> {
        let _ = self.told.send(Told::End);
        if let Some(looker) = self.looker.take() {
            let _ = looker.join();
        }
        self.found.try_iter().collect()
    }
}

/// What was told since the last time; none if it is over.
fn news(hears: &Receiver<Told>) -> Option<Vec<Event>> {
    let mut events = Vec::new();
    loop {
        match hears.try_recv() {
            Ok(Told::Event(event)) => events.push(*event),
            Ok(Told::End) | Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => return Some(events),
        }
    }
}
