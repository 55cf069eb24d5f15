//! How much memory tensors may use.

use std::fs::read_to_string;

/// Assumed where the system says nothing.
const UNKNOWN: usize = 8 << 30;

/// Available memory in bytes: the system's figure, or what the control group of the process leaves where that is less.
pub(crate) fn available_bytes() -> usize {
    let system = read_to_string("/proc/meminfo").ok().and_then(|text| available_in(&text)).unwrap_or(UNKNOWN);
    let number = |path| read_to_string(path).ok().and_then(|text| text.trim().parse::<usize>().ok());
    let limit = number("/sys/fs/cgroup/memory.max");
    let used = number("/sys/fs/cgroup/memory.current").unwrap_or(0);
    limit.map_or(system, |limit| system.min(limit.saturating_sub(used)))
}

/// `MemAvailable` of `/proc/meminfo`, in bytes.
fn available_in(text: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::available_in;

    #[test]
    fn reads_the_line_it_needs() {
        assert_eq!(available_in("MemTotal:  10 kB\nMemAvailable:    3 kB\n"), Some(3072));
        assert_eq!(available_in("MemTotal:  10 kB\n"), None);
    }
}
