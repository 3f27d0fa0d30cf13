//! Compares two walks of the same stack (`--unwind both`): the thread's own walk, and the walk of its copy in the reader.

use selfwind_profile::profile_file::{Comparison, Recovered, Sample, Verdict};
use unwind::{End, FoundBy, Frame};

use crate::drain::unwinder::{Stack, Unwinder};

/// Compares the two. `recorded` is the size of the copy in bytes. None if some frames came from an interpreter's unwinder or
/// a plug-in, which only the process itself can call.
pub(crate) fn compare(
    sample: &Sample,
    mut stack: Stack,
    recorded: u64,
    unwinder: &mut Unwinder,
) -> Option<Comparison> {
    let (process, ns) = (sample.process, sample.ns);
    let is_native = |word: &u64| Frame::from_bits(*word).as_interpreted().is_none();
    let own: Vec<u64> = sample.frames.iter().copied().filter(is_native).collect();
    if own.iter().any(|word| Frame::from_bits(*word).found_by() == FoundBy::Region) {
        return None;
    }
    let (mut copy, mut end) = unwinder.walk(process, ns, &stack);
    if sample.end == End::DepthLimit as u8 && copy.len() >= own.len() {
        // The thread stopped at its depth limit.
        copy.truncate(own.len());
        end = End::DepthLimit;
    }
    let verdict = verdict(&own, sample.end, &copy, end, stack.covers);
    let guess = recovered(&own, &unwinder.guess(process, ns, &stack));
    let (copied, kept) = (stack.len() as u64, stack.kept);
    stack.keep_code_only();
    let code_only = recovered(&own, &unwinder.walk(process, ns, &stack).0);
    let comparison = Comparison {
        process,
        tid: sample.tid,
        thread_seq: sample.thread_seq,
        ns,
        verdict,
        copied,
        kept,
        recorded,
        depth: own.len() as u64,
        code_only,
        guess,
        ..Comparison::default()
    };
    if verdict == Verdict::Identical {
        return Some(comparison);
    }
    Some(Comparison { own_end: sample.end, copy_end: end as u8, own, copy, ..comparison })
}

fn verdict(own: &[u64], own_end: u8, copy: &[u64], copy_end: End, covers: bool) -> Verdict {
    // The copy has a zero for each word that cannot be a return address. After a guessed frame, the thread may also follow a word
    // that is no frame address and read memory elsewhere; in the copy that word leads to nothing.
    let is_guess = |word: &u64| Frame::from_bits(*word).found_by() == FoundBy::Guess;
    let is_zeroed = own_end == End::NoCode as u8 && copy_end == End::Root;
    let is_lost = [End::NoModule, End::NoCode, End::Root].iter().any(|end| own_end == *end as u8)
        && matches!(copy_end, End::Root | End::Unreadable)
        && own.iter().any(is_guess);
    let same_end = own_end == copy_end as u8 || is_zeroed || is_lost;
    // The copy ends before the next frame record, so its walk had to guess.
    let common = own.iter().zip(copy).take_while(|(own, copy)| own == copy).count();
    let has_strayed =
        copy.get(common).is_some_and(is_guess) && own.get(common).is_some_and(|word| !is_guess(word));
    if own == copy && same_end {
        Verdict::Identical
    } else if !covers && (own.starts_with(copy) || has_strayed) {
        // Words that lead to another stack are not copied: the walk ends at a zero, which looks like a root, or at unreadable memory.
        Verdict::Cut
    } else {
        Verdict::Differs
    }
}

/// How many of the `found` frames are on the stack, in its order. Only addresses count, not how a frame was found.
fn recovered(own: &[u64], found: &[u64]) -> Recovered {
    let address = |word: &u64| Frame::from_bits(*word).address();
    let mut left = found.iter().map(address);
    let right = own.iter().map(address).filter(|wanted| {
        // A frame that is missing does not consume the remaining ones.
        let mut ahead = left.clone();
        let is_found = ahead.any(|address| address == *wanted);
        if is_found {
            left = ahead;
        }
        is_found
    });
    Recovered { frames: found.len() as u64, right: right.count() as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(address: u64) -> u64 {
        Frame::new(address, FoundBy::Guess, false).bits()
    }

    #[test]
    fn a_verdict_tells_the_end_of_a_copy_from_an_error() {
        let root = End::Root as u8;
        for (copy, end, covers, wanted) in [
            (&[1, 2, 3][..], End::Root, true, Verdict::Identical),
            (&[1, 2, 3], End::Root, false, Verdict::Identical),
            (&[1, 2], End::Unreadable, false, Verdict::Cut),
            (&[1, 2], End::Unreadable, true, Verdict::Differs),
            (&[1, 2], End::Root, false, Verdict::Cut),
            (&[1, 4], End::Unreadable, false, Verdict::Differs),
            (&[1, 2, 3], End::NoCfi, true, Verdict::Differs),
            (&[1, 2, 3, 4], End::Root, true, Verdict::Differs),
            (&[1, guess(7)], End::Root, false, Verdict::Cut),
            (&[1, guess(7), 8], End::NoCfi, false, Verdict::Cut),
            (&[1, guess(7)], End::Root, true, Verdict::Differs),
        ] {
            assert_eq!(verdict(&[1, 2, 3], root, copy, end, covers), wanted, "{copy:?} {end:?} {covers}");
        }
        // A word that is no code address is zero in the copy.
        for (end, wanted) in [(End::Root, Verdict::Identical), (End::Unreadable, Verdict::Differs)] {
            assert_eq!(verdict(&[1, 2], End::NoCode as u8, &[1, 2], end, true), wanted, "{end:?}");
        }
        // Both guessed, differently.
        assert_eq!(verdict(&[1, guess(2)], root, &[1, guess(3)], End::Root, false), Verdict::Differs);
        // A wild frame pointer may lead to zeros.
        let own = [1, guess(2)];
        assert_eq!(verdict(&own, root, &own, End::Unreadable, true), Verdict::Identical);
        for end in [End::Root, End::Unreadable] {
            for (own, wanted) in [([1, guess(2)], Verdict::Identical), ([1, 2], Verdict::Differs)] {
                assert_eq!(verdict(&own, End::NoModule as u8, &own, end, true), wanted, "{own:?} {end:?}");
            }
        }
    }

    #[test]
    fn frames_count_once_and_in_order() {
        for (own, found, right) in [
            (&[1, 2, 3][..], vec![1, 9, 2, 8, 3], 3),
            (&[1, 2, 3], vec![1, 3], 2),
            (&[1, 2, 3], vec![3, 2, 1], 1),
            (&[1, 1, 1], vec![1, 1], 2),
            (&[], vec![1], 0),
        ] {
            let found: Vec<u64> = found.into_iter().map(guess).collect();
            let counted = recovered(own, &found);
            assert_eq!(counted, Recovered { frames: found.len() as u64, right }, "{own:?}");
        }
    }
}
