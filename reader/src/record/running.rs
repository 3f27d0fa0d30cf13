//! Records a running process. It continues as before when the recording ends.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use anyhow::Context;

use crate::drain::collector::{Collector, Scope};
use crate::drain::follow::{Flow, follow};
use crate::drain::watch::{self, WatchEvent};
use crate::proc::{self, Stat};
use crate::record::attachment::{SampledProcess, as_sampled, attach, search_started, settings};
use crate::record::module_refresh::ModuleRefresh;
use crate::record::options::RecordOptions;
use crate::record::priority::RaisedPriority;
use crate::record::recording::{Output, Recording, cannot_continue};
use crate::record::snapshot;
use crate::tables::cache::Cache;
use crate::target::attach::Doorbell;
use crate::target::inject::{self, Sampling, Turn};
use crate::target::leftovers;
use crate::target::session::{self, Session};
use crate::target::shortage;
use crate::terminal::notices::Notices;

/// Records a running process, or saves what its flight recorder holds. Returns the exit status.
pub(super) fn record_process(options: &RecordOptions, pid: u32) -> anyhow::Result<u8> {
    if options.snapshot {
        return snapshot::save_process(options, pid);
    }
    let lives = proc::start_time(pid).is_some();
    if lives {
        inject::check_sources(pid, &options.sampling.sources)?;
    }
    // Whatever can fail comes before the attach, from which on the process is sampled.
    let signals = watch::block_signals(options.takes_snapshots()).context("cannot block signals")?;
    let signals = signals.with_interval(options.every);
    let priority = RaisedPriority::begin();
    shortage::raise_open_files();
    let output = Output::of(options)?;
    leftovers::reap_abandoned();
    let turn = Turn::at(pid);
    let sampling = match lives.then(|| attach(&options.sampling, pid, options.notices)).transpose() {
        Ok(sampling) => sampling,
        Err(error) => {
            output.abandon();
            return Err(error);
        }
    };
    let sampled = SampledProcess {
        pid: sampling.is_some_and(Sampling::ends_with_us).then_some(pid),
        notices: options.notices,
    };
    // For the processes that an injected process starts. Those with the agent in front start theirs with it.
    let session = match sampling.is_some_and(Sampling::is_attached).then(Session::create).transpose() {
        Ok(session) => session,
        Err(error) => {
            output.abandon();
            return Err(error.into());
        }
    };
    let followed = follow_process(
        &as_sampled(options, pid, sampling),
        pid,
        sampling,
        output,
        signals,
        session.as_ref(),
        (turn, sampled),
    );
    session.into_iter().for_each(Session::remove);
    let (recording, events) = followed?;
    drop(priority);
    recording.end(None, None, Some(&events))?;
    Ok(0)
}

/// Records a running process until a signal, the deadline or its end.
fn follow_process(
    options: &RecordOptions,
    pid: u32,
    sampling: Option<Sampling>,
    output: Output,
    signals: watch::BlockedSignals,
    session: Option<&Session>,
    // Dropped from right to left.
    (turn, sampled): (Turn, SampledProcess),
) -> anyhow::Result<(Recording, Receiver<WatchEvent>)> {
    // After the attach, which may create the directory.
    let directories = session::directories();
    let mut collector = Collector::new(directories, Scope::Process(pid), options.notices)
        .with_buffer(options.sampling.buffer)
        .begun_for_us(sampling == Some(Sampling::Begun) && options.delay.is_none());
    if let Err(error) = collector.find_process(pid) {
        output.abandon();
        return Err(error.into());
    }
    drop(turn);
    let doorbell = match session {
        Some(session) => session.doorbell(),
        None => Arc::new(Doorbell::private().context("cannot map a page")?),
    };
    let events = watch::start(signals, None, doorbell.clone()).context("cannot start a thread")?;
    let mut recording = output
        .commit(pid)
        .and_then(|output| Recording::begin(output, Cache::of_user(options.notices), options, None))?;
    if let Some(session) = session {
        search_started(&mut collector, session, pid, &options.sampling)?;
        report_children(pid, options.notices);
    }
    let deadline = options.deadline();
    if deadline.is_none() {
        options
            .notices
            .say(format_args!("recording process {pid}; Ctrl-C ends the recording, not the process"));
    }
    let mut answer = |event| match event {
        WatchEvent::IntervalPassed | WatchEvent::Signal { signal: watch::SNAPSHOT, .. } => Flow::Snapshot,
        _ => Flow::Finish,
    };
    let followed = if sampling.is_some_and(Sampling::is_attached) {
        let mut listener =
            ModuleRefresh::new(&mut recording, pid, settings(&options.sampling), options.notices);
        follow(&mut collector, &doorbell, &events, deadline, &mut listener, &mut answer)
    } else {
        follow(&mut collector, &doorbell, &events, deadline, &mut recording, &mut answer)
    };
    let turn = Turn::at(pid);
    drop(sampled);
    session.into_iter().for_each(Session::stop);
    collector.release_processes();
    followed
        .and_then(|_| collector.finish(&mut recording))
        .map_err(|error| cannot_continue(recording.path(), &error))?;
    drop((collector, turn));
    Ok((recording, events))
}

/// Names the children that the process has already, which do not belong to the recording.
fn report_children(pid: u32, notices: Notices) {
    /// How many to name.
    const NAMED: usize = 3;
    let is_child = |child: &u32| {
        let stat = Stat::of(*child).ok().flatten();
        stat.is_some_and(|stat| stat.parent == pid && !stat.is_zombie()) && *child != std::process::id()
    };
    let children: Vec<u32> = proc::processes().into_iter().filter(is_child).collect();
    if !children.is_empty() {
        let named: Vec<String> = children.iter().take(NAMED).map(u32::to_string).collect();
        let more = if children.len() > NAMED { ", ..." } else { "" };
        notices.say(format_args!(
            "process {pid} already has children, which are not recorded: {}{more}; record each by its own process id",
            named.join(", ")
        ));
    }
}
