//! The brief form of the fuzzers: the corpus, and mutations of it from a fixed seed. `tests/fuzz` has the long form.

use std::path::Path;

use selfwind_tests::{fuzz, mutation};

/// Mutations of each file of the corpus, and the most steps of one.
const MUTATIONS: (usize, usize) = (300, 8);

fn run(target: &str, entry: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    mutation::try_corpus(&directory, MUTATIONS, entry);
}

#[test]
fn builder() {
    run("builder", fuzz::builder);
}

#[test]
fn copy() {
    run("copy", fuzz::copy);
}

#[test]
fn table() {
    run("table", fuzz::table);
}

#[test]
fn walker() {
    run("walker", fuzz::walker);
}
