//! The body of `POST /v1/responses`: read into the same request that a chat is.
//!
//! Stateless: nothing is kept between requests, so what refers to earlier ones is refused, and the whole conversation
//! comes in `input`.

use serde_json::{Map, Value};

use crate::fields::{Fields, invalid};
use crate::generation::MAX_TOP_LOGPROBS;
use crate::message::{RequestedCall, check_id};
use crate::thinking::read_effort;
use crate::tools::{check_name, read_schema};
use crate::{
    ChatCompletionRequest, GenerationOptions, Message, ParallelCalls, ProtocolError, ResponseFormat, StreamMode,
    ThinkingOptions, ToolChoice, Tools, UsageReport, parse_object,
};

/// A response as the client asks for it.
#[derive(Debug, Clone, PartialEq)]
pub struct ResponsesRequest {
    /// The conversation and everything that shapes its continuation.
    pub chat: ChatCompletionRequest,
    /// What comes back as it was sent.
    pub echo: ResponsesEcho,
}

/// Fields that a response repeats, as the client wrote them; `null` where it did not.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ResponsesEcho {
    /// By name.
    pub fields: Map<String, Value>,
}

/// What a response repeats.
const ECHOED: &[&str] = &[
    "instructions",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "reasoning",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "user",
];

impl ResponsesRequest {
    /// Reads a request body.
    ///
    /// # Errors
    /// What is wrong with it, by field, value and rule.
    pub fn parse(body: &[u8]) -> Result<Self, ProtocolError> {
        let map = parse_object(body)?;
        let echoed = |key: &&str| ((*key).to_owned(), map.get(*key).cloned().unwrap_or(Value::Null));
        let echo = ResponsesEcho { fields: ECHOED.iter().map(echoed).collect() };
        let fields = &mut Fields::root(map);
        refuse_state(fields)?;
        let mut options = GenerationOptions::read(fields)?;
        if options.n != 1 {
            return Err(fields.refuse("n", &Value::from(options.n), "a response is one; it must be 1"));
        }
        options.max_tokens = fields.count("max_output_tokens", 1, u32::MAX as usize)?;
        let tools = read_tools(fields)?;
        let tool_choice = ToolChoice::read(fields, &tools.iter().flat_map(Tools::functions).collect::<Vec<_>>())?;
        let chat = ChatCompletionRequest {
            answer_begin: String::new(),
            model: fields.string("model")?,
            messages: read_conversation(fields)?,
            tools,
            tool_choice,
            parallel_calls: ParallelCalls::read(fields)?,
            response_format: read_format(fields)?,
            thinking: read_reasoning(fields)?,
            include_reasoning: true,
            separate_reasoning: true,
            logprobs: read_logprobs(fields)?,
            options,
            stream: match fields.boolean("stream")? {
                Some(true) => StreamMode::Events(UsageReport::Final),
                _ => StreamMode::Whole,
            },
        };
        Ok(ResponsesRequest { chat, echo })
    }
}

/// What only a server that keeps responses could do.
fn refuse_state(fields: &mut Fields) -> Result<(), ProtocolError> {
    for key in ["previous_response_id", "conversation", "prompt"] {
        if let Some(value) = fields.take(key) {
            let rule = "responses are not kept here; send the whole conversation in `input`";
            return Err(fields.refuse(key, &value, rule));
        }
    }
    if fields.boolean("background")? == Some(true) {
        let rule = "responses are not kept here, so none can be fetched later";
        return Err(fields.refuse("background", &Value::Bool(true), rule));
    }
    match fields.string("truncation")?.as_deref() {
        None | Some("disabled") => Ok(()),
        Some(other) => {
            Err(fields.refuse("truncation", &Value::from(other), "only `disabled` is offered: nothing is cut silently"))
        }
    }
}

