//! The brief form of the fuzzer of profile files: the corpus, and mutations of it from a fixed seed. `tests/fuzz` has
//! the long form.

use std::path::Path;

use selfwind_tests::mutation;

#[path = "fuzz/profile.rs"]
mod entry;

/// Mutations of each file of the corpus, and the most steps of one.
const MUTATIONS: (usize, usize) = (30, 4);

#[test]
fn profile() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus/profile");
    mutation::try_corpus(&corpus, MUTATIONS, entry::profile);
}
