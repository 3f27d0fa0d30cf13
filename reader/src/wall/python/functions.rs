//! Code objects: which function a frame runs. Each function is passed on once, before the first sample that has it.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use selfwind_profile::interpreted::text;
use selfwind_profile::profile_file::InterpretedFunction;
use unwind::Interpreted;

use super::interpreter::Interpreter;
use crate::wall::memory::RemoteMemory;

/// The interpreter's number in records.
const CPYTHON: u32 = 1;
/// Maximum number of bytes read of a function name, of a file name, and of a line table.
const NAME: u64 = 512;
const FILE: u64 = 1536;
const LINES: u64 = 6144;
/// Maximum number of functions of a process.
const FUNCTIONS: u32 = 1 << 15;

/// The functions of a process.
#[derive(Default)]
pub(super) struct Functions {
    /// What was last found at each address.
    known: HashMap<u64, Known, FixedState>,
    /// Functions met so far.
    count: u32,
    /// The number of the pass over the threads.
    pass: u64,
    new: Vec<InterpretedFunction>,
}

/// A function, with all that tells it from another one whose code had the same address.
struct Known {
    number: u32,
    /// The last pass in which it was compared.
    pass: u64,
    lines: u64,
    first_line: u32,
    name: Text,
    file: Text,
}

/// A string of the interpreter.
struct Text {
    /// The address of its characters.
    start: u64,
    width: u32,
    bytes: Vec<u8>,
}

impl Text {
    /// Whether it is still there, up to the length that is read.
    fn is_unchanged(&self, place: Option<Place>, memory: &mut RemoteMemory<'_>) -> bool {
        let own = Place { start: self.start, width: self.width, len: self.bytes.len() as u64 };
        place == Some(own) && memory.holds(self.start, &self.bytes)
    }

    fn read(place: Place, memory: &mut RemoteMemory<'_>) -> Option<Self> {
        let Place { start, width, len } = place;
        Some(Self { start, width, bytes: memory.bytes(start, len)? })
    }

    fn text(&self) -> String {
        text(&self.bytes, self.width)
    }
}

/// Where the characters of a string are.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    start: u64,
    width: u32,
    /// Bytes, as far as they are read.
    len: u64,
}

impl Place {
    /// That of the string at an address, of which up to `most` bytes are read.
    fn of(interpreter: &Interpreter, string: u64, most: u64, memory: &mut RemoteMemory<'_>) -> Option<Self> {
        let layout = &interpreter.layout;
        let (start, width) = layout.text(memory.field(string, layout.string_state)?)?;
        let len = memory.field(string, layout.string_length)?.checked_mul(width.into())?.min(most);
        Some(Self { start: string.checked_add(start.into())?, width, len })
    }
}

/// What an address that should be that of a code object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    /// That of the function with this number.
    Function(u32),
    /// Code of the interpreter's own, which has no name.
    Internal,
}

impl Functions {
    /// Begins a pass over the threads. Within one, which takes milliseconds at most, no memory is taken to be reused.
    pub(super) fn begin_pass(&mut self) {
        self.pass += 1;
    }

    /// Forgets what is at the addresses. Numbers are not given again.
    pub(super) fn forget(&mut self) {
        self.known.clear();
    }

    /// The function whose code object is at an address; `None` if there is none, or it cannot be read.
    pub(super) fn at(
        &mut self,
        interpreter: &Interpreter,
        address: u64,
        memory: &mut RemoteMemory<'_>,
    ) -> Option<Code> {
        let layout = &interpreter.layout;
        let pass = self.pass;
        if let Some(known) = self.known.get(&address).filter(|known| known.pass == pass) {
            return Some(Code::Function(known.number));
        }
        if memory.field(address, layout.object_type)? != interpreter.code_type {
            return None;
        }
        let name = memory.field(address, layout.code_name)?;
        if name == 0 {
            return Some(Code::Internal);
        }
        let file = memory.field(address, layout.code_file)?;
        let lines = memory.field(address, layout.code_lines)?;
        let first_line = memory.half(address, layout.code_first_line)?;
        let name = Place::of(interpreter, name, NAME, memory);
        let file = Place::of(interpreter, file, FILE, memory);
        if let Some(known) = self.known.get_mut(&address)
            && (known.lines, known.first_line) == (lines, first_line)
            && known.name.is_unchanged(name, memory)
            && known.file.is_unchanged(file, memory)
        {
            known.pass = pass;
            return Some(Code::Function(known.number));
        }
        let (name, file) = (Text::read(name?, memory)?, Text::read(file?, memory)?);
        let size = memory.field(lines, layout.bytes_size)?.min(LINES);
        let table = memory.bytes(lines.checked_add(layout.bytes_data.into())?, size)?;
        // The agent counts from 1 on.
        let number =
            Interpreted::MOST_FUNCTIONS.checked_sub(self.count).filter(|_| self.count < FUNCTIONS)?;
        self.count += 1;
        self.new.push(InterpretedFunction {
            process: 0,
            id: number,
            language: CPYTHON,
            first_line,
            lines_form: layout.lines_form.into(),
            name: name.text(),
            file: file.text(),
            lines: table,
        });
        self.known.insert(address, Known { number, pass, lines, first_line, name, file });
        Some(Code::Function(number))
    }

    /// Those that were met for the first time since the last call.
    pub(super) fn take_new(&mut self) -> impl Iterator<Item = InterpretedFunction> + '_ {
        self.new.drain(..)
    }
}