/// Tools are flat here; other kinds than functions run on the server of the API's inventor.
fn read_tools(fields: &mut Fields) -> Result<Option<Tools>, ProtocolError> {
    let path = fields.path("tools");
    let Some(items) = fields.array("tools")?.filter(|items| !items.is_empty()) else { return Ok(None) };
    let mut written = Vec::with_capacity(items.len());
    for (i, item) in items.into_iter().enumerate() {
        let mut tool = Fields::of(format!("{path}[{i}]"), item)?;
        let kind = tool.required_string("type")?;
        if kind != "function" {
            return Err(tool.refuse("type", &Value::String(kind), "only `function` tools are offered"));
        }
        let name = tool.required_string("name")?;
        check_name(&tool.path("name"), &name)?;
        let mut function = Map::from_iter([("name".to_owned(), Value::String(name))]);
        for key in ["description", "parameters", "strict"] {
            function.extend(tool.take(key).map(|value| (key.to_owned(), value)));
        }
        written.push(serde_json::json!({"type": "function", "function": function}));
    }
    Tools::of(&path, written).map(Some)
}

fn read_format(fields: &mut Fields) -> Result<ResponseFormat, ProtocolError> {
    let Some(mut text) = fields.object("text")? else { return Ok(ResponseFormat::Text) };
    let Some(mut format) = text.object("format")? else { return Ok(ResponseFormat::Text) };
    let kind = format.required_string("type")?;
    match kind.as_str() {
        "text" => Ok(ResponseFormat::Text),
        "json_object" => Ok(ResponseFormat::JsonObject),
        "json_schema" => read_schema(format),
        _ => Err(format.refuse("type", &Value::String(kind), "it must be `text`, `json_object` or `json_schema`")),
    }
}

fn read_reasoning(fields: &mut Fields) -> Result<ThinkingOptions, ProtocolError> {
    match fields.object("reasoning")? {
        Some(mut reasoning) => Ok(match read_effort(&mut reasoning, "effort")? {
            Some(None) => ThinkingOptions::Off,
            Some(Some(level)) => ThinkingOptions::On(Some(level)),
            None => ThinkingOptions::On(None),
        }),
        None => Ok(ThinkingOptions::On(None)),
    }
}

/// `include: ["message.output_text.logprobs"]` asks for log-probabilities, `top_logprobs` for alternatives.
fn read_logprobs(fields: &mut Fields) -> Result<Option<usize>, ProtocolError> {
    let top = fields.count("top_logprobs", 0, MAX_TOP_LOGPROBS)?;
    let include = fields.array("include")?.unwrap_or_default();
    let asked = include.iter().any(|item| item == "message.output_text.logprobs");
    Ok(if asked { Some(top.unwrap_or(0)) } else { top.filter(|top| *top > 0) })
}

/// `instructions`, then `input`: one text, or items.
fn read_conversation(fields: &mut Fields) -> Result<Vec<Message>, ProtocolError> {
    const RULE: &str = "it must be a string or an array of items";
    let mut messages: Vec<Message> = Vec::new();
    if let Some(text) = fields.string("instructions")? {
        messages.push(Message::System { content: vec![text], name: None, tools: None });
    }
    let path = fields.path("input");
    match fields.take("input") {
        None => return Err(fields.missing("input", RULE)),
        Some(Value::String(text)) => messages.push(Message::User { content: vec![text], name: None }),
        Some(Value::Array(items)) if !items.is_empty() => {
            for (i, item) in items.into_iter().enumerate() {
                read_item(Fields::of(format!("{path}[{i}]"), item)?, &mut messages)?;
            }
        }
        Some(other) => return Err(fields.refuse("input", &other, RULE)),
    }
    Ok(messages)
}

