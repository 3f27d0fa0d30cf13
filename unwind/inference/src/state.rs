//! What is known before an instruction: where the canonical frame address (CFA) and the caller's frame pointer are.

use unwind::{Kind, Rule, SavedFp};

/// Numbers of registers as instructions encode them.
pub(crate) const RSP: usize = 4;
pub(crate) const RBP: usize = 5;
/// Registers that a called function may overwrite: rax, rcx, rdx, rsi, rdi, r8 to r11.
const VOLATILE: [usize; 9] = [0, 1, 2, 6, 7, 8, 9, 10, 11];
/// In which registers the CFA is looked for, those first that calls preserve.
const HOLDERS: [usize; 14] = [3, 12, 13, 14, 15, 10, 0, 11, 1, 2, 6, 7, 8, 9];
/// Largest distance in bytes that is followed: that of a rule.
const OFFSET_MOST: i32 = (1 << 23) - 1;
/// DWARF numbers of the registers.
const DWARF: [i32; 16] = [0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15];

/// The content of a register, or a place in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Unknown,
    /// The caller's frame pointer.
    CallerFp,
    /// The CFA plus these bytes.
    Cfa(i32),
    /// What the stack pointer was after the latest alignment, plus these bytes.
    Aligned(i32),
}

impl Value {
    pub(crate) fn plus(self, bytes: i64) -> Self {
        let plus = |offset: i32| {
            let sum = i32::try_from(i64::from(offset).checked_add(bytes)?).ok()?;
            (-OFFSET_MOST..=OFFSET_MOST).contains(&sum).then_some(sum)
        };
        match self {
            Self::Cfa(offset) => plus(offset).map_or(Self::Unknown, Self::Cfa),
            Self::Aligned(offset) => plus(offset).map_or(Self::Unknown, Self::Aligned),
            Self::CallerFp if bytes == 0 => self,
            _ => Self::Unknown,
        }
    }

    /// What is known if either may hold.
    fn meet(self, other: Self) -> Self {
        if self == other { self } else { Self::Unknown }
    }
}

/// What is known before an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    registers: [Value; 16],
    /// Where the caller's frame pointer is saved.
    fp_at: Value,
    /// Where a known address is saved, and what it is.
    saved_at: Value,
    saved: Value,
}

impl State {
    /// At the first instruction of a function.
    pub(crate) const ENTRY: Self = {
        let mut registers = [Value::Unknown; 16];
        registers[RSP] = Value::Cfa(-8);
        registers[RBP] = Value::CallerFp;
        Self { registers, fp_at: Value::Unknown, saved_at: Value::Unknown, saved: Value::Unknown }
    };

    pub(crate) fn get(&self, register: usize) -> Value {
        self.registers.get(register).copied().unwrap_or(Value::Unknown)
    }

    pub(crate) fn set(&mut self, register: usize, value: Value) {
        if let Some(to) = self.registers.get_mut(register) {
            *to = value;
        }
    }

    pub(crate) fn sp(&self) -> Value {
        self.get(RSP)
    }

    /// Whether the function may return here: the return address is on top, and the frame pointer is the caller's.
    pub(crate) fn may_return(&self) -> bool {
        self.sp() == Value::Cfa(-8) && self.get(RBP) == Value::CallerFp
    }

    /// Takes in that `value` is written to memory at `place`.
    pub(crate) fn store(&mut self, place: Value, value: Value) {
        if place == Value::Unknown {
            return;
        }
        // The first copy is the one that is restored later.
        match value {
            Value::CallerFp if self.fp_at == Value::Unknown => self.fp_at = place,
            // Only there is it of use.
            Value::Cfa(_) if self.saved_at == Value::Unknown && matches!(place, Value::Aligned(_)) => {
                (self.saved_at, self.saved) = (place, value);
            }
            _ if place == self.saved_at && value != self.saved => {
                (self.saved_at, self.saved) = (Value::Unknown, Value::Unknown);
            }
            _ if place == self.fp_at && value != Value::CallerFp => self.fp_at = Value::Unknown,
            _ => {}
        }
    }

    /// The word in memory at `place`.
    pub(crate) fn load(&self, place: Value) -> Value {
        match place {
            Value::Unknown => Value::Unknown,
            _ if place == self.fp_at => Value::CallerFp,
            _ if place == self.saved_at => self.saved,
            _ => Value::Unknown,
        }
    }

