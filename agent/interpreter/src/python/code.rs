//! Code objects: which function a frame runs, and its one announcement.
//!
//! The handler that meets a function first announces it in the durable log, where its name outlives it and the process.
//! A function is recognised by the address and the contents of its code object, including the hash of its name, because
//! memory is reused for other functions.

use platform::clock;
use platform::log;
use python_layout::Layout;
use shm_format::record::{self, DurableRecord};

use super::codes::Code;
use super::string::{self, Identity};
use super::unreadable::Unreadable;
use super::walker::Walker;
use crate::functions::{self, Key};
use crate::gap::Gap;
use crate::memory::Memory;

/// The interpreter's number in records.
const CPYTHON: u32 = 1;
/// Maximum number of bytes announced of a function name, and of a file name.
const NAME: usize = 512;
const FILE: usize = 1536;

impl Walker<'_, '_> {
    /// The number of the function whose code object is at an address, or why it has none; `None` if the code is the
    /// interpreter's own, which has no name. If its frame `is_complete`, the code object cannot be freed.
    #[inline]
    pub(super) fn function(
        &mut self,
        address: u64,
        is_complete: bool,
    ) -> Result<Option<Result<u32, Gap>>, Unreadable> {
        let python = self.thread.python;
        let known = self.codes.place(address).and_then(|place| self.codes.at(place, address));
        if let Some((code, number)) = known.filter(|_| is_complete)
            // SAFETY: the code object of a complete frame, whose thread is paused.
            && unsafe { code.is_unchanged(python) }
        {
            return Ok(Some(Ok(*number)));
        }
        let known = known.copied();
        let Some(code) = Code::read(python, self.memory, address)? else { return Ok(None) };
        if let Some((_, number)) = known.filter(|(known, _)| *known == code) {
            return Ok(Some(Ok(number)));
        }
        let number = code.number(self);
        if let Ok(number) = &number {
            self.codes.remember(code, *number);
        }
        Ok(Some(number))
    }
}

impl Code {
    /// The function's number. Announces the function if it has not been.
    fn number(&self, walker: &mut Walker<'_, '_>) -> Result<u32, Gap> {
        let Code { address, name, file, lines, name_identity, file_identity, first_line, .. } = *self;
        let nonce = walker.thread.region.nonce();
        let identities = [name_identity, file_identity].map(Identity::word);
        let words = [address, name, file, lines, first_line.into()].into_iter().chain(identities);
        let key = words.fold(Key::new(nonce), Key::and);
        match functions::find(key) {
            Some(number) => Ok(number),
            None => self.tell(walker, key),
        }
    }

    #[cold]
    #[inline(never)]
    fn tell(&self, walker: &mut Walker<'_, '_>, key: Key) -> Result<u32, Gap> {
        let id = functions::next().ok_or(Gap::Unnamed)?;
        let layout = &walker.thread.python.layout;
        let memory = &mut *walker.memory;
        let (name_room, rest) = walker.text.split_at_mut_checked(NAME).ok_or(Unreadable)?;
        let (file_room, lines_room) = rest.split_at_mut_checked(FILE).ok_or(Unreadable)?;
        let (name, name_width) = string::copy(layout, memory, self.name, name_room).ok_or(Unreadable)?;
        let (file, file_width) = string::copy(layout, memory, self.file, file_room).ok_or(Unreadable)?;
        let lines = bytes(layout, memory, self.lines, lines_room).unwrap_or(&[]);
        let function = record::Function {
            ticks: clock::now(),
            id,
            language: CPYTHON,
            lines_form: layout.lines_form.into(),
            first_line: self.first_line,
            name_width,
            file_width,
            name,
            file,
            lines,
        };
        log::append(walker.thread.region, &DurableRecord::Function(function)).map_err(|_| Gap::Unnamed)?;
        functions::remember(key, id);
        Ok(id)
    }
}

/// Copies as much of a bytes object as fits.
fn bytes<'r>(layout: &Layout, memory: &mut Memory<'_>, address: u64, room: &'r mut [u8]) -> Option<&'r [u8]> {
    let length = usize::try_from(memory.field(address, layout.bytes_size)?).ok()?;
    let room = room.get_mut(..length.min(room.len()))?;
    memory.copy(address.checked_add(layout.bytes_data.into())?, room)?;
    Some(room)
}
