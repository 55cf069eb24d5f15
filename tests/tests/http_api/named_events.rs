//! Streams whose events have names.

use serde_json::Value;

use crate::client::Reply;

/// Name and data of each event, checked for the form of its lines.
pub fn named_events(reply: Reply) -> Vec<(String, Value)> {
    assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    let text = String::from_utf8(reply.body).unwrap();
    let block = |block: &str| {
        let (name, data) = block.split_once('\n').unwrap_or_else(|| panic!("{block:?}"));
        let name = name.strip_prefix("event: ").unwrap_or_else(|| panic!("{block:?}"));
        let data = data.strip_prefix("data: ").unwrap_or_else(|| panic!("{block:?}"));
        (name.to_owned(), serde_json::from_str(data).unwrap())
    };
    text.split_terminator("\n\n").filter(|text| *text != ": ping").map(block).collect()
}
