//! What a response looks like to the client, whole or as events, from the same pieces.
//!
//! The output is a list of items in the order of the channels: reasoning, message, calls. In a stream each is announced,
//! filled, closed; the last event holds the whole response. Where reasoning turns out to have been the answer (the model
//! never closed its think channel), a stream keeps the reasoning item it showed, and the message brings the text again.
//!
//! Log-probabilities are those of the message's tokens, each with the text that it made certain: one whose text is held back
//! waits for that, and what is left at the end comes with no text. Where thinking was the answer, its tokens are the message's.

use std::sync::Arc;

use perilune_protocol::{OutputItem, ResponseObject, ResponseStatus, ResponsesEcho, TokenLogprob};
use perilune_tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::generation::{CallStep, Channel, Counts, Finish, GeneratedToken, Piece};
use crate::logprobs::TokenNames;
use crate::sse::{EventWriter, SseEvent};
use crate::usage::total_usage;

/// What the reply says beside the pieces.
#[derive(Debug, Clone)]
pub struct ResponsesReply {
    /// `resp_…`.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// Names tokens in log-probabilities.
    pub tokenizer: Arc<Tokenizer>,
    /// Prompt tokens to report.
    pub prompt_tokens: usize,
    /// What comes back as it was sent.
    pub echo: ResponsesEcho,
}

impl ResponsesReply {
    /// The whole answer.
    pub fn whole(&self, choices: Vec<Piece>) -> Value {
        let mut items = Items::new(self);
        let piece = choices.into_iter().next().unwrap_or_default();
        let (counts, finish) = (piece.counts, piece.finish.clone());
        // The events are made and dropped: one way to make items, not two.
        items.take(piece);
        items.close();
        self.object(status(finish.as_ref()), items.done, Some(counts)).to_json()
    }

    fn object(&self, status: ResponseStatus, output: Vec<OutputItem>, counts: Option<Counts>) -> ResponseObject {
        ResponseObject {
            id: self.id.clone(),
            created_at: self.created,
            model: self.model.clone(),
            echo: self.echo.clone(),
            status,
            output,
            usage: counts.map(|counts| total_usage(self.prompt_tokens, &[counts])),
            error: None,
        }
    }

    fn entry(&self, token: &GeneratedToken) -> Option<TokenLogprob> {
        TokenNames(Some(&self.tokenizer)).chat_entry(token)
    }
}

/// Log-probabilities that no event has brought yet.
#[derive(Debug, Clone, Default)]
struct Waiting {
    /// Of the message.
    said: Vec<TokenLogprob>,
    /// Of thinking, which may turn out to be the message.
    thought: Vec<TokenLogprob>,
}

impl Waiting {
    fn take_in(&mut self, piece: &Piece, reply: &ResponsesReply) {
        if piece.reasoning_was_content {
            self.said.append(&mut self.thought);
        }
        for token in &piece.tokens {
            match token.channel {
                Channel::Content => self.said.extend(reply.entry(token)),
                Channel::Reasoning => self.thought.extend(reply.entry(token)),
                Channel::ToolCall | Channel::Control => {}
            }
        }
    }
}

fn status(finish: Option<&Finish>) -> ResponseStatus {
    match finish {
        Some(Finish::Length) => ResponseStatus::Incomplete,
        Some(Finish::Abort) => ResponseStatus::Cancelled,
        Some(_) => ResponseStatus::Completed,
        None => ResponseStatus::InProgress,
    }
}

/// Of the item that was open at the end.
fn item_status(finish: Option<&Finish>) -> ResponseStatus {
    match finish {
        Some(Finish::Length | Finish::Abort) => ResponseStatus::Incomplete,
        _ => ResponseStatus::Completed,
    }
}

/// The items of a response as they grow, and what is said of that.
struct Items<'a> {
    reply: &'a ResponsesReply,
    done: Vec<OutputItem>,
    open: Option<OutputItem>,
    waiting: Waiting,
    /// Type and fields of each event, without its number.
    said: Vec<(&'static str, Value)>,
}

