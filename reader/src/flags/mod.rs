//! Flags that several commands share.

pub(crate) mod selection;
pub(crate) mod symbols;
