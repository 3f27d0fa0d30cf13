//! A recursive function with a name for each level: `record -- levels` shows `level 3 (levels:4)_[levels]` inside each
//! frame of `descend`.

use std::ffi::CStr;
use std::hint::black_box;

use selfwind_plugin::{Error, Name, Step, Unwinder, Walk, add_region};

const LEVELS: usize = 5;

/// Names by level, innermost first.
struct Levels {
    names: [Name; LEVELS],
    file: Name,
}

impl Unwinder for Levels {
    const LANGUAGE: &'static CStr = c"levels";
    const WANTS: u64 = 0;

    fn unwind(&self, walk: &mut Walk<'_>) -> Step {
        let level = walk.state()[0] as usize;
        walk.state()[0] += 1;
        let Some(&name) = self.names.get(level) else { return Step::NotMine };
        let line = (LEVELS - level) as u32;
        match walk.emit(name, Some(self.file), line, line) {
            Some(()) => Step::Beside,
            None => Step::NotMine,
        }
    }
}

// Alone in its section, so that the linker provides its bounds.
#[inline(never)]
#[unsafe(link_section = "levels")]
extern "C" fn descend(depth: usize) -> u64 {
    if depth > 0 {
        return black_box(descend(depth - 1) + 1);
    }
    (0..20_000u64).fold(0, |sum, number| black_box(sum + number))
}

unsafe extern "C" {
    static __start_levels: u8;
    static __stop_levels: u8;
}

fn tell() -> Result<(), Error> {
    let mut names = [Name::new("nothing")?; LEVELS];
    for (level, name) in names.iter_mut().enumerate() {
        *name = Name::new(&format!("level {}", LEVELS - 1 - level))?;
    }
    let levels: &'static Levels = Box::leak(Box::new(Levels { names, file: Name::new("levels")? }));
    let (start, end) = (&raw const __start_levels as u64, &raw const __stop_levels as u64);
    // SAFETY: the unwinder reads its own array and calls the agent.
    unsafe { add_region(levels, start..end) }.map(drop)
}

fn main() {
    match tell() {
        Ok(()) | Err(Error::NO_AGENT) => {}
        Err(error) => eprintln!("no unwinder: {error}"),
    }
    let mut sum = 0u64;
    for _ in 0..30_000 {
        sum = sum.wrapping_add(descend(LEVELS - 1));
    }
    println!("{sum}");
}
