//! How much of its samples a process can hold back: the value of `--buffer` and of `SELFWIND_POOL`.

use std::fmt;
use std::str::FromStr;

use crate::sampling::size;

/// Bytes of each process's memory for samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Buffer(u64);

impl Buffer {
    /// Less holds hardly a thread's samples.
    pub(crate) const LEAST: Self = Self(64 << 10);
    /// More would be no region.
    pub(crate) const MOST: Self = Self(1 << 30);

    /// In bytes; 0 if nothing is asked for.
    pub(crate) fn bytes(self) -> u64 {
        self.0
    }

    /// The next power of two, within the limits.
    pub(crate) fn at_least(bytes: u64) -> Self {
        let rounded = bytes.checked_next_power_of_two().map_or(Self::MOST, Self);
        rounded.clamp(Self::LEAST, Self::MOST)
    }
}

impl FromStr for Buffer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("invalid size `{text}`: expected {} to {}, such as 512K or 16M", Self::LEAST, Self::MOST)
        };
        let bytes = size::parse(text).map(Self);
        bytes.filter(|size| (Self::LEAST..=Self::MOST).contains(size)).ok_or_else(wrong)
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
        assert_eq!(Buffer::at_least(0), Buffer::LEAST);
        assert_eq!(Buffer::at_least((4 << 20) + 1).to_string(), "8M");
    }
}
