//! Process ids on the command line.

/// Parses a process id.
pub(crate) fn process_id(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| {
        let most = std::fs::read_to_string("/proc/sys/kernel/pid_max").unwrap_or_default();
        format!("`{text}` is no process id: those are numbers up to {} (kernel.pid_max)", most.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_process_has_is_refused() {
        assert_eq!(process_id("12"), Ok(12));
        for text in ["99999999999", "-1", "self"] {
            assert!(process_id(text).unwrap_err().contains("is no process id"), "{text}");
        }
    }
}
