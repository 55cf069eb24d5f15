//! The body of Anthropic's `POST /v1/messages` and `/v1/messages/count_tokens`: read into the same request that a chat is.

use serde_json::{Map, Value, json};

use crate::answer_start::{begun_answer, check_forms};
use crate::fields::{Fields, invalid};
use crate::message::{RequestedCall, check_id};
use crate::tools::check_name;
use crate::{
    ChatCompletionRequest, EffortLevel, GenerationOptions, Message, ParallelCalls, ProtocolError, ResponseFormat,
    StreamMode, ThinkingOptions, ToolChoice, Tools, UsageReport, parse_object,
};

/// Tokens of thinking up to which effort is low, and up to which it is high.
const BUDGETS: (usize, usize) = (4096, 24_576);

/// Reads a request for a message.
///
/// # Errors
/// What is wrong with it, by field, value and rule.
pub fn parse_messages_request(body: &[u8]) -> Result<ChatCompletionRequest, ProtocolError> {
    let fields = &mut Fields::root(parse_object(body)?);
    let limit = fields.count("max_tokens", 1, u32::MAX as usize)?;
    let limit = limit.ok_or_else(|| fields.missing("max_tokens", "it must be an integer from 1"))?;
    read(fields, Some(limit))
}

/// Reads a request to count the tokens of a prompt.
///
/// # Errors
/// What is wrong with it, by field, value and rule.
pub fn parse_count_request(body: &[u8]) -> Result<ChatCompletionRequest, ProtocolError> {
    read(&mut Fields::root(parse_object(body)?), None)
}

fn read(fields: &mut Fields, max_tokens: Option<usize>) -> Result<ChatCompletionRequest, ProtocolError> {
    // `stop` is no word of this API.
    let stop = fields.array("stop_sequences")?.unwrap_or_default();
    let texts = stop.into_iter().enumerate().map(|(i, item)| match item {
        Value::String(text) if !text.is_empty() => Ok(text),
        other => Err(invalid(&format!("stop_sequences[{i}]"), &other, "it must be a string, not empty")),
    });
    let mut options = GenerationOptions::read(fields)?;
    options.stop = texts.collect::<Result<_, _>>()?;
    (options.n, options.max_tokens) = (1, max_tokens);
    let tools = read_tools(fields)?;
    let (tool_choice, parallel_calls) = read_choice(fields, tools.as_ref())?;
    let mut messages = Vec::new();
    let system = read_system(fields)?;
    if !system.is_empty() {
        messages.push(Message::System { content: system, name: None, tools: None });
    }
    read_turns(fields, &mut messages)?;
    let (thinking, response_format) = (read_thinking(fields)?, read_format(fields)?);
    let mut answer_begin = String::new();
    if matches!(messages.last(), Some(Message::Assistant { .. })) {
        answer_begin = begun_answer(&mut messages, thinking)?;
        check_forms("messages", (&response_format, &options, &tool_choice))?;
    }
    Ok(ChatCompletionRequest {
        model: fields.string("model")?,
        messages,
        answer_begin,
        tools,
        tool_choice,
        parallel_calls,
        response_format,
        thinking,
        include_reasoning: true,
        separate_reasoning: true,
        logprobs: None,
        options,
        stream: match fields.boolean("stream")? {
            Some(true) => StreamMode::Events(UsageReport::Final),
            _ => StreamMode::Whole,
        },
    })
}

fn read_tools(fields: &mut Fields) -> Result<Option<Tools>, ProtocolError> {
    let Some(items) = fields.array("tools")?.filter(|items| !items.is_empty()) else { return Ok(None) };
    let mut written = Vec::with_capacity(items.len());
    for (i, item) in items.into_iter().enumerate() {
        let mut tool = Fields::of(format!("tools[{i}]"), item)?;
        if let Some(kind) = tool.string("type")?.filter(|kind| kind != "custom") {
            return Err(tool.refuse("type", &Value::String(kind), "only tools of the client's own are offered"));
        }
        let name = tool.required_string("name")?;
        check_name(&tool.path("name"), &name)?;
        let mut function = Map::from_iter([("name".to_owned(), Value::String(name))]);
        for (key, ours) in [("description", "description"), ("input_schema", "parameters"), ("strict", "strict")] {
            function.extend(tool.take(key).map(|value| (ours.to_owned(), value)));
        }
        written.push(json!({"type": "function", "function": function}));
    }
    Tools::of("tools", written).map(Some)
}

