//! Values of findings as text: sizes and limits.

/// A size in human-readable units.
pub(super) fn bytes(bytes: u64) -> String {
    match bytes {
        0..0x10_0000 => format!("{} KiB", bytes >> 10),
        0x10_0000..0x4000_0000 => format!("{} MiB", bytes >> 20),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

/// A resource limit as text.
pub(super) fn limit_text(limit: u64) -> String {
    if limit == nix::libc::RLIM_INFINITY { "unlimited".into() } else { limit.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_for_people() {
        assert_eq!(bytes(65_536), "64 KiB");
        assert_eq!(bytes(64 << 20), "64 MiB");
        assert_eq!(bytes(3 << 29), "1.5 GiB");
        assert_eq!(limit_text(u64::MAX), "unlimited");
    }
}
