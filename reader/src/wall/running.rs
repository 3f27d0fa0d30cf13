//! The last stacks of running threads: a thread that was preempted is still at the same stack.

use std::collections::HashMap;

use selfwind_profile::profile_file::{Event, Sample};
use selfwind_profile::source_list::WALL_SOURCE;

use super::mark::is_exiting;

/// The frames of each thread's last sample and why its walk ended, by process and thread number.
#[derive(Default)]
pub(crate) struct Running {
    stacks: HashMap<(u32, u32), (Vec<u64>, u8)>,
}

impl Running {
    /// Takes in an event of the recording. A wall-clock sample without a stack gets the last one of its thread.
    pub(crate) fn observe(&mut self, event: &mut Event) {
        match event {
            Event::Sample(sample) if sample.source == WALL_SOURCE => self.complete(sample),
            Event::Sample(Sample { process, thread_seq, frames, end, .. }) if !frames.is_empty() => {
                let (kept, why) = self.stacks.entry((*process, *thread_seq)).or_default();
                kept.clone_from(frames);
                *why = *end;
            }
            Event::ThreadEnd(ended) => drop(self.stacks.remove(&(ended.process, ended.seq))),
            Event::ProcessEnd(ended) => self.stacks.retain(|(process, _), _| *process != ended.process),
            _ => {}
        }
    }

    fn complete(&self, sample: &mut Sample) {
        if sample.frames.is_empty()
            && !is_exiting(sample)
            && let Some((frames, end)) = self.stacks.get(&(sample.process, sample.thread_seq))
        {
            sample.frames.clone_from(frames);
            sample.end = *end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_was_put_aside_is_where_it_ran() {
        let mut running = Running::default();
        let sample =
            |source, frames| Event::Sample(Sample { thread_seq: 7, source, frames, ..Sample::default() });
        running.observe(&mut sample(2, vec![1, 2]));
        let mut ready = sample(WALL_SOURCE, Vec::new());
        running.observe(&mut ready);
        assert_eq!(ready, sample(WALL_SOURCE, vec![1, 2]));
        let mut blocked = sample(WALL_SOURCE, vec![5]);
        running.observe(&mut blocked);
        assert_eq!(blocked, sample(WALL_SOURCE, vec![5]));
    }
}
