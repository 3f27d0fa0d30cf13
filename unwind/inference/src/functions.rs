//! Finds the functions of a file, and puts their rows together.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};

use compilation::InferredRow;
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind};
use unwind::Rule;

use crate::code::Code;
use crate::function::{self, Function, Known};

/// Maximum number of times that all functions are followed, to learn which of them do not return.
const PASSES: usize = 4;

/// All functions that are understood.
pub(crate) struct Functions {
    /// By address: the end of the instruction, and its rule.
    rules: BTreeMap<u64, (u64, Rule)>,
    noreturn: HashSet<u64>,
}

impl Functions {
    pub(crate) fn find(code: &Code) -> Self {
        let mut starts: HashSet<u64> = called(code).collect();
        starts.extend(code.starts.iter().filter(|start| code.at(**start).is_some()));
        starts.remove(&code.entry);
        let mut known = Known { code, starts, noreturn: HashSet::new(), begins: RefCell::default() };
        let mut found = Self::with(&known);
        for _ in 1..PASSES {
            if found.noreturn == known.noreturn {
                break;
            }
            known.noreturn = found.noreturn;
            known.begins.take();
            found = Self::with(&known);
        }
        let branched = targets(code, is_conditional).collect();
        for range in code.addresses() {
            found.follow_rest(&known, &branched, range.start, range.end);
        }
        found
    }

    /// Follows what may be functions, and what they call, which certainly is one.
    fn with(known: &Known<'_>) -> Self {
        let mut found = Self { rules: BTreeMap::new(), noreturn: HashSet::new() };
        let mut seen = HashSet::new();
        let mut starts: Vec<_> = known.starts.iter().map(|start| (*start, false)).collect();
        starts.sort_unstable();
        while let Some((start, is_called)) = starts.pop() {
            let is_new = !seen.contains(&(start, true)) && seen.insert((start, is_called));
            if !is_new || start == known.code.entry || known.code.at(start).is_none() {
                continue;
            }
            if let Some(called) = found.follow(known, start, is_called) {
                seen.insert((start, true));
                starts.extend(called.into_iter().map(|start| (start, true)));
            }
        }
        found
    }

    pub(crate) fn into_rows(self) -> Vec<InferredRow> {
        let mut rows: Vec<InferredRow> = Vec::new();
        for (start, (end, rule)) in self.rules {
            match rows.last_mut() {
                Some(last) if last.end == start && last.rule == rule => last.end = end,
                // Code that is jumped into the middle of an instruction.
                Some(last) if last.end > start => {}
                _ => rows.push(InferredRow { start, end, rule }),
            }
        }
        rows.retain(|row| row.rule != Rule::UNCOVERED);
        rows
    }

    /// Tries each place behind what is known as a function.
    fn follow_rest(&mut self, known: &Known<'_>, branched: &HashSet<u64>, start: u64, end: u64) {
        let mut at = start;
        while at < end {
            at = function::skip_padding(known.code, at);
            if let Some((_, (end, _))) = self.rules.range(..=at).next_back()
                && *end > at
            {
                at = *end;
                continue;
            }
            // What a branch leads to is a part of a function which is not understood.
            let may_begin = at != known.code.entry && !branched.contains(&at);
            if may_begin && self.follow(known, at, false).is_some() {
                continue;
            }
            at = self.behind(known, at);
        }
    }

    /// The end of the first instruction from `address` on that does not lead to the next one, or of the range.
    fn behind(&self, known: &Known<'_>, address: u64) -> u64 {
        let Some(bytes) = known.code.at(address) else { return u64::MAX };
        let mut decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            let next = decoder.ip();
            let ends = matches!(
                instruction.mnemonic(),
                Mnemonic::Ret | Mnemonic::Jmp | Mnemonic::Hlt | Mnemonic::Ud2
            );
            if ends || known.starts.contains(&next) || self.rules.contains_key(&next) {
                break;
            }
        }
        decoder.ip()
    }

    /// Follows the function at `start` and takes in its rules; returns what it calls. `None` if it is not understood, or neither
    /// called nor likely to be a function.
    fn follow(&mut self, known: &Known<'_>, start: u64, is_called: bool) -> Option<Vec<u64>> {
        if is_restorer(known.code, start) {
            return None;
        }
        let function = Function::follow(known, start)?;
        if !is_called && !function.is_likely() {
            return None;
        }
        if function.is_noreturn() {
            self.noreturn.insert(start);
        }
        for (address, length, rule) in function.rules() {
            let end = address + u64::from(length);
            let rule = rule.unwrap_or(Rule::UNCOVERED);
            self.rules
                .entry(address)
                .and_modify(|(_, known)| {
                    if *known != rule {
                        *known = Rule::UNCOVERED;
                    }
                })
                .or_insert((end, rule));
        }
        Some(function.called)
    }
}

/// Whether the code returns from a signal handler: `mov eax, 15; syscall`. Its frame is the kernel's.
fn is_restorer(code: &Code, start: u64) -> bool {
    let Some(bytes) = code.at(start) else { return false };
    let mut decoder = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
    let [first, second] = [decoder.decode(), decoder.decode()];
    first.mnemonic() == Mnemonic::Mov
        && matches!(first.op1_kind(), OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64)
        && first.immediate(1) == 15
        && second.mnemonic() == Mnemonic::Syscall
}

/// The targets of what looks like calls, in all code.
fn called(code: &Code) -> impl Iterator<Item = u64> + '_ {
    targets(code, |instruction| {
        // A call of the next instruction only asks for the address.
        instruction.mnemonic() == Mnemonic::Call && instruction.near_branch_target() != instruction.next_ip()
    })
}

fn is_conditional(instruction: &Instruction) -> bool {
    !matches!(instruction.mnemonic(), Mnemonic::Call | Mnemonic::Jmp)
}

/// The targets, in the code, of all that looks like a direct branch or call which `is_one`.
fn targets(code: &Code, is_one: impl Fn(&Instruction) -> bool + Copy) -> impl Iterator<Item = u64> {
    code.ranges.iter().flat_map(move |(start, bytes)| {
        let mut decoder = Decoder::with_ip(64, bytes, *start, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        std::iter::from_fn(move || {
            while decoder.can_decode() {
                decoder.decode_out(&mut instruction);
                let target = instruction.near_branch_target();
                let is_direct = instruction.op0_kind() == OpKind::NearBranch64;
                if is_direct && is_one(&instruction) && code.at(target).is_some() {
                    return Some(target);
                }
            }
            None
        })
    })
}
