//! Start in a process that runs already, without the loader's help.
//!
//! The recorder has laid this library into the process, relocated it, and stopped every thread; one of them comes
//! here, on a stack of the recorder's, with all signals blocked. Whatever that thread was doing, it may be in the middle
//! of it (in `malloc`, in the loader), so nothing of the program is called: system calls and our own heap only.
//!
//! What a preloaded agent sees through the functions it stands in front of is not seen here: forks, execs, libraries
//! loaded later, what the program does with the signal, and a system call filter installed later. New threads are found
//! by the ticks of those that are known.

use alloc::boxed::Box;
use core::arch::global_asm;
use core::ffi::CStr;

use handler::process::{self, Recording};
use handler::slot::{self, Slot};
use shm_format::injection::{Call, Command};

use crate::agent::{self, Agent};
use crate::config::Config;
use crate::journal::{self, ModuleNews};
use crate::modules::{self, Stage};
use crate::session::{Directory, Failure, Myself};
use crate::{link_map, sources, threads};

// The entry point of the library's file. Hidden: it is no name of the program's.
global_asm!(
    ".text",
    ".globl selfwind_attached",
    ".hidden selfwind_attached",
    ".type selfwind_attached,@function",
    "selfwind_attached:",
    "jmp {enter}",
    ".size selfwind_attached, . - selfwind_attached",
    enter = sym enter,
);

/// Does what `call` asks; the result is that of [`shm_format::injection`].
unsafe extern "C" fn enter(call: *const Call) -> u64 {
    // SAFETY: the recorder passes a call that stays mapped.
    let call: &'static Call = unsafe { &*call };
    let result = match (call.version, Command::from_raw(call.command)) {
        (Call::VERSION, Some(Command::Start)) => start(call),
        (Call::VERSION, Some(Command::Stop)) => {
            stop();
            Ok(())
        }
        _ => Err(b"the process holds an agent of another version".to_vec()),
    };
    let Err(text) = result else { return 0 };
    let bytes = text.len().min(call.reply_capacity as usize);
    // SAFETY: the recorder's buffer, of this capacity.
    unsafe { core::slice::from_raw_parts_mut(call.reply as *mut u8, bytes) }.copy_from_slice(&text[..bytes]);
    bytes as u64
}

fn start(call: &'static Call) -> Result<(), alloc::vec::Vec<u8>> {
    // SAFETY: the recorder's settings, of this length, mapped for ever.
    let settings =
        unsafe { core::slice::from_raw_parts(call.settings as *const u8, call.settings_len as usize) };
    let config = Config::read(
        settings.split_inclusive(|byte| *byte == 0).filter_map(|entry| CStr::from_bytes_with_nul(entry).ok()),
    );
    link_map::set_without_loader(call.debugger as *mut _);
    if let (Some(recording), Some(agent)) = (process::recording(), agent::get()) {
        resume(recording, agent, config).map_err(Failure::text)?;
        tell_control(call);
        return Ok(());
    }
    crate::record_attached(config).map_err(|failure| failure.text())?;
    tell_control(call);
    Ok(())
}

/// Tells the next recorder where to call.
fn tell_control(call: &Call) {
    if let Some(recording) = process::recording() {
        journal::tell_setting(recording, Call::SETTING, alloc::format!("{:x}", call.control).as_bytes());
    }
}

/// Samples once more, or goes on with what has been loaded and started since.
fn resume(recording: &Recording, agent: &'static Agent, config: Config) -> Result<(), Failure> {
    modules::rescan(Stage::Attached, &agent.names, &mut ModuleNews(recording));
    slot::taken().for_each(sources::stop_timer);
    let same_rate = config.frequency == agent.config.frequency;
    let agent: &'static Agent = Box::leak(Box::new(Agent {
        names: agent.names.clone(),
        directory: Directory::clone(&agent.directory),
        user: agent.user,
        config,
    }));
    agent::set(agent);
    let (limit, period_ns) = agent.config.limit(recording.source);
    recording.governor.set(limit, period_ns);
    recording.newcomers.set_period(period_ns);
    process::set_stopped(false);
    if same_rate {
        threads::register_existing(recording, None);
        return Ok(());
    }
    restart(recording, agent)
}

/// Begins a region of its own for samples that weigh something else. A thread may have been stopped while it writes into
/// the one before, which stays mapped, with its slot.
fn restart(before: &Recording, agent: &'static Agent) -> Result<(), Failure> {
    let Some(last) = agent::myself() else { return Err(Failure::Proc) };
    let myself: &'static Myself = Box::leak(Box::new(Myself::read(Some(last.boot_id()))?));
    let recording = crate::process::open(agent, myself, None)?;
    journal::tell_setting(before, Call::SETTING, b"");
    agent.directory.remove_region(last);
    agent::set_myself(myself);
    slot::taken().for_each(Slot::abandon);
    modules::tell_all(&mut ModuleNews(recording));
    crate::process::begin(agent, recording, |recording| threads::register_existing(recording, None));
    Ok(())
}

/// Samples no more. Slots and region stay: a thread may have been stopped in the middle of a sample.
fn stop() {
    process::set_stopped(true);
    slot::taken().for_each(sources::stop_timer);
    if let Some(recording) = process::recording() {
        journal::tell_anchor(recording);
        journal::tell_setting(recording, Call::SETTING, b"");
        recording.ring();
    }
}