    /// Takes in that the stack pointer was `before`: what it has left behind may be overwritten.
    pub(crate) fn forget_popped(&mut self, before: Value) {
        let is_popped = |place| match (before, place, self.sp()) {
            (Value::Cfa(before), Value::Cfa(place), Value::Cfa(now))
            | (Value::Aligned(before), Value::Aligned(place), Value::Aligned(now)) => {
                (before..now).contains(&place)
            }
            // Leaves an aligned frame.
            (_, Value::Aligned(_), Value::Cfa(_)) => true,
            _ => false,
        };
        let (fp, saved) = (is_popped(self.fp_at), is_popped(self.saved_at));
        if fp {
            self.fp_at = Value::Unknown;
        }
        if saved {
            (self.saved_at, self.saved) = (Value::Unknown, Value::Unknown);
        }
    }

    /// Takes in that the stack pointer is rounded down.
    pub(crate) fn align(&mut self) {
        let places = [&mut self.fp_at, &mut self.saved_at];
        for value in self.registers.iter_mut().chain(places) {
            if matches!(value, Value::Aligned(_)) {
                *value = Value::Unknown;
            }
        }
        self.set(RSP, Value::Aligned(0));
    }

    /// Takes in that another function is called and returns.
    pub(crate) fn call(&mut self) {
        VOLATILE.iter().for_each(|register| self.set(*register, Value::Unknown));
    }

    /// Whether the frame has the same size in both, and the caller's frame pointer the same place.
    pub(crate) fn has_same_frame(&self, other: &Self) -> bool {
        let have_same_fp = self.fp_at == other.fp_at || self.get(RBP) == other.get(RBP);
        self.sp() == other.sp() && have_same_fp
    }

    /// What is known if either state may be the one. Returns whether that is less.
    pub(crate) fn meet(&mut self, other: &Self) -> bool {
        let before = *self;
        for (value, other) in self.registers.iter_mut().zip(&other.registers) {
            *value = value.meet(*other);
        }
        self.fp_at = self.fp_at.meet(other.fp_at);
        if (self.saved_at, self.saved) != (other.saved_at, other.saved) {
            (self.saved_at, self.saved) = (Value::Unknown, Value::Unknown);
        }
        *self != before
    }

    /// The rule that leads from here to the caller; `None` if there is none that is certain.
    pub(crate) fn rule(&self) -> Option<Rule> {
        let fp_register = self.get(RBP);
        let fp = match (fp_register, self.fp_at) {
            (Value::CallerFp, Value::Cfa(offset)) if self.is_on_stack(offset) => {
                SavedFp::AtCfa(i16::try_from(offset).ok()?)
            }
            (Value::CallerFp, _) => SavedFp::Same,
            (_, Value::Cfa(offset)) => SavedFp::AtCfa(i16::try_from(offset).ok()?),
            (Value::Aligned(base), Value::Aligned(offset)) => {
                SavedFp::AtFp(i16::try_from(offset - base).ok()?)
            }
            _ => return None,
        };
        // A frame pointer stays right if the stack pointer's changes should be misunderstood.
        match fp_register {
            Value::Cfa(offset) if fp_register == self.fp_at || !matches!(self.sp(), Value::Cfa(_)) => {
                return Rule::new(Kind::Fp, -offset, 0, fp);
            }
            _ => {}
        }
        match self.sp() {
            // Above the return address there is none to find.
            Value::Cfa(offset) => (offset <= -8).then(|| Rule::new(Kind::Sp, -offset, 0, fp)).flatten(),
            sp => self.by_saved(fp_register, sp, fp).or_else(|| self.by_register(fp)),
        }
    }

    /// Whether the stack pointer is known to be below the CFA plus `offset`.
    fn is_on_stack(&self, offset: i32) -> bool {
        matches!(self.sp(), Value::Cfa(now) if now <= offset)
    }

    fn by_saved(&self, fp_register: Value, sp: Value, fp: SavedFp) -> Option<Rule> {
        let (Value::Aligned(at), Value::Cfa(saved)) = (self.saved_at, self.saved) else { return None };
        match (fp_register, sp) {
            (Value::Aligned(base), _) => Rule::new(Kind::FpMemory, at - base, -saved, fp),
            (_, Value::Aligned(base)) => Rule::new(Kind::SpMemory, at - base, -saved, fp),
            _ => None,
        }
    }

    fn by_register(&self, fp: SavedFp) -> Option<Rule> {
        HOLDERS.iter().find_map(|register| match self.get(*register) {
            Value::Cfa(offset) => Rule::new(Kind::Register, -offset, *DWARF.get(*register)?, fp),
            _ => None,
        })
    }
}
