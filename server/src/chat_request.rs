//! From the API's messages to the conversation that the chat format renders.

use perilune_protocol::{
    ChatCompletionRequest, EffortLevel, Message, RequestedCall, ResponseFormat as Asked, ThinkingOptions,
    ToolChoice as AskedChoice, Tools,
};
use perilune_tokenizer::{
    Arguments, ChatMessage, Conversation, Effort, ResponseFormat, Role, Thinking, ToolCall, ToolChoice, canonical_json,
};
use serde_json::Value;

use crate::error::ApiError;

/// The conversation a request describes. Effort is `max` where the request says nothing, as K3 is served.
///
/// # Errors
/// 400 where a tool or schema cannot be written as JSON.
pub fn conversation(request: ChatCompletionRequest) -> Result<Conversation, ApiError> {
    let (thinking, effort) = match request.thinking {
        ThinkingOptions::Off => (Thinking::Off, None),
        ThinkingOptions::On(level) => (Thinking::On, Some(level.map_or(Effort::Max, effort))),
    };
    Ok(Conversation {
        answer_begin: request.answer_begin,
        messages: request.messages.into_iter().map(message).collect::<Result<_, _>>()?,
        tools_json: request.tools.map(tools_json).transpose()?,
        thinking,
        effort,
        tool_choice: match request.tool_choice {
            AskedChoice::Auto => ToolChoice::Auto,
            AskedChoice::None => ToolChoice::None,
            // The prompt knows no names; the grammar does.
            AskedChoice::Required | AskedChoice::Named(_) => ToolChoice::Required,
        },
        response_format: match request.response_format {
            Asked::Text => ResponseFormat::Text,
            Asked::JsonObject => ResponseFormat::JsonObject,
            Asked::JsonSchema(schema) => ResponseFormat::JsonSchema(canonical("response_format", &schema)?),
        },
    })
}

fn effort(level: EffortLevel) -> Effort {
    match level {
        EffortLevel::Low => Effort::Low,
        EffortLevel::High => Effort::High,
        EffortLevel::Max => Effort::Max,
    }
}

fn message(message: Message) -> Result<ChatMessage, ApiError> {
    let plain = |role, content, name| ChatMessage { content, name, ..ChatMessage::new(role, "") };
    Ok(match message {
        Message::User { content, name } => plain(Role::User, content, name),
        Message::System { content, name, tools } => {
            ChatMessage { tools_json: tools.map(tools_json).transpose()?, ..plain(Role::System, content, name) }
        }
        Message::Assistant { content, reasoning, tool_calls, name } => ChatMessage {
            reasoning,
            tool_calls: tool_calls.into_iter().map(tool_call).collect(),
            ..plain(Role::Assistant, content, name)
        },
        Message::Tool { content, tool_call_id, name } => {
            ChatMessage { tool_call_id: Some(tool_call_id), ..plain(Role::Tool, content, name) }
        }
    })
}

fn tool_call(call: RequestedCall) -> ToolCall {
    ToolCall { id: call.id, name: call.name, arguments: Arguments::from_json(&call.arguments) }
}

fn tools_json(tools: Tools) -> Result<String, ApiError> {
    canonical("tools", &tools.into_value())
}

fn canonical(field: &str, value: &Value) -> Result<String, ApiError> {
    canonical_json(&value.to_string())
        .map_err(|error| ApiError::invalid(format!("`{field}` cannot be written as JSON: {error}"), Some(field)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: Value) -> Conversation {
        conversation(ChatCompletionRequest::parse(body.to_string().as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn the_default_effort_is_max_and_only_while_thinking() {
        let ask = |extra: Value| {
            let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
            body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            let conversation = read(body);
            (conversation.thinking, conversation.effort)
        };
        assert_eq!(ask(json!({})), (Thinking::On, Some(Effort::Max)));
        assert_eq!(ask(json!({"reasoning_effort": "low"})), (Thinking::On, Some(Effort::Low)));
        assert_eq!(ask(json!({"thinking": {"type": "disabled"}})), (Thinking::Off, None));
    }

    #[test]
    fn every_role_arrives_with_what_it_carries() {
        let tools = json!([{"type": "function", "function": {"name": "f", "description": "ü"}}]);
        let conversation = read(json!({
            "messages": [
                {"role": "developer", "content": "be brief"},
                {"role": "system", "tools": tools},
                {"role": "user", "name": "Ann", "content": ["a", {"type": "text", "text": "b"}]},
                {"role": "assistant", "content": null, "reasoning": "hm", "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"z\": 1, \"a\": \"x\"}"}}]},
                {"role": "tool", "tool_call_id": "c1", "content": "42"},
            ],
            "tools": tools,
            "tool_choice": "required",
            "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object", "a": [1]}}},
        }));
        let roles: Vec<Role> = conversation.messages.iter().map(|message| message.role).collect();
        assert_eq!(roles, [Role::System, Role::System, Role::User, Role::Assistant, Role::Tool]);
        let sorted = r#"[{"function":{"description":"ü","name":"f"},"type":"function"}]"#;
        assert_eq!(conversation.tools_json.as_deref(), Some(sorted));
        assert_eq!(conversation.messages[1].tools_json.as_deref(), Some(sorted));
        assert_eq!(conversation.messages[2].content, ["a", "b"]);
        assert_eq!(conversation.messages[3].reasoning.as_deref(), Some("hm"));
        assert_eq!(conversation.messages[3].tool_calls[0].arguments.to_json(), r#"{"z": 1, "a": "x"}"#);
        assert_eq!(conversation.messages[4].tool_call_id.as_deref(), Some("c1"));
        assert_eq!(conversation.tool_choice, ToolChoice::Required);
        let schema = r#"{"a":[1],"type":"object"}"#.to_owned();
        assert_eq!(conversation.response_format, ResponseFormat::JsonSchema(schema));
    }
}
