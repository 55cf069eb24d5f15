//! Which call a tool result answers.
//!
//! What: for the messages after an assistant's calls, the order in which they are rendered and the name and number of
//! the call each belongs to. What not: rendering.

use super::{ChatMessage, Role, ToolCall};

/// A tool result with the call it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlacedResult<'a> {
    /// Position of the message within the run of results.
    pub(super) position: usize,
    /// The tool's name: of the call, else of the message itself.
    pub(super) tool: Option<&'a str>,
    /// Number of the call, from 1; where no call matches, of the result in its run.
    pub(super) index: usize,
}

/// Number of tool messages at the beginning of `messages`.
pub(super) fn run_length(messages: &[ChatMessage]) -> usize {
    messages.iter().take_while(|message| message.role == Role::Tool).count()
}

/// Orders a run of tool results. When every result matches a call, they take the order of the calls; otherwise they
/// keep their own, and each that matches still takes its call's name and number.
///
/// A result matches by the call's id or, where ids do not settle it, by an alias `name:number` (with or without
/// `functions.` before it). Numbers count from 1 if all aliases of the run can be read so, else from 0.
pub(super) fn place<'a>(calls: &'a [ToolCall], results: &'a [ChatMessage]) -> Vec<PlacedResult<'a>> {
    let one_based = matches(calls, results, 1);
    let zero_based = matches(calls, results, 0);
    let num_found = |found: &[Option<usize>]| found.iter().flatten().count();
    let found = if num_found(&zero_based) > num_found(&one_based) { zero_based } else { one_based };

    let place = |(position, (message, call)): (usize, (&'a ChatMessage, &Option<usize>))| PlacedResult {
        position,
        tool: call.map(|call| calls[call].name.as_str()).or(message.name.as_deref()),
        index: call.unwrap_or(position) + 1,
    };
    let mut placed: Vec<PlacedResult> = results.iter().zip(&found).enumerate().map(place).collect();
    if found.iter().all(Option::is_some) {
        placed.sort_by_key(|result| result.index);
    }
    placed
}

fn matches(calls: &[ToolCall], results: &[ChatMessage], base: usize) -> Vec<Option<usize>> {
    let find = |message: &ChatMessage| {
        let id = message.tool_call_id.as_deref()?;
        calls.iter().position(|call| call.id == id).or_else(|| alias(calls, id, base))
    };
    results.iter().map(find).collect()
}

fn alias(calls: &[ToolCall], id: &str, base: usize) -> Option<usize> {
    let (name, number) = id.strip_prefix("functions.").unwrap_or(id).rsplit_once(':')?;
    let call = number.parse::<usize>().ok()?.checked_sub(base)?;
    (calls.get(call)?.name == name).then_some(call)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::Arguments;

    fn call(id: &str, name: &str) -> ToolCall {
        ToolCall { id: id.to_owned(), name: name.to_owned(), arguments: Arguments::Typed(Vec::new()) }
    }

    fn result(id: &str) -> ChatMessage {
        ChatMessage { tool_call_id: Some(id.to_owned()), ..ChatMessage::new(Role::Tool, id) }
    }

    /// Position, tool and number of each result in the order rendered.
    fn check(calls: &[ToolCall], ids: &[&str], expected: &[(usize, Option<&str>, usize)]) {
        let results: Vec<ChatMessage> = ids.iter().map(|id| result(id)).collect();
        let placed = place(calls, &results);
        let placed: Vec<_> = placed.iter().map(|placed| (placed.position, placed.tool, placed.index)).collect();
        assert_eq!(placed, expected, "{ids:?}");
    }

    #[test]
    fn results_take_the_order_of_the_calls() {
        let calls = [call("call_abc", "a"), call("call_def", "b"), call("x", "a")];
        let expected = [(2, Some("a"), 1), (0, Some("b"), 2), (1, Some("a"), 3)];
        check(&calls, &["call_def", "x", "call_abc"], &expected);
        check(&calls, &["b:2", "a:3", "a:1"], &expected);
        check(&calls, &["functions.b:1", "functions.a:2", "functions.a:0"], &expected);
        check(&calls, &["x"], &[(0, Some("a"), 3)]);
    }

    #[test]
    fn one_stranger_keeps_the_order_of_all() {
        let calls = [call("1", "a"), call("2", "b")];
        check(&calls, &["2", "stranger", "1"], &[(0, Some("b"), 2), (1, None, 2), (2, Some("a"), 1)]);
        check(&[], &["b:1"], &[(0, None, 1)]);
    }
}
