//! The agent of this process: what was decided when it started.

use core::sync::atomic::{AtomicPtr, Ordering};

use platform::activity::Active;

use crate::config::Config;
use crate::names::Names;
use crate::session::{Directory, Myself};

/// The state that the agent needs after its start. Made once per process; a forked child makes its own.
pub(crate) struct Agent {
    pub(crate) config: Config,
    pub(crate) names: Names,
    pub(crate) directory: Directory,
    /// Owner of the session directory.
    pub(crate) user: u32,
}

static AGENT: AtomicPtr<Agent> = AtomicPtr::new(core::ptr::null_mut());
static MYSELF: AtomicPtr<Myself> = AtomicPtr::new(core::ptr::null_mut());

/// The agent, once it has started.
pub(crate) fn get() -> Option<&'static Agent> {
    // SAFETY: a published agent is never freed.
    unsafe { AGENT.load(Ordering::Acquire).as_ref() }
}

/// Identity of this process, once the agent has started.
pub(crate) fn myself() -> Option<&'static Myself> {
    // SAFETY: a published value is never freed.
    unsafe { MYSELF.load(Ordering::Acquire).as_ref() }
}

/// Publishes the agent.
pub(crate) fn set(agent: &'static Agent) {
    AGENT.store(core::ptr::from_ref(agent).cast_mut(), Ordering::Release);
}

/// Publishes the identity of this process.
pub(crate) fn set_myself(myself: &'static Myself) {
    MYSELF.store(core::ptr::from_ref(myself).cast_mut(), Ordering::Release);
}

/// Whether the calling process owns the agent's state. A child of `vfork` shares its parent's memory and must not
/// modify it. Under a seccomp filter no system call is made to find out.
pub(crate) fn is_own_process() -> bool {
    let is_own =
        |myself: &Myself| Active::enter().is_none_or(|_active| myself.pid == platform::sys::process_id());
    myself().is_some_and(is_own)
}
