//! The time namespace of this process.

use std::fs;
use std::sync::LazyLock;

use shm_format::TimeNamespace;

static OWN: LazyLock<TimeNamespace> =
    LazyLock::new(|| TimeNamespace::parse(&fs::read("/proc/self/timens_offsets").unwrap_or_default()));

/// As it was at the first call.
pub(crate) fn own() -> TimeNamespace {
    *OWN
}