fn read_item(mut item: Fields, messages: &mut Vec<Message>) -> Result<(), ProtocolError> {
    let kind = match item.string("type")? {
        Some(kind) => kind,
        None if item.contains("role") => "message".to_owned(),
        None => return Err(item.missing("type", "an item must say what it is")),
    };
    match kind.as_str() {
        "message" => read_message(item, messages),
        "reasoning" => {
            let mut text = read_parts(&mut item, "content")?;
            if text.is_empty() {
                text = read_parts(&mut item, "summary")?;
            }
            let add = |turn: Turn<'_>| {
                let before = turn.reasoning.take().unwrap_or_default();
                *turn.reasoning = Some(before + &text.concat());
            };
            add_to_turn(messages, only_thinks, add);
            Ok(())
        }
        "function_call" => {
            let (id, name) = (item.required_string("call_id")?, item.required_string("name")?);
            check_name(&item.path("name"), &name)?;
            let arguments = item.string("arguments")?.filter(|text| !text.trim().is_empty());
            let call = RequestedCall { id, name, arguments: arguments.unwrap_or_else(|| "{}".to_owned()) };
            let mut checked = Ok(());
            add_to_turn(
                messages,
                |_| true,
                |turn| {
                    checked = check_id(turn.calls, &item.path("call_id"), &call.id);
                    turn.calls.push(call);
                },
            );
            checked
        }
        "function_call_output" => {
            let tool_call_id = item.required_string("call_id")?;
            let content = read_parts(&mut item, "output")?;
            messages.push(Message::Tool { content, tool_call_id, name: None });
            Ok(())
        }
        _ => {
            let rule = "it must be `message`, `reasoning`, `function_call` or `function_call_output`";
            Err(item.refuse("type", &Value::String(kind), rule))
        }
    }
}

fn read_message(mut item: Fields, messages: &mut Vec<Message>) -> Result<(), ProtocolError> {
    let role = item.required_string("role")?;
    if !item.contains("content") {
        return Err(item.missing("content", "it must be a string or an array of parts"));
    }
    let content = read_parts(&mut item, "content")?;
    match role.as_str() {
        "user" => messages.push(Message::User { content, name: None }),
        "system" | "developer" => messages.push(Message::System { content, name: None, tools: None }),
        "assistant" => add_to_turn(messages, only_thinks, |turn| turn.content.extend(content)),
        _ => {
            let rule = "it must be `user`, `system`, `developer` or `assistant`";
            return Err(item.refuse("role", &Value::String(role), rule));
        }
    }
    Ok(())
}

/// The parts of an assistant's turn that items add to.
struct Turn<'a> {
    content: &'a mut Vec<String>,
    reasoning: &'a mut Option<String>,
    calls: &'a mut Vec<RequestedCall>,
}

/// Adds to the last message where it is the assistant's and `takes` more, to a new one otherwise.
fn add_to_turn(messages: &mut Vec<Message>, takes: fn(&Turn<'_>) -> bool, add: impl FnOnce(Turn<'_>)) {
    if let Some(turn) = messages.last_mut().and_then(turn)
        && takes(&turn)
    {
        return add(turn);
    }
    let mut message = Message::Assistant { content: Vec::new(), reasoning: None, tool_calls: Vec::new(), name: None };
    if let Some(turn) = turn(&mut message) {
        add(turn);
    }
    messages.push(message);
}

fn turn(message: &mut Message) -> Option<Turn<'_>> {
    match message {
        Message::Assistant { content, reasoning, tool_calls, .. } => {
            Some(Turn { content, reasoning, calls: tool_calls })
        }
        _ => None,
    }
}

/// Whether a turn has neither answered nor called.
fn only_thinks(turn: &Turn<'_>) -> bool {
    turn.content.is_empty() && turn.calls.is_empty()
}

