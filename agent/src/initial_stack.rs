//! What the kernel places at the beginning of a program's stack: arguments, environment, and auxiliary vector.
//!
//! glibc publishes its address, so that a start needs no files of /proc for it. What must never happen: that memory is
//! taken for it which only looks like it. So all of it is checked, and otherwise nothing is found.

use crate::object_info::weak_import;

const AT_NULL: u64 = 0;
/// Address of the dynamic loader; 0 if the loader was run as the program itself, or if there is none.
pub(crate) const AT_BASE: u64 = 7;
/// Most arguments, variables, and entries that are searched for an end.
const MOST: usize = 1 << 16;

/// The beginning of the stack of this program.
pub(crate) struct InitialStack {
    arguments: &'static [u64],
    variables: &'static [u64],
    auxiliary: &'static [u64],
}

impl InitialStack {
    /// The stack as the program started with it; `None` without glibc, or if the loader was run as the program itself and has
    /// moved everything.
    pub(crate) fn find() -> Option<InitialStack> {
        let variable = weak_import!("__libc_stack_end") as *const *const u64;
        // SAFETY: if the import exists, it is glibc's `void *__libc_stack_end`.
        let start =
            unsafe { variable.as_ref() }.copied().filter(|start| !start.is_null() && start.is_aligned())?;
        // SAFETY: glibc's address of the number of arguments. They follow, then a null; the variables and a null; the
        // auxiliary vector, whose last entry begins with AT_NULL (System V ABI AMD64, "Initial Process Stack"). The
        // kernel wrote them and they stay mapped. All reads go upwards from there, each word tells that the next exists.
        unsafe {
            let count = usize::try_from(*start).ok().filter(|count| *count < MOST)?;
            let arguments = words(start.add(1), 1, 0)?;
            if arguments.len() != count {
                return None;
            }
            let variables = words(start.add(count + 2), 1, 0)?;
            let auxiliary = words(start.add(count + variables.len() + 3), 2, AT_NULL)?;
            let stack = InitialStack { arguments, variables, auxiliary };
            let was_loaded = stack.auxiliary().any(|(tag, value)| tag == AT_BASE && value != 0);
            was_loaded.then_some(stack)
        }
    }

    /// The auxiliary vector: tags and values.
    pub(crate) fn auxiliary(&self) -> impl Iterator<Item = (u64, u64)> {
        self.auxiliary.as_chunks::<2>().0.iter().map(|&[tag, value]| (tag, value))
    }

    /// The arguments as in /proc/self/cmdline, each ended by NUL, at most `most` bytes. To be called before the program starts,
    /// which may write there. `None` if they are not one piece.
    pub(crate) fn arguments(&self, most: usize) -> Option<&'static [u8]> {
        let (first, end) = (*self.arguments.first()?, *self.variables.first()?);
        let bytes = usize::try_from(end.checked_sub(first)?).ok()?;
        let is_one_piece = self.arguments.is_sorted() && self.arguments.last() < Some(&end);
        // SAFETY: the kernel writes all arguments behind each other, and the variables behind them.
        is_one_piece.then(|| unsafe { core::slice::from_raw_parts(first as *const u8, bytes.min(most)) })
    }
}

/// The words from `start` up to the one that is `last`, which is in every `step`-th place.
///
/// # Safety
/// There must be such a word, and all words before it must be readable for as long as the process runs.
unsafe fn words(start: *const u64, step: usize, last: u64) -> Option<&'static [u64]> {
    // SAFETY: the caller promises that the word exists.
    unsafe {
        let len = (0..MOST).step_by(step).find(|&at| *start.add(at) == last)?;
        Some(core::slice::from_raw_parts(start, len))
    }
}