fn read_choice(fields: &mut Fields, tools: Option<&Tools>) -> Result<(ToolChoice, ParallelCalls), ProtocolError> {
    let Some(mut choice) = fields.object("tool_choice")? else { return Ok(Default::default()) };
    let kind = choice.required_string("type")?;
    let parallel = match choice.boolean("disable_parallel_tool_use")? {
        Some(true) => ParallelCalls::One,
        _ => ParallelCalls::Several,
    };
    let wanted = match kind.as_str() {
        "auto" => ToolChoice::Auto,
        "none" => ToolChoice::None,
        "any" => ToolChoice::Required,
        "tool" => ToolChoice::Named(choice.required_string("name")?),
        _ => return Err(choice.refuse("type", &Value::String(kind), "it must be `auto`, `any`, `tool` or `none`")),
    };
    let declared = tools.map(Tools::functions).unwrap_or_default();
    match &wanted {
        ToolChoice::Required if declared.is_empty() => {
            Err(choice.refuse("type", &Value::from("any"), "it needs `tools`"))
        }
        ToolChoice::Named(name) if declared.iter().all(|tool| tool.name != *name) => {
            Err(choice.refuse("name", &Value::from(name.as_str()), "no tool of this name is declared"))
        }
        _ => Ok((wanted, parallel)),
    }
}

/// `output_config.format` (and `output_format` of the beta before it): a schema.
fn read_format(fields: &mut Fields) -> Result<ResponseFormat, ProtocolError> {
    let format = match fields.object("output_config")? {
        Some(mut config) => config.object("format")?,
        None => fields.object("output_format")?,
    };
    let Some(mut format) = format else { return Ok(ResponseFormat::Text) };
    let kind = format.required_string("type")?;
    if kind != "json_schema" {
        return Err(format.refuse("type", &Value::String(kind), "it must be `json_schema`"));
    }
    crate::tools::read_schema(format)
}

/// Off unless asked for, as this API has it. A budget of tokens becomes the effort that usually needs as many.
fn read_thinking(fields: &mut Fields) -> Result<ThinkingOptions, ProtocolError> {
    let Some(mut thinking) = fields.object("thinking")? else { return Ok(ThinkingOptions::Off) };
    let kind = thinking.required_string("type")?;
    let budget = thinking.count("budget_tokens", 1, u32::MAX as usize)?;
    match kind.as_str() {
        "disabled" => Ok(ThinkingOptions::Off),
        "enabled" | "adaptive" => Ok(ThinkingOptions::On(budget.map(|budget| match budget {
            budget if budget <= BUDGETS.0 => EffortLevel::Low,
            budget if budget <= BUDGETS.1 => EffortLevel::High,
            _ => EffortLevel::Max,
        }))),
        _ => Err(thinking.refuse("type", &Value::String(kind), "it must be `enabled`, `adaptive` or `disabled`")),
    }
}

fn read_system(fields: &mut Fields) -> Result<Vec<String>, ProtocolError> {
    match fields.take("system") {
        None => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![text]),
        Some(Value::Array(blocks)) => {
            blocks.into_iter().enumerate().map(|(i, block)| text_block(format!("system[{i}]"), block)).collect()
        }
        Some(other) => Err(fields.refuse("system", &other, "it must be a string or an array of text blocks")),
    }
}

