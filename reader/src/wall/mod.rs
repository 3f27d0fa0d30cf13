//! Wall-clock sampling (`-e wall`): where threads wait, without sending them a signal.
//!
//! A thread of the recorder checks all threads of the recorded processes at the sampling rate. The kernel's counts for a thread
//! (`schedstat`: time running, time runnable, times scheduled) tell whether it has run since the last check. If not, its stack is
//! unchanged. If it has and is blocked now, `/proc/PID/task/TID/syscall` has its registers; its stack is read through
//! `/proc/PID/mem` and walked here, Python's frames included. None of that wakes the thread.
//!
//! Times come from the kernel's accounting: whenever a thread is found blocked, the time since it was last found blocked is divided
//! into running, runnable and blocked, to the nanosecond. Only the stack is a matter of sampling. Running threads are sampled
//! by the clock of the recording, inside the process.

mod blocked;
mod call;
mod frame_pointer;
mod mark;
mod memory;
mod message;
mod python;
mod running;
mod sampler;
mod schedstat;
mod stack;
mod switches;
mod thread;
mod thread_ids;

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use selfwind_profile::profile_file::Event;

use crate::drain::namespaces::PID_HERE;
use message::Message;
pub(crate) use python::PYTHON_AT;
use running::Running;
use sampler::Sampler;

/// Samples the waiting threads of recorded processes, in a separate thread.
pub(crate) struct Wall {
    told: Sender<Message>,
    found: Receiver<Event>,
    sampler: Option<JoinHandle<()>>,
    running: Running,
}

impl Wall {
    /// Starts sampling `frequency` times a second. What threads did before `since_ns` (CLOCK_MONOTONIC) does not count.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn start(frequency: u32, since_ns: u64) -> io::Result<Self> {
        let (told, messages) = channel();
        let (samples, found) = channel();
        let run = move || Sampler::run(frequency, since_ns, &messages, &samples);
        let sampler = std::thread::Builder::new().name("selfwind-wall".into()).spawn(run)?;
        Ok(Self { told, found, sampler: Some(sampler), running: Running::default() })
    }

    /// Takes in the events of the recording: processes, modules, threads. Adds the last running stack to samples of preempted threads.
    pub(crate) fn observe(&mut self, event: &mut Event) {
        self.running.observe(event);
        let is_wanted = matches!(
            event,
            Event::Process(_)
                | Event::Module(_)
                | Event::ModuleGone(_)
                | Event::Thread(_)
                | Event::ProcessEnd(_)
        ) || matches!(event, Event::Setting(setting) if [PYTHON_AT, PID_HERE].contains(&&*setting.key));
        if is_wanted {
            // Fails only after a panic of the thread, which ends wall-clock sampling alone.
            let _ = self.told.send(Message::Event(Box::new(event.clone())));
        }
    }

    /// The samples since the last call.
    pub(crate) fn take(&self) -> impl Iterator<Item = Event> + '_ {
        self.found.try_iter()
    }

    /// Stops sampling. Returns the remaining samples.
    pub(crate) fn finish(&mut self) -> Vec<Event> {
        let _ = self.told.send(Message::End);
        if let Some(sampler) = self.sampler.take() {
            let _ = sampler.join();
        }
        self.found.try_iter().collect()
    }
}
