//! Start in a running process, without the loader.
//!
//! The recorder has copied this library into the process, relocated it, and started a thread that enters here, on a
//! stack provided by the recorder, with all signals blocked, while the program continues. If the process may create no
//! more threads, one of the program's threads enters instead, possibly interrupted inside `malloc` or the loader. So no
//! code of the program may be called: only system calls and the agent's own heap are used. And no memory of the program
//! that it may unmap is read in place.
//!
//! Without interposition the agent does not see forks, execs, libraries loaded later, the program's use of the sampling
//! signal, or a seccomp filter installed later. As long as there is a recorder, it discovers new threads.

use alloc::boxed::Box;
use core::arch::global_asm;
use core::ffi::CStr;
use core::sync::atomic::AtomicU64;

use handler::recording::{self, Recording};
use handler::slot::{self, Slot};
use platform::clock::Forbidden;
use shm_format::injection::{Call, Command};

use crate::agent::{self, Agent};
use crate::config::Config;
use crate::heap::HEAP;
use crate::journal;
use crate::module_news::ModuleNews;
use crate::modules::{self, Stage};
use crate::session::{Directory, Failure, Myself};
use crate::threads::Present;
use crate::{allocations, auxiliary, handed, kernel, link_map, replaced, signals, sources, threads};

// The entry point of the library's file. Hidden, so that the program cannot bind to it.
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

/// Executes `call`; the result is specified in [`shm_format::injection`].
unsafe extern "C" fn enter(call: *mut Call, apart: u64) -> u64 {
    // SAFETY: the recorder passes a call that stays mapped, and does not write to it until this returns.
    unsafe { (*call).hook = loader_changed as unsafe extern "C" fn() as usize as u64 };
    // SAFETY: the call stays mapped, and both sides access this word atomically.
    handed::publish_at(unsafe { AtomicU64::from_ptr(&raw mut (*call).socket) });
    // SAFETY: the call stays mapped, and from here on only its atomic word is written.
    let call: &'static Call = unsafe { &*call };
    let present = if apart != 0 { Present::Apart } else { Present::Caller(call.mask) };
    let result = match (call.version, Command::from_raw(call.command)) {
        (Call::VERSION, Some(Command::Start)) => start(call, present),
        (Call::VERSION, Some(Command::Stop)) => {
            stop();
            Ok(())
        }
        (Call::VERSION, Some(Command::Redirect)) => {
            replaced::release();
            match allocations::redirect() {
                true => Ok(()),
                false => Err(b"no library of the process has an allocator, or its loader is busy".to_vec()),
            }
        }
        _ => Err(b"the process holds an agent of another version".to_vec()),
    };
    kernel::set_process_directory(None);
    handed::close_unused();
    let Err(text) = result else { return 0 };
    let bytes = text.len().min(call.reply_capacity as usize);
    // SAFETY: the recorder's reply buffer has this capacity.
    unsafe { core::slice::from_raw_parts_mut(call.reply as *mut u8, bytes) }.copy_from_slice(&text[..bytes]);
    drop(text);
    if recording::current().is_none() {
        // SAFETY: the agent has not started: the recorder removes this image, and with it everything that refers to the
        // heap.
        unsafe { HEAP.give_up() };
    }
    bytes as u64
}

fn start(call: &'static Call, present: Present) -> Result<(), alloc::vec::Vec<u8>> {
    link_map::set_without_loader(call.debugger as *mut _);
    // SAFETY: the recorder's settings have this length and stay mapped forever.
    let settings =
        unsafe { core::slice::from_raw_parts(call.settings as *const u8, call.settings_len as usize) };
    let config = Config::read(
        settings.split_inclusive(|byte| *byte == 0).filter_map(|entry| CStr::from_bytes_with_nul(entry).ok()),
    )
    .attached();
    // SAFETY: the recorder's copy has this length and stays mapped forever.
    let vector =
        unsafe { core::slice::from_raw_parts(call.auxiliary as *const u64, call.auxiliary_words as usize) };
    auxiliary::take_over(vector);
    if let (Some(recording), Some(agent)) = (recording::current(), agent::get()) {
        resume(recording, agent, config, present).map_err(Failure::text)?;
        tell_control(call);
        return Ok(());
    }
    if config.handed.is_some() {
        handed::receive().map_err(|error| Failure::Create(error).text())?;
    }
    let forbidden = match call.unfiltered {
        0 => Forbidden::default(),
        _ => Forbidden::by_kernel(),
    };
    crate::record_attached(config, present, forbidden).map_err(|failure| failure.text())?;
    tell_control(call);
    Ok(())
}

