//! The preloaded library that makes a process sample itself.
//!
//! Read `start` from top to bottom. Everything in this crate runs outside the sampling handler, which is the crate
//! `handler`. The library must not depend on any other library, keep a file open or start a thread, and must leave the
//! program's memory, signals and errors as they would be without it. no_std only if panics abort, as in the profile
//! `agent`. Other profiles exist for the compiler's checks.
#![cfg_attr(panic = "abort", no_std)]
#![warn(missing_docs)]

extern crate alloc;

mod abi;
mod agent;
#[cfg(feature = "allocations")]
mod allocations;
#[cfg(not(feature = "allocations"))]
#[path = "allocations/none.rs"]
mod allocations;
mod attached;
mod auxiliary;
mod call_filter;
mod config;
mod copied_image;
#[cfg(any(feature = "allocations", feature = "locks"))]
mod distance;
mod dynamic;
mod events;
#[cfg(panic = "abort")]
mod freestanding;
mod generated;
mod handed;
mod heap;
mod hexadecimal;
mod holes;
mod initial_stack;
mod interpose;
mod journal;
mod kernel;
mod link_map;
mod live_tables;
mod lock;
#[cfg(feature = "locks")]
mod locks;
#[cfg(not(feature = "locks"))]
#[path = "locks/none.rs"]
mod locks;
mod mapped_files;
#[cfg(feature = "mappings")]
mod mappings;
#[cfg(not(feature = "mappings"))]
#[path = "mappings/none.rs"]
mod mappings;
mod module_news;
mod modules;
mod names;
mod object_info;
#[cfg(feature = "allocations")]
mod offset_table;
mod pending;
mod perf_attributes;
mod preload;
mod preserved_registers;
mod process;
mod python;
mod regions;
mod replaced;
mod room;
mod sampling_signal;
mod second_mappings;
mod sections;
mod session;
mod signal_stacks;
mod signals;
mod sources;
mod symbols;
mod thread_list;
mod thread_status;
mod threads;
mod time_namespace;
mod tracepoints;

use alloc::boxed::Box;
use alloc::vec::Vec;

use handler::chain;
use handler::recording::Recording;
use handler::slot::{self, Slot};
use platform::clock::{self, Forbidden};

use crate::agent::Agent;
use crate::config::Config;
use crate::initial_stack::InitialStack;
use crate::lock::Masked;
use crate::module_news::ModuleNews;
use crate::modules::Stage;
use crate::names::Names;
use crate::session::{Directory, Failure, Myself};
use crate::threads::Present;

ctor::declarative::ctor! {
    /// Runs before the program's `main`, called by the loader.
    #[ctor(unsafe)]
    fn start() {
        let mut masked = Masked::new();
        // Needed even if nothing is recorded: the interposed functions must reach the real ones.
        interpose::find_real_functions();
        allocations::find_real_functions();
        locks::find_real_functions();
        mappings::find_real_functions();
        symbols::started();
        let config = Config::read(symbols::environment());
        if !config.enabled {
            tracepoints::never();
            allocations::never();
            return locks::never();
        }
        let verbose = config.verbose;
        if let Err(failure) = record(config, &mut masked) {
            allocations::never();
            tracepoints::never();
            locks::never();
            if verbose {
                kernel::say(&[b"selfwind: not recording: ", &failure.text(), b"\n"]);
            }
        }
    }
}

/// Runs after the program's exit handlers, called by the C library.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = {
    extern "C" fn end() {
        process::end();
    }
    end
};

/// Starts recording this process, whose program has not started yet.
fn record(config: Config, masked: &mut Masked) -> Result<(), Failure> {
    let entered_ns = clock::thread_cpu_ns();
    let (agent, myself, recording) = prepare(config, Stage::Start)?;
    process::watch_forks();
    signal_stacks::begin();
    preload::remember();
    process::begin(agent, recording, |recording| {
        // The mask may be inherited from before the exec.
        let hidden = !chain::has_handler() && masked.unmask(sampling_signal::get());
        threads::register_first(recording, hidden);
        // This thread will be sampled, perhaps under a seccomp filter.
        slot::taken().for_each(Slot::prepare_early);
        if myself.threads > 1 {
            threads::register_existing(recording, Present::Known);
        }
    });
    threads::sample_start(recording, entered_ns);
    Ok(())
}

/// Starts recording this process, which is already running. All of its threads are treated alike: none registers
/// itself. `present` describes the calling thread, `forbidden` what the process has forbidden itself.
fn record_attached(config: Config, present: Present, forbidden: Forbidden) -> Result<(), Failure> {
    choose_clock(forbidden);
    let (agent, _, recording) = prepare(config, Stage::Attached)?;
    process::begin(agent, recording, |recording| threads::register_existing(recording, present));
    Ok(())
}

type Prepared = (&'static Agent, &'static Myself, &'static Recording);

/// Creates and publishes the agent. Sampling does not begin yet.
fn prepare(config: Config, stage: Stage) -> Result<Prepared, Failure> {
    let stack = InitialStack::find().filter(|_| stage == Stage::Start);
    if stage == Stage::Start {
        auxiliary::read(stack.as_ref());
        // Exec permits everything again but the counter, and that has been read by glibc's loader.
        choose_clock(Forbidden::default());
    }
    let directory = Directory::find(&config)?;
    let myself: &'static Myself = Box::leak(Box::new(Myself::read(config.boot)?.named(&config)));
    let names = names(&config);
    let agent: &'static Agent =
        Box::leak(Box::new(Agent { config, names, directory, user: kernel::user_id() }));
    let arguments = stack.and_then(|stack| stack.arguments(journal::ARGUMENTS));
    let recording = begin(agent, myself, arguments, stage)
        .inspect_err(|failure| agent.directory.note_failure(myself, failure))?;
    agent::set_myself(myself);
    agent::set(agent);
    Ok((agent, myself, recording))
}

/// Creates the region, registers the modules, and takes over the signal.
fn begin(
    agent: &Agent,
    myself: &Myself,
    arguments: Option<&[u8]>,
    stage: Stage,
) -> Result<&'static Recording, Failure> {
    let recording = process::open(agent, myself, arguments, None)?;
    modules::rescan(stage, &agent.names, &mut ModuleNews::new(recording));
    signals::take_over().map_err(Failure::Signal)?;
    Ok(recording)
}

fn choose_clock(forbidden: Forbidden) {
    // SAFETY: the address of the vDSO's own function, or none.
    unsafe { clock::choose(symbols::vdso_clock, forbidden) };
}

/// The path of a program that the dynamic loader was told to run, as in `ld.so PROGRAM`: to the kernel the loader is the program.
fn program_run_by_loader() -> Option<Vec<u8>> {
    let is_loaded = !link_map::is_without_loader() && !auxiliary::has_loader();
    // SAFETY: the first object of the loader's list is the program, which is never unloaded.
    let program = unsafe { link_map::first().as_ref() }.filter(|_| is_loaded)?;
    mapped_files::path_at(program.dynamic as u64)
}

/// What is needed to name objects for which the loader gives no full name.
fn names(config: &Config) -> Names {
    let mut buffer = [0u8; 4096];
    let program = program_run_by_loader()
        .or_else(|| kernel::read_link(c"/proc/self/exe", &mut buffer).map(<[u8]>::to_vec).ok())
        .unwrap_or_default();
    let directory: Vec<u8> = kernel::current_directory(&mut buffer).to_vec();
    let tables = config.tables.clone().and_then(sections::trusted_directory);
    Names { program, directory, tables, native_only: config.native_only }
}
