//! How many physical cores the process may use.

use std::collections::BTreeSet;

/// Physical cores among the processors of the process, within its processor quota; at least 1.
pub(crate) fn physical() -> usize {
    let allowed = std::thread::available_parallelism().map_or(1, usize::from);
    let processors = core_affinity::get_core_ids().unwrap_or_default();
    let siblings = |id: usize| {
        std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu{id}/topology/thread_siblings_list"))
            // A processor that the system says nothing about counts as a core of its own.
            .unwrap_or_else(|_| id.to_string())
    };
    let cores: BTreeSet<String> = processors.iter().map(|core| siblings(core.id).trim().to_owned()).collect();
    if cores.is_empty() { allowed } else { cores.len().min(allowed) }
}
