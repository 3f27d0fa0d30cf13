//! The contract between two programs that do not trust each other: a traced process and the reader.
#![no_std]