impl<'a> Items<'a> {
    fn new(reply: &'a ResponsesReply) -> Self {
        Items { reply, done: Vec::new(), open: None, waiting: Waiting::default(), said: Vec::new() }
    }

    fn take(&mut self, piece: Piece) {
        self.waiting.take_in(&piece, self.reply);
        self.reasoning(&piece.reasoning);
        if !piece.content.is_empty() {
            self.content(&piece.content);
        }
        piece.tool_calls.into_iter().for_each(|step| self.call(step));
    }

    fn id(&self, prefix: &str) -> String {
        format!("{prefix}_{}_{}", self.reply.id.trim_start_matches("resp_"), self.done.len())
    }

    fn reasoning(&mut self, more: &str) {
        if more.is_empty() {
            return;
        }
        if !matches!(self.open, Some(OutputItem::Reasoning { .. })) {
            self.begin(OutputItem::Reasoning { id: self.id("rs"), text: String::new() });
        }
        if let Some(OutputItem::Reasoning { text, .. }) = &mut self.open {
            text.push_str(more);
        }
        self.say_of_part("response.reasoning_text.delta", json!({"delta": more}));
    }

    fn content(&mut self, more: &str) {
        if !matches!(self.open, Some(OutputItem::Message { .. })) {
            let id = self.id("msg");
            self.begin(OutputItem::Message { id, text: String::new(), logprobs: Vec::new() });
        }
        self.more_text(more);
    }

    /// Text of the open message, and the log-probabilities that waited for it.
    fn more_text(&mut self, more: &str) {
        let logprobs = std::mem::take(&mut self.waiting.said);
        let event = json!({"delta": more, "logprobs": logprobs});
        if let Some(OutputItem::Message { text, logprobs: all, .. }) = &mut self.open {
            text.push_str(more);
            all.extend(logprobs);
        }
        self.say_of_part("response.output_text.delta", event);
    }

    fn call(&mut self, step: CallStep) {
        match step {
            CallStep::Start { name } => {
                // Closed first: the number of an item is how many came before it.
                self.close();
                let id = self.id("fc");
                let call_id = format!("call_{}_{}", self.reply.id.trim_start_matches("resp_"), self.done.len());
                self.begin(OutputItem::FunctionCall { id, call_id, name, arguments: String::new() });
            }
            CallStep::Arguments(more) | CallStep::RawArguments(more) => {
                if let Some(OutputItem::FunctionCall { arguments, .. }) = &mut self.open {
                    arguments.push_str(&more);
                }
                self.say_of_item("response.function_call_arguments.delta", json!({"delta": more}));
            }
            CallStep::End => self.close(),
        }
    }

    fn begin(&mut self, item: OutputItem) {
        self.close();
        let index = self.done.len();
        self.said.push(("response.output_item.added", json!({"output_index": index, "item": item.announced()})));
        let empty = item.part();
        let has_part = !empty.is_null();
        self.open = Some(item);
        if has_part {
            self.say_of_part("response.content_part.added", json!({"part": empty}));
        }
    }

    /// Closes the item that is open: it is complete.
    fn close(&mut self) {
        self.close_as(ResponseStatus::Completed);
    }

    fn close_as(&mut self, status: ResponseStatus) {
        if matches!(self.open, Some(OutputItem::Message { .. })) && !self.waiting.said.is_empty() {
            self.more_text("");
        }
        let Some(item) = self.open.clone() else { return };
        match &item {
            OutputItem::Reasoning { text, .. } => {
                self.say_of_part("response.reasoning_text.done", json!({"text": text}))
            }
            OutputItem::Message { text, logprobs, .. } => {
                self.say_of_part("response.output_text.done", json!({"text": text, "logprobs": logprobs}));
            }
            OutputItem::FunctionCall { arguments, name, .. } => {
                let fields = json!({"arguments": arguments, "name": name});
                self.say_of_item("response.function_call_arguments.done", fields);
            }
        }
        let part = item.part();
        if !part.is_null() {
            self.say_of_part("response.content_part.done", json!({"part": part}));
        }
        let (index, whole) = (self.done.len(), item.to_json(status));
        self.said.push(("response.output_item.done", json!({"output_index": index, "item": whole})));
        self.done.push(item);
        self.open = None;
    }

