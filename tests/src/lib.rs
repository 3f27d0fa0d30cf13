//! Shared ground of the promises under `tests/tests`.
