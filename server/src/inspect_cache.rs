//! `perilune inspect --cache URL`: what a running server has stored, as text.

use std::fmt::Write;

use serde_json::Value;

use crate::error::ServerError;

/// The report of the server at `url`, asked for under `key`.
///
/// # Errors
/// A server that cannot be reached, that refuses the key, or that has no such report.
pub fn inspect_cache(url: &str, key: Option<&str>) -> Result<String, ServerError> {
    let base = url.trim_end_matches('/').trim_end_matches("/v1");
    let unreachable = |error: ureq::Error| ServerError::Answer(format!("{base} cannot be reached: {error}"));
    let agent = ureq::Agent::new_with_config(ureq::Agent::config_builder().http_status_as_error(false).build());
    let mut request = agent.get(format!("{base}/cache"));
    if let Some(key) = key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let mut response = request.call().map_err(unreachable)?;
    let status = response.status();
    let answer = response.body_mut().read_json::<Value>();
    if !status.is_success() {
        let why = answer.ok().and_then(|answer| Some(format!(": {}", answer["error"]["message"].as_str()?)));
        let flag = if matches!(status.as_u16(), 401 | 403) { "; `--api-key` gives it one" } else { "" };
        return Err(ServerError::Answer(format!("{base}/cache answered {status}{}{flag}", why.unwrap_or_default())));
    }
    Ok(as_text(&answer.map_err(unreachable)?))
}

fn as_text(report: &Value) -> String {
    let mut text = String::new();
    let (usage, events) = (&report["usage"], &report["events"]);
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let mib = |value: &Value| number(value) as f64 / f64::from(1 << 20);
    let queried = number(&events["queried_tokens"]);
    let rate = 100.0 * number(&events["hit_tokens"]) as f64 / queried.max(1) as f64;
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "arena    {:.1} MiB, {:.1} free; blocks {} in use, {} stored; states {} in use, {} stored",
        mib(&usage["arena_bytes"]),
        mib(&usage["free_bytes"]),
        usage["blocks_used"],
        usage["blocks_stored"],
        usage["slots_used"],
        usage["slots_stored"],
    );
    let _ = writeln!(text, "host     {:.1} of {:.1} MiB", mib(&usage["host_used_bytes"]), mib(&usage["host_bytes"]));
    if number(&usage["disk_bytes"]) > 0 {
        let _ = writeln!(
            text,
            "disk     {:.1} of {:.1} MiB, {} states; {} written, {} not, {} restored, {} evicted, {} records lost",
            mib(&usage["disk_used_bytes"]),
            mib(&usage["disk_bytes"]),
            usage["disk_states"],
            events["disk_writes"],
            events["disk_skips"],
            events["disk_restores"],
            events["disk_evictions"],
            events["disk_losses"],
        );
    }
    let _ = writeln!(
        text,
        "tokens   {queried} asked for, {} found ({rate:.1} %); {} restores, {} without room",
        events["hit_tokens"], events["restores"], events["failed_restores"],
    );
    let _ = writeln!(
        text,
        "states   {} saved, {} evicted, {} of them to host memory; {} units moved",
        events["states_stored"], events["evictions"], events["demotions"], events["moves"],
    );
    text.push_str(
        "stored prefixes: tokens, blocks on the device + in host memory, requests; states @ tokens × starts\n",
    );
    for prefix in report["prefixes"].as_array().into_iter().flatten() {
        line(&mut text, prefix);
    }
    text
}

fn line(text: &mut String, prefix: &Value) {
    let level = usize::try_from(prefix["level"].as_u64().unwrap_or(0)).unwrap_or(0);
    let _ = write!(
        text,
        "{:indent$}{}..{}  {}+{}  {}",
        "",
        prefix["from"],
        prefix["to"],
        prefix["device_blocks"],
        prefix["host_blocks"],
        prefix["sequences"],
        indent = 2 * level,
    );
    for state in prefix["states"].as_array().into_iter().flatten() {
        let place = if state["tier"] == "host" { "h" } else { "" };
        let _ = write!(text, "  @{}×{}{place}", state["position"], state["starts"]);
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_tree_is_indented_and_rates_are_worked_out() {
        let state = json!({"position": 70, "starts": 3, "tier": "host"});
        let prefix = |level: u64, states: Value| {
            json!({"level": level, "from": 0, "to": 64, "device_blocks": 1, "host_blocks": 2, "sequences": 1,
                   "states": states})
        };
        let report = json!({
            "usage": {"arena_bytes": 3 << 20, "free_bytes": 1 << 20},
            "events": {"queried_tokens": 200, "hit_tokens": 50},
            "prefixes": [prefix(0, json!([])), prefix(1, json!([state]))],
        });
        let text = as_text(&report);
        assert!(text.contains("arena    3.0 MiB, 1.0 free") && text.contains("50 found (25.0 %)"), "{text}");
        assert!(text.ends_with("\n0..64  1+2  1\n  0..64  1+2  1  @70×3h\n"), "{text}");
    }
}
