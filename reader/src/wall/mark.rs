//! The marks that tell what a thread waited for: a system call, or one of the others. In a sample a mark stands for a frame in the
//! kernel.

use std::borrow::Cow;

use selfwind_profile::profile_file::{Sample, WALL_MARKS};

use super::blocked::{self, NO_CALL};
use super::thread::Wait;

/// A mark.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Mark(u16);

impl Mark {
    /// Other than system calls.
    const READY: Self = Self(NO_CALL - 1);
    const HIDDEN: Self = Self(NO_CALL - 2);
    const STOPPED: Self = Self(NO_CALL - 3);
    const EXITING: Self = Self(NO_CALL - 4);

    pub(super) fn of(wait: Wait) -> Self {
        match wait {
            Wait::Ready => Self::READY,
            Wait::Blocked(call) => Self(call.unwrap_or(NO_CALL)),
            Wait::Hidden => Self::HIDDEN,
            Wait::Stopped => Self::STOPPED,
            Wait::Exiting => Self::EXITING,
        }
    }

    /// Its name as a function.
    pub(super) fn name(self) -> Cow<'static, str> {
        match self {
            Self::READY => "[ready]".into(),
            Self::HIDDEN => "[blocked]".into(),
            Self::STOPPED => "[stopped]".into(),
            Self::EXITING => "[exiting]".into(),
            Self(call) => blocked::name(call),
        }
    }

    /// The address that stands for it.
    pub(super) fn address(self) -> u64 {
        WALL_MARKS + u64::from(self.0)
    }
}

/// Whether the thread had no stack any more.
pub(super) fn is_exiting(sample: &Sample) -> bool {
    let mut frames = sample.kernel.iter().flat_map(|kernel| &kernel.frames);
    frames.any(|frame| *frame == Mark::EXITING.address())
}
