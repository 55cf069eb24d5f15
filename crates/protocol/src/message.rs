//! The messages of a conversation: what each role may and must carry.

use serde_json::Value;

use crate::ProtocolError;
use crate::fields::{Fields, invalid};
use crate::tools::{Tools, check_name};

/// One message. Content is a list of text parts; a plain string is one part.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// Instructions; role `system` or `developer`.
    System {
        /// Text parts; may be empty only where `tools` are given.
        content: Vec<String>,
        /// The speaker's name.
        name: Option<String>,
        /// Tools that become available at this point.
        tools: Option<Tools>,
    },
    /// The user's words.
    User {
        /// Text parts.
        content: Vec<String>,
        /// The speaker's name.
        name: Option<String>,
    },
    /// What the model said before.
    Assistant {
        /// Text parts of the answer.
        content: Vec<String>,
        /// Its reasoning (`reasoning_content`, or `reasoning`).
        reasoning: Option<String>,
        /// Its tool calls.
        tool_calls: Vec<RequestedCall>,
        /// The speaker's name.
        name: Option<String>,
    },
    /// The result of a tool call.
    Tool {
        /// Text parts.
        content: Vec<String>,
        /// Which call it answers.
        tool_call_id: String,
        /// The tool's name, where the client repeats it.
        name: Option<String>,
    },
}

/// A tool call in the history.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestedCall {
    /// The call's id; empty where the client gave none.
    pub id: String,
    /// The tool.
    pub name: String,
    /// Its arguments: JSON text as the client wrote it (or any other text it wrote); `{}` for none.
    pub arguments: String,
}

/// Reads `messages`, at least one.
pub(crate) fn read_messages(fields: &mut Fields) -> Result<Vec<Message>, ProtocolError> {
    let path = fields.path("messages");
    let items =
        fields.array("messages")?.ok_or_else(|| fields.missing("messages", "it must be an array of messages"))?;
    if items.is_empty() {
        return Err(invalid(&path, &Value::Array(items), "at least one message is needed"));
    }
    items.into_iter().enumerate().map(|(i, item)| Message::read(format!("{path}[{i}]"), item)).collect()
}

impl Message {
    fn read(path: String, value: Value) -> Result<Self, ProtocolError> {
        let mut fields = Fields::of(path, value)?;
        let role = fields.required_string("role")?;
        let name = fields.string("name")?;
        match role.as_str() {
            "user" => Ok(Message::User { content: required_content(&mut fields)?, name }),
            "system" | "developer" => read_system(&mut fields, name),
            "assistant" => read_assistant(&mut fields, name),
            "tool" => {
                let content = required_content(&mut fields)?;
                let rule = "a message of role `tool` must name the call it answers";
                let id = fields.string("tool_call_id")?.ok_or_else(|| fields.missing("tool_call_id", rule))?;
                Ok(Message::Tool { content, tool_call_id: id, name })
            }
            _ => {
                let rule = "it must be `system`, `developer`, `user`, `assistant` or `tool`";
                Err(fields.refuse("role", &Value::String(role), rule))
            }
        }
    }
}

fn read_system(fields: &mut Fields, name: Option<String>) -> Result<Message, ProtocolError> {
    let tools = Tools::read(fields)?;
    let content = match tools {
        Some(_) => optional_content(fields)?,
        None => required_content(fields)?,
    };
    Ok(Message::System { content, name, tools })
}

fn read_assistant(fields: &mut Fields, name: Option<String>) -> Result<Message, ProtocolError> {
    let content = optional_content(fields)?;
    let reasoning = match fields.string("reasoning_content")? {
        Some(text) => Some(text),
        None => fields.string("reasoning")?,
    };
    let path = fields.path("tool_calls");
    let mut tool_calls = Vec::new();
    for (i, call) in fields.array("tool_calls")?.unwrap_or_default().into_iter().enumerate() {
        let call = read_call(format!("{path}[{i}]"), call)?;
        check_id(&tool_calls, &format!("{path}[{i}].id"), &call.id)?;
        tool_calls.push(call);
    }
    Ok(Message::Assistant { content, reasoning, tool_calls, name })
}

/// Results find their calls by id: a call may not have that of an earlier one of its message. Those without an id are found
/// by their order.
pub(crate) fn check_id(earlier: &[RequestedCall], path: &str, id: &str) -> Result<(), ProtocolError> {
    if id.is_empty() || earlier.iter().all(|call| call.id != id) {
        return Ok(());
    }
    let rule = "an earlier call of the same message has this id; each must have its own";
    Err(invalid(path, &Value::String(id.to_owned()), rule))
}

fn read_call(path: String, value: Value) -> Result<RequestedCall, ProtocolError> {
    let mut fields = Fields::of(path, value)?;
    let id = fields.string("id")?.unwrap_or_default();
    let rule = "a tool call must carry its function";
    let mut function = fields.object("function")?.ok_or_else(|| fields.missing("function", rule))?;
    let name = function.required_string("name")?;
    check_name(&function.path("name"), &name)?;
    let arguments = match function.take("arguments") {
        None => "{}".to_owned(),
        Some(Value::String(text)) if text.trim().is_empty() => "{}".to_owned(),
        Some(Value::String(text)) => text,
        Some(map @ Value::Object(_)) => map.to_string(),
        Some(other) => return Err(function.refuse("arguments", &other, "it must be a JSON text or an object")),
    };
    Ok(RequestedCall { id, name, arguments })
}

