//! What a message of Anthropic's API looks like, whole or as events, from the same pieces.
//!
//! Content is a list of blocks in the order of the channels: thinking, text, uses of tools. Where thinking turns out to
//! have been the answer, a stream keeps the block it showed, and a text block brings the words again.
//!
//! Arguments stay as the model wrote them: a number may be longer than any machine type, and read as a value it would be lost.

use perilune_protocol::ErrorKind;
use perilune_tokenizer::ArgumentsForm;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::generation::{CallStep, Counts, Finish, ParsedToolCall, Piece};
use crate::sse::{EventWriter, SseEvent};

/// What the reply says beside the pieces.
#[derive(Debug, Clone)]
pub struct MessagesReply {
    /// `msg_…`.
    pub id: String,
    /// The model's name.
    pub model: String,
    /// Prompt tokens to report.
    pub prompt_tokens: usize,
}

/// A whole answer, with inputs of tools as they were written.
#[derive(Debug, Serialize)]
pub struct WholeMessage {
    #[serde(flatten)]
    fields: Map<String, Value>,
    content: Vec<Content>,
}

/// A block of it.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Content {
    Plain(Value),
    ToolUse {
        #[serde(rename = "type")]
        kind: &'static str,
        id: String,
        name: String,
        input: Box<RawValue>,
    },
}

impl MessagesReply {
    /// The whole answer.
    pub fn whole(&self, choices: Vec<Piece>) -> WholeMessage {
        let piece = choices.into_iter().next().unwrap_or_default();
        let mut content = Vec::new();
        if !piece.reasoning.is_empty() {
            let block = json!({"type": "thinking", "thinking": piece.reasoning, "signature": ""});
            content.push(Content::Plain(block));
        }
        if !piece.content.is_empty() {
            content.push(Content::Plain(json!({"type": "text", "text": piece.content})));
        }
        let calls = ParsedToolCall::all(piece.tool_calls);
        for (i, call) in calls.iter().enumerate() {
            let (id, name) = (self.use_id(i), call.name.clone());
            content.push(Content::ToolUse { kind: "tool_use", id, name, input: input(call) });
        }
        let (reason, sequence) = stop(piece.finish.as_ref(), calls.len());
        let mut fields = self.fields(piece.counts);
        fields.insert("stop_reason".to_owned(), json!(reason));
        fields.insert("stop_sequence".to_owned(), json!(sequence));
        WholeMessage { fields, content }
    }

    /// A message without its content.
    fn fields(&self, counts: Counts) -> Map<String, Value> {
        let fields = json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model,
            "stop_reason": null, "stop_sequence": null, "usage": self.usage(counts),
        });
        if let Value::Object(fields) = fields { fields } else { Map::new() }
    }

    /// Tokens read from the cache are not input tokens here.
    fn usage(&self, counts: Counts) -> Value {
        let cached = counts.cached.min(self.prompt_tokens);
        json!({
            "input_tokens": self.prompt_tokens - cached, "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached, "output_tokens": counts.completion,
        })
    }

    fn use_id(&self, at: usize) -> String {
        format!("toolu_{}_{at}", self.id.trim_start_matches("msg_"))
    }
}

/// The arguments as an object; of a call that was cut off, those that are complete.
fn input(call: &ParsedToolCall) -> Box<RawValue> {
    if call.ended || call.form == ArgumentsForm::Raw {
        return object(&call.arguments);
    }
    let complete = &call.arguments[..last_comma(&call.arguments)];
    let mut closed = [call.arguments.as_str(), complete].into_iter().map(|text| format!("{text}}}"));
    closed.find_map(|text| raw(&text).filter(|value| is_object(value))).unwrap_or_else(|| object("{}"))
}

/// A text that is JSON; `None` where it is none.
fn raw(text: &str) -> Option<Box<RawValue>> {
    serde_json::from_str(text).ok()
}

fn is_object(value: &RawValue) -> bool {
    value.get().starts_with('{')
}

/// Where the last comma between members of the object stands whose beginning `text` is; 0 without one.
fn last_comma(text: &str) -> usize {
    let (mut depth, mut in_string, mut escaped, mut last) = (0_usize, false, false, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' if depth == 1 => last = at,
            _ => {}
        }
    }
    last
}

/// Text that is no object stays readable.
fn object(arguments: &str) -> Box<RawValue> {
    match raw(arguments) {
        Some(value) if is_object(&value) => value,
        Some(other) => raw(&format!("{{\"value\": {}}}", other.get())).unwrap_or_default(),
        None => raw(&json!({"text": arguments}).to_string()).unwrap_or_default(),
    }
}

fn stop(finish: Option<&Finish>, num_calls: usize) -> (&'static str, Option<&str>) {
    match finish {
        Some(Finish::Length) => ("max_tokens", None),
        Some(Finish::StopText(text)) => ("stop_sequence", Some(text)),
        Some(Finish::Abort) => ("abort", None),
        Some(Finish::StopToken(_)) => ("end_turn", None),
        _ if num_calls > 0 => ("tool_use", None),
        _ => ("end_turn", None),
    }
}