    fn say_of_item(&mut self, kind: &'static str, mut fields: Value) {
        fields["output_index"] = json!(self.done.len());
        fields["item_id"] = json!(self.open.as_ref().map(OutputItem::id));
        self.said.push((kind, fields));
    }

    fn say_of_part(&mut self, kind: &'static str, mut fields: Value) {
        fields["content_index"] = json!(0);
        self.say_of_item(kind, fields);
    }
}

/// The events of a streamed response.
pub struct ResponsesEvents {
    reply: ResponsesReply,
    done: Vec<OutputItem>,
    open: Option<OutputItem>,
    waiting: Waiting,
    counts: Counts,
    finish: Option<Finish>,
    sequence_number: usize,
}

impl ResponsesEvents {
    /// The events of a reply.
    pub fn new(reply: ResponsesReply) -> Self {
        ResponsesEvents {
            reply,
            done: Vec::new(),
            open: None,
            waiting: Waiting::default(),
            counts: Counts::default(),
            finish: None,
            sequence_number: 0,
        }
    }

    /// Lets the items grow; the events of that.
    fn grow(&mut self, change: impl FnOnce(&mut Items<'_>)) -> Vec<SseEvent> {
        let mut items = Items {
            reply: &self.reply,
            done: std::mem::take(&mut self.done),
            open: self.open.take(),
            waiting: std::mem::take(&mut self.waiting),
            said: Vec::new(),
        };
        change(&mut items);
        let Items { done, open, waiting, said, .. } = items;
        (self.done, self.open, self.waiting) = (done, open, waiting);
        said.into_iter().map(|(kind, fields)| self.event(kind, fields)).collect()
    }

    fn event(&mut self, kind: &'static str, mut fields: Value) -> SseEvent {
        fields["type"] = json!(kind);
        fields["sequence_number"] = json!(self.sequence_number);
        self.sequence_number += 1;
        SseEvent::json(Some(kind), &fields)
    }

    fn state(&mut self, kind: &'static str, response: &ResponseObject) -> SseEvent {
        self.event(kind, json!({"response": response.to_json()}))
    }
}

impl EventWriter for ResponsesEvents {
    fn begin(&mut self) -> Vec<SseEvent> {
        let response = self.reply.object(ResponseStatus::InProgress, Vec::new(), None);
        vec![self.state("response.created", &response), self.state("response.in_progress", &response)]
    }

    fn piece(&mut self, _index: usize, piece: Piece) -> Vec<SseEvent> {
        self.counts = piece.counts;
        let finish = piece.finish.clone();
        self.finish = finish.clone();
        let ended = finish.is_some();
        self.grow(|items| {
            items.take(piece);
            if ended {
                items.close_as(item_status(finish.as_ref()));
            }
        })
    }

    fn fail(&mut self, error: &ApiError) -> Vec<SseEvent> {
        let mut events = self.grow(|items| items.close_as(ResponseStatus::Incomplete));
        let mut response = self.reply.object(ResponseStatus::Failed, self.done.clone(), Some(self.counts));
        response.error = Some(error.body().error);
        events.push(self.state("response.failed", &response));
        events
    }

    fn end(&mut self) -> Vec<SseEvent> {
        let status = status(self.finish.as_ref());
        let kind = if status == ResponseStatus::Completed { "response.completed" } else { "response.incomplete" };
        let response = self.reply.object(status, self.done.clone(), Some(self.counts));
        vec![self.state(kind, &response)]
    }
}
