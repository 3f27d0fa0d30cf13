//! The walker, and the unwind rows that it uses: compiled ahead of time, or decoded from `.eh_frame` on demand.
//!
//! It runs inside a signal handler, on a stack of about 2 KiB, over memory that may be corrupt. It must not
//! allocate, lock, panic or recurse, every loop is bounded, and it reads the walked stack only through [`Memory`]. Building
//! a [`Table`] allocates, so it is in another crate, `compilation`, on which this one must never depend.
//!
//! From a program counter to its caller, in this order:
//!
//! 1. [`StackCache`]: frames of the thread's previous walk, as long as the words that it read are unchanged;
//! 2. [`RuleCache`]: the packed [`Rule`] of a program counter seen before;
//! 3. [`Table`]: rows compiled ahead of time, if the [`Module`] has them; for code without call frame information, inferred ones;
//! 4. the FDE found through `.eh_frame_hdr`, decoded on demand;
//! 5. for rules that need more than the stack and frame pointer: the evaluation of all registers;
//! 6. the unwinder registered for the region of code, if there is one: [`Regions`];
//! 7. call frame information that the program registered for generated code;
//! 8. without any CFI: the frame pointer, then a bounded scan for a return address. Both mark the frame.
#![no_std]

// By this name, tests of other crates use the fixture too.
#[cfg(test)]
extern crate self as unwind;
#[cfg(test)]
extern crate std;

mod all_registers;
mod arch;
pub mod cfi;
#[cfg(test)]
mod cfi_tests;
mod cursor;
pub mod elf_file;
pub mod elf_image;
mod end;
mod entry;
mod expression;
mod fast_path;
#[cfg(test)]
mod fixture;
mod frame;
mod frame_distances;
mod frame_row;
#[cfg(test)]
mod generated_tests;
pub mod go_table;
mod guess;
mod heuristic;
mod instruction;
mod jumps;
mod known_stacks;
mod late_table;
mod leaf;
mod memory;
mod module;
mod modules;
mod narrow_row;
mod pointer;
mod program;
#[cfg(test)]
mod program_tests;
mod record_chain;
mod regions;
#[cfg(test)]
mod regions_tests;
mod register_rule;
mod rule;
mod rule_cache;
mod rules;
mod section;
mod splice;
mod stack_cache;
mod step;
mod table;
pub mod table_file;
pub mod table_layout;
mod tracked;
mod walk;
mod walk_result;
#[cfg(test)]
mod walk_tests;

pub use all_registers::registers_of_cfa;
pub use arch::{Aarch64, Abi, Machine, Native, Registers, X86_64};
pub use end::End;
pub use frame::{FoundBy, Frame, Interpreted};
pub use frame_row::{Cfa, FrameRow};
pub use guess::{called_before, guess, is_behind_call, strip};
pub use jumps::Jumps;
pub use known_stacks::{KnownStacks, mix};
pub use late_table::LateTable;
pub use leaf::Leaf;
pub use memory::Memory;
pub use module::Module;
pub use modules::Modules;
pub use regions::{NoRegions, Region, RegionStep, Regions};
pub use register_rule::RegisterRule;
pub use rule::{Kind, ReturnAddress, Rule, SavedFp};
pub use rule_cache::RuleCache;
pub use section::Section;
pub use stack_cache::StackCache;
pub use table::{Source, Table, TableError};
pub use tracked::Tracked;
pub use walk::{walk, walk_with};
pub use walk_result::Walk;
