//! The brief form of the fuzzer of perf's files, and files cut short. `tests/fuzz` has the long form.

use std::path::Path;

use selfwind_import::{ImportError, Tail};

#[path = "fuzz/import.rs"]
mod entry;

fn corpus() -> Vec<Vec<u8>> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus/import");
    let mut files: Vec<_> = std::fs::read_dir(&corpus).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), 3);
    files.into_iter().map(|file| std::fs::read(file).unwrap()).collect()
}

#[test]
fn whole_files_are_imported_whole() {
    for file in corpus() {
        let summary = entry::import(&file).unwrap();
        assert!(summary.samples >= 5 && summary.damaged == 0 && summary.lost == 0, "{summary:?}");
        assert_eq!(summary.tail, Tail::Whole);
    }
}

/// A file that ends anywhere gives the samples before, and says that it was cut.
#[test]
fn cut_files_give_what_they_have() {
    for file in corpus() {
        let whole = entry::import(&file).unwrap().samples;
        let mut last = 0;
        for len in (0..file.len()).step_by(64) {
            let Some(summary) = entry::import(&file[..len]) else {
                assert!(len < 1024, "nothing of {len} bytes");
                continue;
            };
            assert!(last <= summary.samples && summary.samples <= whole, "{len}: {summary:?}");
            last = summary.samples;
        }
        assert_eq!(last, whole);
    }
}

#[test]
fn flipped_bits_do_no_harm() {
    let mut state = 0x5eed_u64;
    let mut random = |limit: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % limit
    };
    for file in corpus() {
        for _ in 0..400 {
            let mut damaged = file.clone();
            for _ in 0..=random(4) {
                // Headers are worth more attention than stacks.
                let at = if random(2) == 0 { random(1024) } else { random(file.len()) };
                damaged[at] ^= 1 << random(8);
            }
            entry::import(&damaged);
        }
    }
}

#[test]
fn other_files_are_refused_with_the_cause() {
    let refused = |bytes: &[u8]| match selfwind_import::Import::open(std::io::Cursor::new(bytes.to_vec())) {
        Ok(_) => panic!("taken"),
        Err(error) => error,
    };
    assert!(matches!(refused(b""), ImportError::NotPerf));
    assert!(matches!(refused(b"SELFWIND and so on"), ImportError::NotPerf));
    assert!(matches!(refused(b"2ELIFREP and so on"), ImportError::BigEndian));
    assert!(matches!(refused(b"PERFILE2\x10\0\0\0\0\0\0\0"), ImportError::Pipe));
    assert!(matches!(refused(b"PERFILE2\x68\0\0\0\0\0\0\0"), ImportError::Header(_)));
}
