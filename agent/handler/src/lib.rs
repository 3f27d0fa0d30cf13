//! Everything that runs inside the sampling signal handler.
#![no_std]