fn required_content(fields: &mut Fields) -> Result<Vec<String>, ProtocolError> {
    const RULE: &str = "it must be a string or an array of text parts";
    let path = fields.path("content");
    match fields.take("content") {
        Some(value) => parts(&path, value, RULE),
        None => Err(fields.missing("content", RULE)),
    }
}

fn optional_content(fields: &mut Fields) -> Result<Vec<String>, ProtocolError> {
    let path = fields.path("content");
    let value = fields.take("content");
    value.map_or_else(
        || Ok(Vec::new()),
        |value| parts(&path, value, "it must be a string, an array of text parts, or null"),
    )
}

fn parts(path: &str, value: Value, rule: &str) -> Result<Vec<String>, ProtocolError> {
    match value {
        Value::String(text) => Ok(vec![text]),
        Value::Array(items) => {
            items.into_iter().enumerate().map(|(i, item)| text_part(format!("{path}[{i}]"), item)).collect()
        }
        other => Err(invalid(path, &other, rule)),
    }
}

fn text_part(path: String, value: Value) -> Result<String, ProtocolError> {
    if let Value::String(text) = value {
        return Ok(text);
    }
    let mut fields = Fields::of(path, value)?;
    let kind = fields.required_string("type")?;
    if kind != "text" {
        let rule = "only parts of type `text` are understood; this is a text model";
        return Err(fields.refuse("type", &Value::String(kind), rule));
    }
    fields.required_string("text")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(message: Value) -> Result<Message, ProtocolError> {
        let mut fields = Fields::of(String::new(), json!({"messages": [message]}))?;
        read_messages(&mut fields).map(|mut messages| messages.remove(0))
    }

    #[test]
    fn wrong_messages_name_their_place() {
        let cases = [
            (json!("hi"), "messages[0]"),
            (json!({"content": "x"}), "messages[0].role"),
            (json!({"role": "alien", "content": "x"}), "messages[0].role"),
            (json!({"role": "user"}), "messages[0].content"),
            (json!({"role": "user", "content": null}), "messages[0].content"),
            (json!({"role": "user", "content": 5}), "messages[0].content"),
            (json!({"role": "system", "content": null}), "messages[0].content"),
            (json!({"role": "user", "content": [{"type": "hologram"}]}), "messages[0].content[0].type"),
            (
                json!({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}),
                "messages[0].content[0].type",
            ),
            (json!({"role": "user", "content": [{"type": "text"}]}), "messages[0].content[0].text"),
            (json!({"role": "user", "content": [3]}), "messages[0].content[0]"),
            (json!({"role": "tool", "content": "x"}), "messages[0].tool_call_id"),
            (json!({"role": "tool", "content": null, "tool_call_id": "a"}), "messages[0].content"),
            (json!({"role": "assistant", "tool_calls": [{}]}), "messages[0].tool_calls[0].function"),
            (
                json!({"role": "assistant", "tool_calls": [{"function": {"name": "a<b"}}]}),
                "messages[0].tool_calls[0].function.name",
            ),
            (
                json!({"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f"}},
                    {"id": "", "function": {"name": "f"}}, {"function": {"name": "f"}}, {"id": "a", "function": {"name": "g"}}]}),
                "messages[0].tool_calls[3].id",
            ),
            (
                json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}),
                "messages[0].tool_calls[0].function.arguments",
            ),
        ];
        for (message, param) in cases {
            assert_eq!(read(message.clone()).unwrap_err().param(), Some(param), "{message}");
        }
        let null = read_messages(&mut Fields::of(String::new(), json!({"messages": null})).unwrap()).unwrap_err();
        assert!(null.to_string().starts_with("`messages` is null"), "{null}");
        let mut none = Fields::of(String::new(), json!({"messages": []})).unwrap();
        assert!(read_messages(&mut none).unwrap_err().to_string().contains("at least one message"));
    }

    #[test]
    fn assistants_may_have_no_content_and_either_name_for_reasoning() {
        for key in ["reasoning_content", "reasoning"] {
            let message = read(json!({"role": "assistant", "content": null, key: "hm"})).unwrap();
            assert!(matches!(message, Message::Assistant { content, reasoning: Some(text), .. }
                if content.is_empty() && text == "hm"));
        }
    }

    #[test]
    fn call_arguments_keep_their_order_and_their_text() {
        let arguments = |value: Value| {
            let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": value}});
            match read(json!({"role": "assistant", "tool_calls": [call]})).unwrap() {
                Message::Assistant { mut tool_calls, .. } => tool_calls.remove(0).arguments,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(arguments(json!({"z": 1, "a": 2})), r#"{"z":1,"a":2}"#);
        for none in [json!(""), json!(" "), json!(null), json!({})] {
            assert_eq!(arguments(none), "{}");
        }
        for text in ["not json", "[1]", "{\"z\": 1, \"a\": 2}"] {
            assert_eq!(arguments(json!(text)), text);
        }
    }

    #[test]
    fn parts_stay_apart() {
        let parts = json!([{"type": "text", "text": "a"}, "b", {"type": "text", "text": ""}]);
        let message = read(json!({"role": "user", "content": parts, "name": "Ann"})).unwrap();
        let content = ["a", "b", ""].map(str::to_owned).to_vec();
        assert_eq!(message, Message::User { content, name: Some("Ann".to_owned()) });
    }
}