/// Publishes the address of the call for the next recorder, and which recorder ends the sampling.
fn tell_control(call: &Call) {
    if let Some(recording) = recording::current() {
        if let Some(agent) = agent::get() {
            journal::tell_setting(recording, Call::RECORDER, &agent.config.recorder);
        }
        journal::tell_setting(recording, Call::SETTING, alloc::format!("{:x}", call.control).as_bytes());
    }
}

/// Resumes sampling; if it never stopped, registers what has been loaded and started since.
fn resume(
    recording: &'static Recording,
    agent: &'static Agent,
    config: Config,
    present: Present,
) -> Result<(), Failure> {
    let needs_proc = config.handed.is_some() && !handed::has_proc();
    if needs_proc {
        handed::receive().map_err(Failure::Create)?;
    }
    modules::rescan(Stage::Attached, &agent.names, &mut ModuleNews::new(recording));
    slot::taken().for_each(sources::stop_timer);
    // Of blocks that were freed in between, the table of live ones knows nothing.
    let same_samples = config.takes_same_samples(&agent.config) && config.allocations == 0 && !needs_proc;
    signals::take_over().map_err(Failure::Signal)?;
    recording.region.close_requests(false);
    let agent: &'static Agent = Box::leak(Box::new(Agent {
        names: agent.names.clone(),
        directory: Directory::clone(&agent.directory),
        user: agent.user,
        config,
    }));
    agent::set(agent);
    let (limit, period_ns) = agent.config.limit(recording.sources.clock);
    recording.rate_limit.set(limit, period_ns);
    recording.late_start.restart(period_ns);
    recording::set_stopped(false);
    if same_samples {
        threads::register_existing(recording, present);
        return Ok(());
    }
    restart(recording, agent, present)
}

/// Begins a new region, because samples now have another weight or content. The previous one is left with its slots: a
/// thread may be writing into it.
fn restart(before: &'static Recording, agent: &'static Agent, present: Present) -> Result<(), Failure> {
    let Some(last) = agent::myself() else { return Err(Failure::Proc) };
    let myself: &'static Myself =
        Box::leak(Box::new(Myself::read(Some(last.boot_id()))?.named(&agent.config)));
    let recording = crate::process::open(agent, myself, None, None)?;
    journal::tell_setting(before, Call::SETTING, b"");
    agent.directory.remove_region(last);
    agent::set_myself(myself);
    slot::taken().for_each(Slot::leave_region);
    modules::tell_all(&mut ModuleNews::new(recording));
    crate::process::begin(agent, recording, |recording| threads::register_existing(recording, present));
    replaced::note(before);
    Ok(())
}

/// Stops sampling and gives the signal back. Slots and region stay: a thread may be in the middle of a sample.
fn stop() {
    // First, as the hooked loader waits only while the agent records.
    allocations::end_redirection();
    recording::set_stopped(true);
    slot::taken().for_each(sources::stop_timer);
    if let Some(recording) = recording::current() {
        crate::process::refuse_requests(recording);
        signals::give_back();
        slot::taken().for_each(|slot| slot.tell_events(recording.region.control()));
        journal::tell_anchor(recording);
        journal::tell_setting(recording, Call::SETTING, b"");
        recording.ring();
    }
    replaced::release();
}

// The loader calls an empty function before and after it changes its list of objects, holding its lock. That function
// has been patched to jump here. All caller-saved registers are preserved, since the loader may know that its own empty
// function does not use them.
global_asm!(
    ".text",
    ".p2align 4",
    ".globl selfwind_loader_changed",
    ".hidden selfwind_loader_changed",
    ".type selfwind_loader_changed,@function",
    "selfwind_loader_changed:",
    "push rbp",
    "mov rbp, rsp",
    "push rax",
    "push rcx",
    "push rdx",
    "push rsi",
    "push rdi",
    "push r8",
    "push r9",
    "push r10",
    "push r11",
    "sub rsp, 520",
    "and rsp, -64",
    "fxsave64 [rsp]",
    "cld",
    "call {look}",
    "fxrstor64 [rsp]",
    "lea rsp, [rbp - 72]",
    "pop r11",
    "pop r10",
    "pop r9",
    "pop r8",
    "pop rdi",
    "pop rsi",
    "pop rdx",
    "pop rcx",
    "pop rax",
    "pop rbp",
    "ret",
    ".size selfwind_loader_changed, . - selfwind_loader_changed",
    look = sym look,
);

unsafe extern "C" {
    #[link_name = "selfwind_loader_changed"]
    fn loader_changed();
}

/// Registers what the loader has changed: called before the change, and after it, before any new code runs.
extern "C" fn look() {
    if recording::is_stopped() || !agent::is_own_process() {
        return;
    }
    if !link_map::is_idle() {
        return link_map::wait_until_unobserved();
    }
    if let (Some(recording), Some(agent)) = (recording::current(), agent::get()) {
        modules::rescan(Stage::Attached, &agent.names, &mut ModuleNews::new(recording));
    }
}
