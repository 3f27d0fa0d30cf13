//! File names of regions.

use std::ffi::OsStr;

/// The parts of a region's file name: `PID-STARTTIME-NONCE.region`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RegionName {
    /// Process id.
    pub(crate) pid: u32,
    /// Start time of the process in clock ticks after boot.
    pub(crate) start_time: u64,
    /// Nonce of the region.
    pub(crate) nonce: u64,
}

impl RegionName {
    /// Parses a file name; `None` for files that are not regions.
    pub(crate) fn parse(name: &OsStr) -> Option<Self> {
        let mut parts = name.to_str()?.strip_suffix(".region")?.splitn(3, '-');
        Some(Self {
            pid: parts.next()?.parse().ok()?,
            start_time: parts.next()?.parse().ok()?,
            nonce: u64::from_str_radix(parts.next()?, 16).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_region_files() {
        let name = RegionName::parse(OsStr::new("12-3456-00ff00ff00ff00ff.region"));
        assert_eq!(name, Some(RegionName { pid: 12, start_time: 3456, nonce: 0xff_00ff_00ff_00ff }));
        for other in
            ["doorbell", "12-3456-00ff.failed", "12-3456.region", "x-1-2.region", "12--2.region", ".region"]
        {
            assert_eq!(RegionName::parse(OsStr::new(other)), None, "{other}");
        }
    }
}
