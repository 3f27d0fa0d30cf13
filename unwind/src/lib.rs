//! Unwind rows precomputed from `.eh_frame`, and the walker that uses them.
#![no_std]