fn text_block(path: String, block: Value) -> Result<String, ProtocolError> {
    let mut block = Fields::of(path, block)?;
    let kind = block.required_string("type")?;
    if kind != "text" {
        return Err(block.refuse("type", &Value::String(kind), "only text is understood; this is a text model"));
    }
    block.required_string("text")
}

fn read_turns(fields: &mut Fields, messages: &mut Vec<Message>) -> Result<(), ProtocolError> {
    let rule = "it must be an array of messages, not empty";
    let turns = fields.array("messages")?.ok_or_else(|| fields.missing("messages", rule))?;
    if turns.is_empty() {
        return Err(fields.refuse("messages", &Value::Array(turns), rule));
    }
    for (i, turn) in turns.into_iter().enumerate() {
        let mut turn = Fields::of(format!("messages[{i}]"), turn)?;
        let role = turn.required_string("role")?;
        let path = turn.path("content");
        let blocks = match turn.take("content") {
            Some(Value::String(text)) => vec![json!({"type": "text", "text": text})],
            Some(Value::Array(blocks)) => blocks,
            Some(other) => return Err(turn.refuse("content", &other, "it must be a string or an array of blocks")),
            None => return Err(turn.missing("content", "it must be a string or an array of blocks")),
        };
        let blocks = blocks.into_iter().enumerate().map(|(i, block)| Fields::of(format!("{path}[{i}]"), block));
        let blocks = blocks.collect::<Result<Vec<_>, _>>()?;
        match role.as_str() {
            "user" => read_user(blocks, messages)?,
            "assistant" => messages.push(read_assistant(blocks)?),
            _ => return Err(turn.refuse("role", &Value::String(role), "it must be `user` or `assistant`")),
        }
    }
    Ok(())
}

/// Results of tools become messages of their own; the rest is the user's.
fn read_user(blocks: Vec<Fields>, messages: &mut Vec<Message>) -> Result<(), ProtocolError> {
    let mut content = Vec::new();
    let has_blocks = !blocks.is_empty();
    let mut has_results = false;
    for mut block in blocks {
        let kind = block.required_string("type")?;
        match kind.as_str() {
            "text" => content.push(block.required_string("text")?),
            "tool_result" => {
                let tool_call_id = block.required_string("tool_use_id")?;
                messages.push(Message::Tool { content: read_result(&mut block)?, tool_call_id, name: None });
                has_results = true;
            }
            _ => {
                let rule = "it must be `text` or `tool_result`; this is a text model";
                return Err(block.refuse("type", &Value::String(kind), rule));
            }
        }
    }
    if !(content.is_empty() && has_results && has_blocks) {
        messages.push(Message::User { content, name: None });
    }
    Ok(())
}

fn read_result(block: &mut Fields) -> Result<Vec<String>, ProtocolError> {
    let path = block.path("content");
    match block.take("content") {
        None => Ok(vec![String::new()]),
        Some(Value::String(text)) => Ok(vec![text]),
        Some(Value::Array(parts)) => {
            parts.into_iter().enumerate().map(|(i, part)| text_block(format!("{path}[{i}]"), part)).collect()
        }
        Some(other) => Err(invalid(&path, &other, "it must be a string or an array of text blocks")),
    }
}