/// Text of one field: a string, or parts that hold text.
fn read_parts(item: &mut Fields, key: &str) -> Result<Vec<String>, ProtocolError> {
    let path = item.path(key);
    let parts = match item.take(key) {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => return Ok(vec![text]),
        Some(Value::Array(parts)) => parts,
        Some(other) => return Err(invalid(&path, &other, "it must be a string or an array of parts")),
    };
    let text = |(i, part): (usize, Value)| {
        let mut part = Fields::of(format!("{path}[{i}]"), part)?;
        let kind = part.required_string("type")?;
        let known = ["input_text", "output_text", "text", "summary_text", "reasoning_text"];
        if !known.contains(&kind.as_str()) {
            return Err(part.refuse("type", &Value::String(kind), "only text is understood; this is a text model"));
        }
        part.required_string("text")
    };
    parts.into_iter().enumerate().map(text).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::EffortLevel;

    fn parse(extra: Value) -> Result<ResponsesRequest, ProtocolError> {
        let mut body = json!({"model": "m", "input": "hi"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        ResponsesRequest::parse(body.to_string().as_bytes())
    }

    #[test]
    fn items_of_one_turn_become_one_message() {
        let input = json!([
            {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "Checking.", "annotations": []}]},
            {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{\"a\": 1}"},
            {"type": "function_call", "call_id": "call_2", "name": "g", "arguments": ""},
            {"type": "function_call_output", "call_id": "call_2", "output": "18C"},
            {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "x"}]},
            {"role": "assistant", "content": "It is 18C."},
            {"role": "assistant", "content": "Anything else?"},
        ]);
        let request = parse(json!({"input": input, "instructions": "Be brief."})).unwrap();
        let messages = request.chat.messages;
        assert_eq!(messages.len(), 7);
        let Message::Assistant { content, reasoning, tool_calls, .. } = &messages[2] else { panic!("{messages:?}") };
        assert_eq!((content.concat().as_str(), reasoning.as_deref(), tool_calls.len()), ("Checking.", Some("hm"), 2));
        assert_eq!(tool_calls[1].arguments, "{}");
        assert!(
            matches!(&messages[0], Message::System { .. })
                && matches!(&messages[3], Message::Tool { tool_call_id, .. } if tool_call_id == "call_2")
        );
        assert_eq!(request.echo.fields["instructions"], "Be brief.");
        assert_eq!(request.echo.fields["top_p"], Value::Null);
    }

    #[test]
    fn fields_have_their_own_names() {
        let tools = json!([{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": true}]);
        let request = parse(
            json!({"tools": tools, "tool_choice": {"type": "function", "name": "f"}, "max_output_tokens": 7,
            "reasoning": {"effort": "low"}, "text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}, "stream": true}),
        );
        let chat = request.unwrap().chat;
        assert_eq!(chat.tool_choice, ToolChoice::Named("f".to_owned()));
        assert_eq!(chat.options.max_tokens, Some(7));
        assert_eq!(chat.thinking, ThinkingOptions::On(Some(EffortLevel::Low)));
        assert_eq!(chat.response_format, ResponseFormat::JsonSchema(json!({})));
        assert_eq!(chat.stream, StreamMode::Events(UsageReport::Final));
        assert_eq!(parse(json!({"include": ["message.output_text.logprobs"]})).unwrap().chat.logprobs, Some(0));
    }

    #[test]
    fn what_needs_memory_and_what_is_wrong_is_refused() {
        for (extra, param) in [
            (json!({"previous_response_id": "resp_1"}), "previous_response_id"),
            (json!({"conversation": "conv_1"}), "conversation"),
            (json!({"background": true}), "background"),
            (json!({"truncation": "auto"}), "truncation"),
            (json!({"input": null}), "input"),
            (json!({"input": []}), "input"),
            (json!({"input": [{"type": "item_reference", "id": "x"}]}), "input[0].type"),
            (json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}), "input[0].content[0].type"),
            (json!({"input": [{"role": "user"}]}), "input[0].content"),
            (json!({"input": [{"role": "critic", "content": "x"}]}), "input[0].role"),
            (json!({"input": [{"type": "function_call_output", "output": "x"}]}), "input[0].call_id"),
            (
                json!({"input": [{"type": "function_call", "call_id": "a", "name": "f"},
                    {"type": "function_call", "call_id": "a", "name": "g"}]}),
                "input[1].call_id",
            ),
            (json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
            (json!({"tools": [{"type": "function", "name": "a-b"}]}), "tools[0].name"),
            (json!({"text": {"format": {"type": "xml"}}}), "text.format.type"),
            (json!({"max_output_tokens": 0}), "max_output_tokens"),
            (json!({"reasoning": {"effort": "some"}}), "reasoning.effort"),
            (json!({"n": 2}), "n"),
        ] {
            assert_eq!(parse(extra.clone()).unwrap_err().param(), Some(param), "{extra}");
        }
    }
}