/// A refusal in the shape of this API.
pub fn error_body(error: &ApiError) -> Value {
    let detail = error.body().error;
    let kind = match detail.kind {
        ErrorKind::InvalidRequestError => "invalid_request_error",
        ErrorKind::AuthenticationError => "authentication_error",
        ErrorKind::NotFoundError => "not_found_error",
        ErrorKind::OverloadedError => "overloaded_error",
        ErrorKind::ServerError => "api_error",
    };
    json!({"type": "error", "error": {"type": kind, "message": detail.message, "param": detail.param}})
}

/// A block that is being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    ToolUse,
}

/// The events of a streamed message.
pub struct MessagesEvents {
    reply: MessagesReply,
    open: Option<Block>,
    /// Blocks that were closed.
    num_blocks: usize,
    num_calls: usize,
    /// Arguments of the open call that are no pieces of an object: sent as one, when they are complete.
    unsent: Option<String>,
    counts: Counts,
    finish: Option<Finish>,
}

impl MessagesEvents {
    /// The events of a reply.
    pub fn new(reply: MessagesReply) -> Self {
        let (counts, finish) = (Counts::default(), None);
        MessagesEvents { reply, open: None, num_blocks: 0, num_calls: 0, unsent: None, counts, finish }
    }

    fn text(&mut self, block: Block, more: &str, events: &mut Vec<SseEvent>) {
        let (empty, delta) = match block {
            _ if more.is_empty() => return,
            Block::ToolUse => return,
            Block::Text => (json!({"type": "text", "text": ""}), json!({"type": "text_delta", "text": more})),
            Block::Thinking => (
                json!({"type": "thinking", "thinking": "", "signature": ""}),
                json!({"type": "thinking_delta", "thinking": more}),
            ),
        };
        if self.open != Some(block) {
            self.close(events);
            events.push(self.start(empty));
            self.open = Some(block);
        }
        events.push(self.delta(delta));
    }

    fn call(&mut self, step: CallStep, events: &mut Vec<SseEvent>) {
        match step {
            CallStep::Start { name } => {
                self.close(events);
                let id = self.reply.use_id(self.num_calls);
                self.num_calls += 1;
                events.push(self.start(json!({"type": "tool_use", "id": id, "name": name, "input": {}})));
                (self.open, self.unsent) = (Some(Block::ToolUse), None);
            }
            CallStep::Arguments(text) => events.push(self.input_delta(&text)),
            CallStep::RawArguments(text) => self.unsent.get_or_insert_default().push_str(&text),
            CallStep::End => self.close(events),
        }
    }

    fn input_delta(&self, text: &str) -> SseEvent {
        self.delta(json!({"type": "input_json_delta", "partial_json": text}))
    }

    fn start(&self, block: Value) -> SseEvent {
        let fields = json!({"type": "content_block_start", "index": self.num_blocks, "content_block": block});
        SseEvent::json(Some("content_block_start"), &fields)
    }

    fn delta(&self, delta: Value) -> SseEvent {
        let fields = json!({"type": "content_block_delta", "index": self.num_blocks, "delta": delta});
        SseEvent::json(Some("content_block_delta"), &fields)
    }

    fn close(&mut self, events: &mut Vec<SseEvent>) {
        match self.open.take() {
            None => return,
            // Nothing is sealed here; the SDKs expect one.
            Some(Block::Thinking) => events.push(self.delta(json!({"type": "signature_delta", "signature": ""}))),
            Some(Block::Text) => {}
            Some(Block::ToolUse) => {
                let raw = self.unsent.take().map(|text| self.input_delta(object(&text).get()));
                events.extend(raw);
            }
        }
        self.stop_block(events);
    }

    fn stop_block(&mut self, events: &mut Vec<SseEvent>) {
        let fields = json!({"type": "content_block_stop", "index": self.num_blocks});
        events.push(SseEvent::json(Some("content_block_stop"), &fields));
        self.num_blocks += 1;
    }
}

impl EventWriter for MessagesEvents {
    fn begin(&mut self) -> Vec<SseEvent> {
        let mut message = self.reply.fields(Counts::default());
        message.insert("content".to_owned(), json!([]));
        vec![SseEvent::json(Some("message_start"), &json!({"type": "message_start", "message": message}))]
    }

    fn piece(&mut self, _index: usize, piece: Piece) -> Vec<SseEvent> {
        let mut events = Vec::new();
        self.text(Block::Thinking, &piece.reasoning, &mut events);
        self.text(Block::Text, &piece.content, &mut events);
        piece.tool_calls.into_iter().for_each(|step| self.call(step, &mut events));
        self.counts = piece.counts;
        self.finish = piece.finish;
        events
    }

    fn fail(&mut self, error: &ApiError) -> Vec<SseEvent> {
        let mut events = Vec::new();
        self.close(&mut events);
        events.push(SseEvent::json(Some("error"), &error_body(error)));
        events
    }

    fn end(&mut self) -> Vec<SseEvent> {
        let mut events = Vec::new();
        self.close(&mut events);
        let (reason, sequence) = stop(self.finish.as_ref(), self.num_calls);
        let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
        let fields = json!({"type": "message_delta", "delta": delta, "usage": self.reply.usage(self.counts)});
        events.push(SseEvent::json(Some("message_delta"), &fields));
        events.push(SseEvent::json(Some("message_stop"), &json!({"type": "message_stop"})));
        events
    }
}