fn read_assistant(blocks: Vec<Fields>) -> Result<Message, ProtocolError> {
    let (mut content, mut reasoning, mut tool_calls) = (Vec::new(), None::<String>, Vec::new());
    for mut block in blocks {
        let kind = block.required_string("type")?;
        match kind.as_str() {
            "text" => content.push(block.required_string("text")?),
            "thinking" => reasoning.get_or_insert_default().push_str(&block.required_string("thinking")?),
            // What another service sealed cannot be read.
            "redacted_thinking" => {}
            "tool_use" => {
                let (id, name) = (block.required_string("id")?, block.required_string("name")?);
                check_name(&block.path("name"), &name)?;
                check_id(&tool_calls, &block.path("id"), &id)?;
                let arguments = match block.take("input") {
                    None => "{}".to_owned(),
                    Some(input @ Value::Object(_)) => input.to_string(),
                    Some(other) => return Err(block.refuse("input", &other, "it must be an object")),
                };
                tool_calls.push(RequestedCall { id, name, arguments });
            }
            _ => {
                let rule = "it must be `text`, `thinking`, `redacted_thinking` or `tool_use`";
                return Err(block.refuse("type", &Value::String(kind), rule));
            }
        }
    }
    Ok(Message::Assistant { content, reasoning, tool_calls, name: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(extra: Value) -> Result<ChatCompletionRequest, ProtocolError> {
        let mut body = json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        parse_messages_request(body.to_string().as_bytes())
    }

    #[test]
    fn blocks_become_messages() {
        let turns = json!([
            {"role": "user", "content": [{"type": "text", "text": "weather?"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "Checking."},
                {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "18C"}]},
                {"type": "text", "text": "and?"}]},
        ]);
        let request = parse(json!({"messages": turns, "system": [{"type": "text", "text": "Be brief."}]})).unwrap();
        let [
            Message::System { .. },
            Message::User { .. },
            assistant,
            Message::Tool { tool_call_id, .. },
            Message::User { .. },
        ] = request.messages.as_slice()
        else {
            panic!("{:?}", request.messages)
        };
        assert_eq!(tool_call_id, "toolu_1");
        assert!(matches!(assistant, Message::Assistant { reasoning: Some(text), tool_calls, .. }
            if text == "hm" && tool_calls[0].arguments == r#"{"a":1}"#));
    }

    #[test]
    fn fields_have_their_own_names() {
        let tools = json!([{"name": "f", "description": "d", "input_schema": {"type": "object"}}]);
        let request = parse(json!({"tools": tools, "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
            "stop_sequences": ["a"], "thinking": {"type": "enabled", "budget_tokens": 10_000}, "stream": true}));
        let request = request.unwrap();
        assert_eq!((&request.tool_choice, request.parallel_calls), (&ToolChoice::Required, ParallelCalls::One));
        assert_eq!(request.tools.unwrap().functions()[0].parameters, Some(json!({"type": "object"})));
        assert_eq!((request.options.stop, request.options.max_tokens), (vec!["a".to_owned()], Some(9)));
        assert_eq!(request.thinking, ThinkingOptions::On(Some(EffortLevel::High)));
        assert_eq!(parse(json!({})).unwrap().thinking, ThinkingOptions::Off);
        let named = parse(json!({"tools": tools, "tool_choice": {"type": "tool", "name": "f"}})).unwrap();
        assert_eq!(named.tool_choice, ToolChoice::Named("f".to_owned()));
    }

    #[test]
    fn wrong_values_name_their_place() {
        for (extra, param) in [
            (json!({"max_tokens": null}), "max_tokens"),
            (json!({"messages": []}), "messages"),
            (json!({"messages": [{"role": "system", "content": "x"}]}), "messages[0].role"),
            (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
            (json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]}), "messages[0].content[0].type"),
            (
                json!({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}},
                    {"type": "tool_use", "id": "1", "name": "f", "input": {}}]}]}),
                "messages[0].content[1].id",
            ),
            (
                json!({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": 5}]}]}),
                "messages[0].content[0].input",
            ),
            (json!({"system": 5}), "system"),
            (json!({"tools": [{"type": "bash_20250124", "name": "bash"}]}), "tools[0].type"),
            (json!({"tool_choice": {"type": "any"}}), "tool_choice.type"),
            (json!({"tool_choice": {"type": "tool", "name": "f"}}), "tool_choice.name"),
            (json!({"thinking": {"type": "maybe"}}), "thinking.type"),
            (json!({"stop_sequences": [""]}), "stop_sequences[0]"),
        ] {
            assert_eq!(parse(extra.clone()).unwrap_err().param(), Some(param), "{extra}");
        }
        assert!(parse_count_request(br#"{"messages": [{"role": "user", "content": "x"}]}"#).is_ok());
    }
}
