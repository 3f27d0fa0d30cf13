//! Would the program counter, stack pointer and frame pointer be enough for the next unwinder? Counted over the stacks of
//! profiles: `cargo run --release -p selfwind-profile --example handover -- FILE.data ...`.
//!
//! Each frame of each sample is taken for a point where one unwinder hands over to another, which goes on to the root by
//! the call frame information of the files. Two questions, to both of which the rows themselves are the answer:
//! does a rule from there on need another register; and is another register of the interrupted function's, which the next
//! unwinder may want, no longer what it was, because a frame further in has saved it.

use std::collections::HashMap;
use std::error::Error;
use std::fs;
use std::path::Path;

use selfwind_profile::profile::{self, Profile};
use selfwind_profile::symbolize::SymbolSources;
use unwind::elf_file::ElfFile;
use unwind::{Cfa, RegisterRule, X86_64, cfi};

/// rbx and r12 to r15: what calls preserve beside the stack and frame pointer.
const PRESERVED: [usize; 5] = [3, 12, 13, 14, 15];
const FP: u16 = 6;
const SP: u16 = 7;

/// What the row of a frame says.
#[derive(Clone, Copy, Default)]
struct Row {
    /// The caller cannot be found without another register.
    needs_more: bool,
    /// It saves one of those that calls preserve.
    saves: bool,
    /// Nothing is said.
    unknown: bool,
}

#[derive(Default)]
struct Sums {
    walks: u64,
    /// Walks whose every rule goes by the three.
    simple_walks: u64,
    points: u64,
    enough: u64,
    /// Points where the register of the interrupted function is saved further in.
    saved: u64,
    unknown: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    println!(
        "{:<28}{:>10}{:>12}{:>14}{:>12}{:>14}{:>10}",
        "profile", "walks", "simple", "points", "enough", "saved inside", "no rule"
    );
    for file in std::env::args().skip(1).filter(|argument| !argument.starts_with("--")) {
        let profile = profile::load(Path::new(&file), &SymbolSources::default())?;
        let Sums { walks, simple_walks, points, enough, saved, unknown } = count(&profile);
        let percent = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
        println!(
            "{file:<28}{walks:>10}{:>11.3}%{points:>14}{:>11.3}%{:>13.1}%{:>9.2}%",
            percent(simple_walks, walks),
            percent(enough, points),
            percent(saved, points),
            percent(unknown, points),
        );
    }
    Ok(())
}

fn count(profile: &Profile) -> Sums {
    let rows = rows(profile);
    let mut weights: HashMap<u32, u64> = HashMap::new();
    for bucket in &profile.buckets {
        *weights.entry(bucket.stack).or_default() += bucket.samples;
    }
    let mut sums = Sums::default();
    for (stack, weight) in weights {
        let stack = &profile.stacks[stack as usize];
        let known = |frame: &profile::StackFrame| rows.get(&frame.location).copied();
        // Without the kernel's frames, and those of interpreters.
        let frames: Vec<Row> = profile.frames_from_root(stack).iter().rev().filter_map(known).collect();
        let last = frames.iter().rposition(|row| row.needs_more);
        sums.walks += weight;
        sums.simple_walks += if last.is_none() { weight } else { 0 };
        let mut saved = false;
        for (number, row) in frames.iter().enumerate().skip(1) {
            saved |= frames[number - 1].saves;
            sums.points += weight;
            sums.enough += if last.is_none_or(|last| last < number) { weight } else { 0 };
            sums.saved += if saved { weight } else { 0 };
            sums.unknown += if row.unknown { weight } else { 0 };
        }
    }
    sums
}

/// The row of each location that is in a file.
fn rows(profile: &Profile) -> HashMap<u32, Row> {
    let files: Vec<Option<Vec<u8>>> =
        profile.binaries.iter().map(|binary| fs::read(&binary.path).ok()).collect();
    let mut rows = HashMap::new();
    for (index, location) in profile.locations.iter().enumerate() {
        let Some(binary) = location.binary else { continue };
        let Some(elf) = files[binary as usize].as_deref().and_then(|file| ElfFile::parse(file).ok()) else {
            continue;
        };
        rows.insert(index as u32, row(&elf, location.address));
    }
    rows
}

fn row(elf: &ElfFile<'_>, address: u64) -> Row {
    let unknown = Row { unknown: true, ..Row::default() };
    let Some(section) = &elf.eh_frame else { return unknown };
    let Ok(Some(fde)) = cfi::find::<X86_64>(section, elf.eh_frame_hdr, address) else { return unknown };
    let Some(row) = fde.row_at(address) else { return unknown };
    let is_known = |register: u16| register == SP || register == FP;
    let is_basic = |position: u32| fde.expression(position).is_some_and(by_the_three);
    let cfa = match row.cfa() {
        Cfa::Register { register, .. } => is_known(register),
        Cfa::Expression(position) => is_basic(position),
        Cfa::Unset => true,
    };
    let found = |number: usize| match row.register_rule(number) {
        RegisterRule::AtExpression(position) | RegisterRule::Expression(position) => is_basic(position),
        RegisterRule::Register(register) => is_known(register),
        _ => true,
    };
    let saves = |number: &usize| !matches!(row.register_rule(*number), RegisterRule::Same);
    Row {
        needs_more: !(cfa && found(16) && found(FP.into())),
        saves: PRESERVED.iter().any(saves),
        unknown: false,
    }
}

/// Whether an expression names no register but these three (DWARF 5, 2.5.1 and 7.7.1).
fn by_the_three(expression: &[u8]) -> bool {
    const PC: u8 = 16;
    let mut bytes = expression.iter().copied();
    while let Some(op) = bytes.next() {
        // Numbers in LEB128 end with a byte below 128.
        let is_leb = matches!(op, 0x10 | 0x11 | 0x23 | 0x70..=0x8f);
        let operand = match op {
            0x08 | 0x09 => 1,
            0x0a | 0x0b => 2,
            0x0c | 0x0d => 4,
            0x03 | 0x0e | 0x0f => 8,
            _ => 0,
        };
        let register = match op {
            0x50..=0x6f => op - 0x50,
            0x70..=0x8f => op - 0x70,
            _ => PC,
        };
        if register != PC && u16::from(register) != SP && u16::from(register) != FP {
            return false;
        }
        bytes.by_ref().take(operand).for_each(drop);
        if is_leb {
            bytes.by_ref().find(|byte| *byte < 128);
        }
    }
    true
}
