//! Flags that several commands share.

pub(crate) mod request;
pub(crate) mod sampling;
pub(crate) mod seconds;
pub(crate) mod selection;
pub(crate) mod source;
pub(crate) mod symbols;
pub(crate) mod value;
