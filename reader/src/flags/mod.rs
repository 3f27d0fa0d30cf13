//! Flags that several commands share.

pub(crate) mod duration;
pub(crate) mod event;
pub(crate) mod process_id;
pub(crate) mod request;
pub(crate) mod sampling;
pub(crate) mod selection;
pub(crate) mod sources;
pub(crate) mod symbols;
