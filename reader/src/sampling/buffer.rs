//! The size of a process's buffer for samples that are not read yet: the value of `--buffer` and of `SELFWIND_POOL`.

use std::fmt;
use std::str::FromStr;

use crate::sampling::size;

/// Size of each process's pool in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Buffer(u64);

impl Buffer {
    /// The minimum: hardly enough for the samples of one thread.
    pub(crate) const MIN: Self = Self(64 << 10);
    /// The maximum that fits a region.
    pub(crate) const MAX: Self = Self(1 << 30);

    /// In bytes; 0 if not set.
    pub(crate) fn bytes(self) -> u64 {
        self.0
    }

    /// The next power of two, within the limits.
    pub(crate) fn at_least(bytes: u64) -> Self {
        let rounded = bytes.checked_next_power_of_two().map_or(Self::MAX, Self);
        rounded.clamp(Self::MIN, Self::MAX)
    }
}

impl FromStr for Buffer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("invalid size `{text}`: expected {} to {}, such as 512K or 16M", Self::MIN, Self::MAX);
        let bytes = size::parse(text).map(Self);
        bytes.filter(|size| (Self::MIN..=Self::MAX).contains(size)).ok_or_else(wrong)
    }
}

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        size::write(self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes, shown) in [
            ("65536", 64 << 10, "64K"),
            ("4M", 4 << 20, "4M"),
            ("1024m", 1 << 30, "1G"),
            ("1G", 1 << 30, "1G"),
            ("65537", 65537, "65537"),
        ] {
            let size: Buffer = text.parse().unwrap();
            assert_eq!((size.bytes(), size.to_string().as_str()), (bytes, shown));
        }
        for text in ["", "M", "63K", "2G", "4 M", "-1", "+4M", "4MB", "1.5M", "99999999999999999999G"] {
            let error = text.parse::<Buffer>().unwrap_err();
            assert!(error.contains(&format!("`{text}`")) && error.contains("64K to 1G"), "{error}");
        }
        assert_eq!(Buffer::at_least(0), Buffer::MIN);
        assert_eq!(Buffer::at_least((4 << 20) + 1).to_string(), "8M");
    }
}
